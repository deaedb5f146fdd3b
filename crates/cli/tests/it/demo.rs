//! `demo`.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::drakkar;

#[test]
fn the_demo_runs_in_eighty_columns_and_leaves_nothing_behind() {
    let temporary = short_directory();
    let assert = drakkar().arg("demo").env("TMPDIR", temporary.path()).assert().success().stderr_eq("");
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in [
        "Containers are kept apart by: namespaces (",
        "11 capabilities",
        "it is not a sandbox for code that you do not trust.",
        "gpus   gpu      gpu.example.com  gpu-0   pci 0000:03:00.0",
        "networkData.ips              strings  10.9.0.5/24",
        "hardwareAddress: 02:00:00:00:00:05",
        "Nothing is left",
    ] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    for line in output.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// Whoever looks around finds what the demo says is there; a signal ends it, and nothing is left.
#[test]
fn the_demo_can_go_on_running_to_look_around() {
    let temporary = short_directory();
    let mut demo = Demo::start(&["--keep"], temporary.path());
    let lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = until(lines, "Ctrl-C");
    let look = lines.iter().find_map(|line| line.trim().strip_prefix("drakkar --root ")).unwrap();
    let root = look.strip_suffix(" list").unwrap();
    let listed = drakkar().args(["--root", root, "list"]).assert().success();
    assert!(String::from_utf8_lossy(&listed.get_output().stdout).contains("gpu-1"));
    let kubeconfig = lines.iter().find_map(|line| line.trim().strip_prefix("export KUBECONFIG=")).unwrap();
    let content = std::fs::read_to_string(kubeconfig).unwrap();
    assert!(content.contains("https://127.0.0.1:"), "Go's clients send no token without TLS: {content}");
    assert_eq!(std::fs::metadata(kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
    let directory = Path::new(kubeconfig).parent().unwrap();
    assert_eq!(std::fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);

    assert!(Command::new("kill").args(["-TERM", &demo.0.id().to_string()]).status().unwrap().success());
    assert!(demo.0.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// A driver of one's own, in place of the samples.
#[test]
fn the_demo_runs_with_a_driver_of_ones_own() {
    let temporary = short_directory();
    let driver =
        format!("{} sample-driver gpu --enable-device-metadata", snapbox::cmd::cargo_bin!("drakkar").display());
    let assert = drakkar().args(["demo", "--driver", &driver]).env("TMPDIR", temporary.path()).assert().success();
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in ["Driver gpu.example.com is registered", "demo   device   gpu.example.com  gpu-0", "Nothing is left"]
    {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
}

/// A driver that keeps files for itself, as the official example driver does: a checkpoint, and a CDI spec for all claims.
#[test]
fn a_driver_may_keep_files_for_itself() {
    let output = demo_with_driver(
        r#"echo '{"checksum": 1, "v1": {"preparedClaims": {}}}' > "$plugin/checkpoint.json"
           echo '{"cdiVersion": "0.3.0", "kind": "k8s.gpu.example.com/gpu", "devices": [{"name": "common", "containerEdits":
               {"env": ["NODE=worker-0"]}}]}' > "$CDI_DIR/k8s.gpu.example.com-common.json""#,
    );
    let output = String::from_utf8(output.success().get_output().stdout.clone()).unwrap();
    for wanted in [
        "Nothing is left",
        "The driver keeps for itself:",
        "cdi/k8s.gpu.example.com-common.json",
        "kubelet/plugins/gpu.example.com/checkpoint.json",
    ] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
}

/// What belongs to the claim and is not removed with it fails the demo.
#[test]
fn what_a_driver_leaves_of_the_claim_is_told() {
    let left = demo_with_driver(r#"mkdir -p "$plugin/prepared"; touch "$plugin/prepared/default_demo.json""#).failure();
    let errors = String::from_utf8(left.get_output().stderr.clone()).unwrap();
    let file = "this is left of the pod: kubelet/plugins/gpu.example.com/prepared/default_demo.json";
    assert!(errors.contains(file) && !errors.contains("prepared,"), "{errors}");
}

/// The demo with a sample driver that runs this script before, with its plugin directory in `plugin`.
fn demo_with_driver(script: &str) -> snapbox::cmd::OutputAssert {
    let temporary = short_directory();
    let driver = format!(
        "plugin=\"$KUBELET_ROOT_DIR/plugins/gpu.example.com\"; mkdir -p \"$plugin\" \"$CDI_DIR\"; {script}\n\
         exec {} sample-driver gpu --enable-device-metadata",
        snapbox::cmd::cargo_bin!("drakkar").display()
    );
    drakkar().args(["demo", "--driver", &driver]).env("TMPDIR", temporary.path()).assert()
}

/// Where containers cannot be run, what they would be given is shown.
#[test]
fn the_demo_shows_what_containers_would_be_given() {
    let temporary = short_directory();
    let assert = drakkar().args(["demo", "--runtime", "none"]).env("TMPDIR", temporary.path()).assert().success();
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let mount = "at /var/run/dra-device-attributes/net/eth/net.example.com-metadata.json (ro,";
    for wanted in ["Containers are kept apart by: show only", mount, "Nothing is left"] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    let no_runtime = drakkar().args(["demo", "--runtime", "no-such-runtime"]).assert().code(3);
    assert!(String::from_utf8_lossy(&no_runtime.get_output().stderr).contains("no-such-runtime"));
}

#[test]
fn a_driver_that_ends_is_told_of_at_once_with_what_it_said() {
    let temporary = short_directory();
    let driver = "echo no such device >&2; exit 3";
    let assert = drakkar().args(["demo", "--driver", driver]).env("TMPDIR", temporary.path()).assert().failure();
    let errors = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(errors.contains("the driver has ended: exit status: 3"), "{errors}");
    assert!(errors.contains("no such device"), "{errors}");
}

/// A demo that goes on running; it ends with the test.
struct Demo(Child);

impl Demo {
    fn start(arguments: &[&str], temporary: &Path) -> Self {
        let mut command = Command::new(snapbox::cmd::cargo_bin!("drakkar"));
        command.arg("demo").args(arguments).env("TMPDIR", temporary);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The lines up to the one that has this.
fn until(lines: impl Iterator<Item = String>, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    for line in lines {
        let is_last = line.contains(last);
        seen.push(line);
        if is_last {
            return seen;
        }
    }
    panic!("{last} does not come: {seen:#?}");
}

/// A directory with a short path: sockets are in it.
fn short_directory() -> TempDir {
    TempDir::with_prefix_in("d", PathBuf::from("/tmp")).unwrap()
}
