//! `watch`.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command as Process, Stdio};

use drakkar_metadata::{Versions, encode};
use serde_json::Value;
use snapbox::cmd::cargo_bin;

use crate::support::{Container, claim, nic};

struct Watch {
    child: Child,
    lines: Option<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(container: &Container, arguments: &[&str]) -> Self {
        let mut command = Process::new(cargo_bin!("drakkar"));
        command.env("DRAKKAR_ROOT", container.root()).arg("watch").args(arguments);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = child.stdout.take().map(BufReader::new);
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn event(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Writes metadata in place, as a driver does.
fn update(path: &std::path::Path, generation: i64, interface: &str) {
    let mut metadata = nic();
    metadata.metadata.generation = generation;
    metadata.requests[0].devices[0].network_data.as_mut().unwrap().interface_name = interface.into();
    let content = encode(&metadata, &Versions::default());
    File::options().write(true).open(path).unwrap().write_all_at(&content, 0).unwrap();
}

#[test]
fn each_change_is_a_line() {
    let container = Container::with_gpus();
    let path = container.write(&claim("net", "eth", "net.example.com"), "");
    let mut watch = Watch::start(&container, &[]);
    assert_eq!(watch.line(), "EVENT  CLAIM    REQUEST  DRIVER           GEN  DEVICE  DETAILS");
    assert_eq!(watch.line(), "ADDED  devices  gpu      gpu.example.com  1    gpu-0   pci 0000:03:00.0");
    assert_eq!(watch.line(), "ADDED  devices  gpu      gpu.example.com  1    gpu-1   pci 0000:04:00.0");
    assert_eq!(watch.line(), "ADDED  net      eth      net.example.com  -    -       not written yet");
    update(&path, 1, "net1");
    assert_eq!(watch.line(), "MODIFIED  net      eth      net.example.com  1    eth1    net1 10.9.0.5/24");
    update(&path, 2, "net2");
    assert_eq!(watch.line(), "MODIFIED  net      eth      net.example.com  2    eth1    net2 10.9.0.5/24");
    fs::remove_file(&path).unwrap();
    assert_eq!(watch.line(), "DELETED   net      eth      net.example.com  2    eth1    net2 10.9.0.5/24");
}

#[test]
fn each_change_is_a_json_object_of_a_watch() {
    let container = Container::with_gpus();
    let mut watch = Watch::start(&container, &["net", "-o", "json"]);
    let mut errors = BufReader::new(watch.child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("drakkar: no metadata for net: looked in "), "{line}");

    let path = container.write(&claim("net", "eth", "net.example.com"), "");
    let added = watch.event();
    assert_eq!((&added["type"], &added["object"]["status"]), (&"ADDED".into(), &"not written yet".into()));
    update(&path, 7, "net1");
    let modified = watch.event();
    assert_eq!((&modified["type"], &modified["object"]["generation"]), (&"MODIFIED".into(), &7.into()));
    assert_eq!(modified["object"]["devices"][0]["networkData"]["interfaceName"], "net1");
    assert_eq!(modified["object"]["reference"], "resourceclaims/net");
    fs::remove_file(&path).unwrap();
    let deleted = watch.event();
    assert_eq!((&deleted["type"], &deleted["object"]["generation"]), (&"DELETED".into(), &7.into()));
}

/// As in `drakkar watch | head -1`, without a further change.
#[test]
fn a_closed_output_ends_the_watch() {
    let container = Container::with_gpus();
    let mut watch = Watch::start(&container, &[]);
    watch.line();
    watch.lines = None;
    assert!(watch.child.wait().unwrap().success());
    let mut errors = String::new();
    watch.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(errors, "");
}

#[test]
fn a_wrong_name_is_an_error_and_an_ambiguous_one_too() {
    let container = Container::with_gpus();
    container.drakkar(["watch", "../x"]).assert().code(2);
    let mut named = crate::support::gpus();
    named.pod_claim_name = None;
    named.metadata.uid = "another".into();
    container.write(&claim("devices", "gpu", "gpu.example.com"), encode(&named, &Versions::default()));
    container.drakkar(["watch", "devices"]).assert().code(2);
}
