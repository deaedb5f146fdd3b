//! `env` and `exec`.

use std::process::Command as Process;

use drakkar_metadata::{DeviceAttribute, Versions, encode};
use snapbox::str;

use crate::support::{Container, claim, device, metadata, nic, template};

#[test]
fn env_prints_assignments_under_stable_names() {
    let container = Container::with_gpus();
    container.write(&claim("net", "eth", "net.example.com"), encode(&nic(), &Versions::default()));
    container.drakkar(["env"]).assert().success().stdout_eq(str![[r#"
DRA_DEVICES_GPU_0_ATTR_MODEL=LATEST-GPU-MODEL
DRA_DEVICES_GPU_0_ATTR_RESOURCE_KUBERNETES_IO_PCI_BUS_ID=0000:03:00.0
DRA_DEVICES_GPU_0_DEVICE=gpu-0
DRA_DEVICES_GPU_0_DRIVER=gpu.example.com
DRA_DEVICES_GPU_0_PCI_BUS_ID=0000:03:00.0
DRA_DEVICES_GPU_0_POOL=worker-0
DRA_DEVICES_GPU_1_ATTR_MODEL=LATEST-GPU-MODEL
DRA_DEVICES_GPU_1_ATTR_RESOURCE_KUBERNETES_IO_PCI_BUS_ID=0000:04:00.0
DRA_DEVICES_GPU_1_DEVICE=gpu-1
DRA_DEVICES_GPU_1_DRIVER=gpu.example.com
DRA_DEVICES_GPU_1_PCI_BUS_ID=0000:04:00.0
DRA_DEVICES_GPU_1_POOL=worker-0
DRA_DEVICES_GPU_COUNT=2
DRA_NET_ETH_0_DEVICE=eth1
DRA_NET_ETH_0_DRIVER=net.example.com
DRA_NET_ETH_0_INTERFACE=net1
DRA_NET_ETH_0_IPS='10.9.0.5/24
fd00:9::5/64'
DRA_NET_ETH_0_MAC=02:00:00:00:00:05
DRA_NET_ETH_0_POOL=worker-0
DRA_NET_ETH_COUNT=1

"#]]);
    container.drakkar(["env", "--export", "--prefix", "X", "net/eth"]).assert().success().stdout_eq(str![[r#"
export X_NET_ETH_0_DEVICE=eth1
export X_NET_ETH_0_DRIVER=net.example.com
...
"#]]);
}

#[test]
fn a_shell_gets_back_exactly_what_the_driver_wrote() {
    let hostile = "$(touch owned) `touch owned` \"'\\ ; | & * ? ~ # ! \n\t é \u{1b}";
    let container = Container::new();
    let mut metadata = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    metadata.requests[0].devices[0].attributes.insert("evil".into(), hostile.into());
    container.write(&claim("c", "r", "a.example.com"), encode(&metadata, &Versions::default()));

    let assignments = container.drakkar(["env"]).output().unwrap().stdout;
    let script = format!("{}\nprintf %s \"$DRA_C_R_0_ATTR_EVIL\"", String::from_utf8(assignments).unwrap());
    let output = Process::new("sh").arg("-c").arg(script).current_dir(container.root()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), hostile);
    assert!(!container.root().join("owned").exists());
}

#[test]
fn two_values_with_the_same_variable_name_are_refused() {
    let container = Container::new();
    let mut metadata = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    let attributes = &mut metadata.requests[0].devices[0].attributes;
    attributes.insert("a.b/c".into(), "x".into());
    attributes.insert("a-b/c".into(), "y".into());
    container.write(&claim("c", "r", "a.example.com"), encode(&metadata, &Versions::default()));
    container.drakkar(["env"]).assert().code(5).stdout_eq("(exit 5)\n").stderr_eq(str![[r#"
drakkar: DRA_C_R_0_ATTR_A_B_C would be both attribute a-b/c of c/r, device d and attribute a.b/c of c/r, device d
hint: select the requests that you need, or omit attributes with --no-attributes

"#]]);
}

#[test]
fn a_value_that_no_variable_can_hold_is_refused() {
    let container = Container::new();
    let mut metadata = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    metadata.requests[0].devices[0].attributes.insert("nul".into(), "a\0b".into());
    container.write(&claim("c", "r", "a.example.com"), encode(&metadata, &Versions::default()));
    for (arguments, output) in [(vec!["env"], "(exit 5)\n"), (vec!["exec", "--", "true"], "")] {
        container.drakkar(arguments).assert().code(5).stdout_eq(output).stderr_eq(str![[r#"
drakkar: attribute nul of c/r, device d: a variable cannot contain a NUL character
hint: select the requests that you need, or omit attributes with --no-attributes

"#]]);
    }
    container.drakkar(["exec", "--no-attributes", "--", "true"]).assert().success();
}

#[test]
fn exec_runs_the_program_with_the_variables_and_its_own_exit_code() {
    let container = Container::with_gpus();
    let script = "echo \"$DRA_DEVICES_GPU_1_PCI_BUS_ID $1 $INHERITED\"; exit 42";
    container
        .drakkar(["exec", "--", "sh", "-c", script, "sh", "--flag"])
        .env("INHERITED", "yes")
        .assert()
        .code(42)
        .stdout_eq("0000:04:00.0 --flag yes\n");
}

#[test]
fn exec_says_when_the_program_cannot_be_run() {
    let container = Container::with_gpus();
    container.drakkar(["exec", "--", "no-such-program"]).assert().code(127).stderr_eq(str![[r#"
drakkar: no-such-program: No such file or directory (os error 2)

"#]]);
    let directory = container.root().to_string_lossy().into_owned();
    container.drakkar(["exec", "--", &directory]).assert().code(126).stderr_eq(str![[r#"
drakkar: [..]: Permission denied (os error 13)

"#]]);
}

#[test]
fn exec_does_not_start_the_program_without_its_metadata() {
    let container = Container::with_gpus();
    container.write(&claim("net", "eth", "net.example.com"), "");
    container.drakkar(["exec", "--", "echo", "started"]).assert().code(4).stdout_eq("");
    container.drakkar(["exec", "--request", "devices/gpu", "--", "echo", "started"]).assert().success();
    Container::new().drakkar(["exec", "--", "echo", "started"]).assert().code(3).stdout_eq("");
}

#[test]
fn two_claims_of_one_name_are_not_mixed() {
    let container = Container::new();
    let of = |claim: &str, uid: &str, name: &str| {
        encode(&metadata(claim, uid, "r", vec![device("a.example.com", name)]), &Versions::default())
    };
    container.write(&claim("same", "r", "a.example.com"), of("same", "u1", "direct"));
    container.write(&template("same", "r", "a.example.com"), of("pod-same-x", "u2", "generated"));
    container.drakkar(["env"]).assert().code(2).stdout_eq("(exit 2)\n").stderr_eq(str![[r#"
drakkar: two claims have the name same
hint: select one of them; `drakkar list` shows their unambiguous names

"#]]);
    container.drakkar(["env", "resourceclaimtemplates/same/r"]).assert().success().stdout_eq(str![[r#"
DRA_SAME_R_0_DEVICE=generated
...
"#]]);
}

#[test]
fn a_request_that_is_named_twice_is_counted_once() {
    let container = Container::with_gpus();
    let twice = ["env", "devices/gpu", "devices/gpu", "resourceclaimtemplates/devices/gpu"];
    let twice = container.drakkar(twice).output().unwrap();
    assert_eq!(twice.stdout, container.drakkar(["env"]).output().unwrap().stdout);
}

#[test]
fn an_attribute_without_a_value_is_not_set() {
    let container = Container::new();
    let mut metadata = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    metadata.requests[0].devices[0].attributes.insert("links".into(), DeviceAttribute::default());
    container.write(&claim("c", "r", "a.example.com"), encode(&metadata, &Versions::default()));
    container.drakkar(["exec", "--", "sh", "-c", "echo ${DRA_C_R_0_ATTR_LINKS-unset}"]).assert().stdout_eq("unset\n");
    container.drakkar(["get", "c/r", "links"]).assert().code(3);
    container.drakkar(["wait", "c/r", "--for", "links", "--timeout", "0"]).assert().code(4);
}

#[test]
fn elements_of_a_list_are_lines() {
    let container = Container::new();
    let mut metadata = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    let versions = DeviceAttribute::versions(["1.0.0", "2.0.0"]);
    metadata.requests[0].devices[0].attributes.insert("supportedVersions".into(), versions);
    container.write(&claim("c", "r", "a.example.com"), encode(&metadata, &Versions::default()));
    let script = "for v in $DRA_C_R_0_ATTR_SUPPORTED_VERSIONS; do echo \"[$v]\"; done";
    container.drakkar(["exec", "--", "sh", "-c", script]).assert().success().stdout_eq("[1.0.0]\n[2.0.0]\n");
}
