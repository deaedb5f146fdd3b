//! `--wait` and `--optional` of `env` and `exec`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command as Process, Stdio};

use drakkar_metadata::{Versions, encode};
use snapbox::cmd::cargo_bin;
use snapbox::str;

use crate::support::{Container, claim, nic, template};
use crate::wait::until_watching;

const SCRIPT: &str = "echo ${DRA_NET_ETH_0_INTERFACE-unset} ${DRA_DEVICES_GPU_COUNT-unset}";

/// A container whose network driver has not written its file yet.
fn container() -> (Container, std::path::PathBuf) {
    let container = Container::with_gpus();
    let path = container.write(&claim("net", "eth", "net.example.com"), "");
    (container, path)
}

fn spawn(container: &Container, arguments: &[&str]) -> Child {
    let mut command = Process::new(cargo_bin!("drakkar"));
    command.env("DRAKKAR_ROOT", container.root()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn exec_and_env_wait_until_the_driver_has_written_the_file() {
    for arguments in [
        &["exec", "--wait=10m", "--", "sh", "-c", SCRIPT][..],
        &["exec", "--wait=10m", "--optional", "--", "sh", "-c", SCRIPT],
        &["exec", "--wait=10m", "--request", "net", "--request", "devices/gpu", "--", "sh", "-c", SCRIPT],
    ] {
        let (container, path) = container();
        let waiting = spawn(&container, arguments);
        until_watching(&waiting);
        File::options().write(true).open(path).unwrap().write_all_at(&encode(&nic(), &Versions::default()), 0).unwrap();
        let output = waiting.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "net1 2\n", "{arguments:?}");
    }
    let (container, path) = container();
    let waiting = spawn(&container, &["env", "--wait=10m", "net/eth"]);
    until_watching(&waiting);
    File::options().write(true).open(path).unwrap().write_all_at(&encode(&nic(), &Versions::default()), 0).unwrap();
    let output = waiting.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("DRA_NET_ETH_0_INTERFACE=net1"), "{output:?}");
}

#[test]
fn a_wait_times_out_with_the_reason_and_does_not_start_the_program() {
    let (container, _) = container();
    container.drakkar(["exec", "--wait=50ms", "--", "echo", "started"]).assert().code(4).stdout_eq("").stderr_eq(str![
        [r#"
drakkar: timed out after [..] s: [..]/resourceclaims/net/eth/net.example.com-metadata.json: not written yet

"#]
    ]);
    Container::new().drakkar(["exec", "--wait=1ms", "--", "echo", "started"]).assert().code(3).stdout_eq("");
    // The default is 30 seconds, which is not waited for if all is there.
    Container::with_gpus().drakkar(["exec", "--wait", "--", "echo", "started"]).assert().success();
}

#[test]
fn optional_metadata_that_is_missing_is_left_out() {
    let (container, _) = container();
    let run = |container: &Container, arguments: &[&'static str]| {
        let all = [&["exec"], arguments, &["--", "sh", "-c", SCRIPT]].concat();
        container.drakkar(all).assert().success().stderr_eq("").get_output().stdout.clone()
    };
    assert_eq!(run(&container, &["--optional"]), b"unset 2\n");
    assert_eq!(run(&container, &["--optional", "--wait=1ms"]), b"unset 2\n");
    assert_eq!(run(&container, &["--optional", "--request", "absent"]), b"unset unset\n");
    // Without any file there is nothing to wait for, however long the timeout.
    assert_eq!(run(&Container::new(), &["--optional", "--wait=10h"]), b"unset unset\n");
    Container::new().drakkar(["env", "--optional"]).assert().success().stdout_eq("");
}

#[test]
fn optional_metadata_that_is_broken_or_ambiguous_is_an_error() {
    let (container, path) = container();
    std::fs::write(path, "{").unwrap();
    container.drakkar(["exec", "--optional", "--", "echo", "started"]).assert().code(5).stdout_eq("");
    let container = Container::with_gpus();
    let mut named = crate::support::gpus();
    named.pod_claim_name = None;
    named.metadata.uid = "another".into();
    container.write(&claim("devices", "gpu", "gpu.example.com"), encode(&named, &Versions::default()));
    let ambiguous = ["exec", "--optional", "--wait=10h", "--request", "devices/gpu", "--", "echo", "started"];
    container.drakkar(ambiguous).assert().code(2).stdout_eq("");
}

#[test]
fn the_timeout_needs_an_equals_sign_so_that_it_is_not_the_program() {
    let container = Container::with_gpus();
    container.drakkar(["exec", "--wait", "echo", "30s"]).assert().success().stdout_eq("30s\n");
    container.drakkar(["exec", "--wait", "30s", "--", "echo"]).assert().code(127).stderr_eq(str![[r#"
drakkar: 30s: No such file or directory (os error 2)
hint: a timeout follows an equals sign, as in --wait=1m

"#]]);
    container.drakkar(["exec", "--wait=soon", "echo"]).assert().code(2).stderr_eq(str![[r#"
error: invalid value 'soon' for '--wait[=<TIMEOUT>]': not a duration: use a form such as 500ms, 1.5s, 30s, 1m30s or 1h
...
"#]]);
    let file = template("devices", "gpu", "gpu.example.com");
    container.write(&file, "");
    container.drakkar(["wait", "devices/gpu", "--timeout", "0m0.001s"]).assert().code(4);
}
