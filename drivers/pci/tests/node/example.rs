//! The example of two GPUs for a virtual machine, from its YAML files.

use std::path::{Path, PathBuf};
use std::process::Command;

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::hostdev;
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::VirtualMachineInstance;
use drakkar_kubevirt::xml::{self, Form};
use drakkar_node::{Node, assert_eventually};
use drakkar_pci::DRIVER_NAME;
use serde_json::{Value, json};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kubevirt-multi-gpu").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gpus_from_a_template_and_an_existing_claim() {
    let node = Node::start().await.unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_drakkar-pci"));
    command.args(["run", "--enable-device-metadata", "--config"]).arg(file("config.yaml"));
    command.arg("--simulate").arg(file("host.yaml"));
    let driver = node.spawn(DRIVER_NAME, command).unwrap();
    node.wait_registered(DRIVER_NAME).await.unwrap();
    node.wait_published(DRIVER_NAME).await.unwrap();
    node.apply(&text("classes.yaml")).await.unwrap();
    node.apply(&text("claims.yaml")).await.unwrap();
    let mut launcher: Value = serde_saphyr::from_str(&text("launcher.yaml")).unwrap();
    // The programs that were built, and the example itself, for the command below.
    let programs = Path::new(env!("CARGO_BIN_EXE_drakkar-pci")).parent().unwrap();
    let example = file("").canonicalize().unwrap();
    launcher["spec"]["volumes"] = json!([
        {"name": "programs", "hostPath": {"path": programs}},
        {"name": "example", "hostPath": {"path": example}},
    ]);
    launcher["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "programs", "mountPath": "/programs", "readOnly": true},
        {"name": "example", "mountPath": "/example", "readOnly": true},
    ]);
    let pod = node.create_pod(launcher).await.unwrap();
    pod.running().await.unwrap_or_else(|error| panic!("{error}\n{}", driver.log().unwrap()));

    let base = "/var/run/kubernetes.io/dra-device-attributes";
    let read = async |path: &str| -> Value {
        let path = format!("{base}/{path}/{DRIVER_NAME}-metadata.json");
        let output = pod.exec("compute", ["cat", &path]).await.unwrap();
        let file: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{path}: {error}"));
        file["requests"][0]["devices"][0]["attributes"].clone()
    };
    let first = read("resourceclaimtemplates/dyn/t-req").await;
    assert_eq!(first["resource.kubernetes.io/pciBusID"]["string"], "0000:65:00.0");
    assert!(first.get("mdevUUID").is_none());
    let second = read("resourceclaims/shared-gpu/s-req").await;
    let uuid = second["mdevUUID"]["string"].as_str().unwrap();
    assert_eq!(uuid.len(), 36);

    // As KubeVirt 1.9 reads the files, and as we do.
    let vmi: VirtualMachineInstance = serde_saphyr::from_str(&text("vmi.yaml")).unwrap();
    let root = format!("/proc/{}/root", pod.process("compute").unwrap());
    for behaviour in [Behaviour::Strict, Behaviour::Extended] {
        let resolver = Resolver::with_root(&root).unwrap().with_behaviour(behaviour);
        let xml = xml::write(&hostdev::dra_gpus(&vmi.spec, &resolver).unwrap(), Form::Canonical);
        let pci = xml.find("ua-dra-gpu-first").unwrap_or_else(|| panic!("{xml}"));
        let mdev = xml.find("ua-dra-gpu-second").unwrap_or_else(|| panic!("{xml}"));
        assert!(pci < mdev && xml.contains(uuid), "{xml}");
        assert!(xml.contains("bus='0x65'") || xml.contains("bus=\"0x65\""), "{xml}");
    }

    // The command, in the container, where the whole workspace was built.
    if programs.join("drakkar").exists() {
        let command = ["/programs/drakkar", "kubevirt", "domain-xml", "/example/vmi.yaml"];
        let output = pod.exec("compute", command).await.unwrap();
        let xml = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(xml.matches("<hostdev").count(), 2, "{xml}");
        assert!(xml.contains("ua-dra-gpu-first") && xml.contains(uuid), "{xml}");
    } else {
        eprintln!("skipped: there is no {}/drakkar; build the workspace", programs.display());
    }

    let host = node.kubelet_root().join("plugins").join(DRIVER_NAME).join("simulation");
    let driver_of = |address: &str| {
        let link = host.join("sys/bus/pci/devices").join(address).join("driver");
        std::fs::read_link(link).ok().map(|link| link.file_name().unwrap().to_string_lossy().into_owned())
    };
    assert_eq!(driver_of("0000:65:00.0").as_deref(), Some("vfio-pci"));
    assert_eq!(driver_of("0000:65:00.1").as_deref(), Some("vfio-pci"), "the audio function goes along");
    assert_eq!(driver_of("0000:b3:00.0").as_deref(), Some("nvidia"));

    pod.delete().await.unwrap();
    assert_eventually!(driver_of("0000:65:00.0").as_deref() == Some("nvidia"));
    assert_eq!(driver_of("0000:65:00.1").as_deref(), Some("snd_hda_intel"));
    assert!(!host.join("sys/bus/mdev/devices").join(uuid).exists());
    assert!(driver.terminate().await.unwrap().success());
}

#[test]
fn the_commands_of_the_example_show_its_host() {
    let run = |arguments: &[&std::ffi::OsStr]| {
        let output = Command::new(env!("CARGO_BIN_EXE_drakkar-pci")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let config = file("config.yaml");
    let host = file("host.yaml");
    assert!(run(&["check-config".as_ref(), config.as_ref()]).contains("valid, with 1 rules"));
    let table = run(&["devices".as_ref(), "--config".as_ref(), config.as_ref(), "--simulate".as_ref(), host.as_ref()]);
    assert!(text("README.md").contains(&table), "the table of the example's README is not this:\n{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}
