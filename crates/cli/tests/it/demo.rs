//! `demo`.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::drakkar;

#[test]
fn the_demo_runs_in_eighty_columns_and_leaves_nothing_behind() {
    let temporary = short_directory();
    let assert = drakkar().arg("demo").env("TMPDIR", temporary.path()).assert().success().stderr_eq("");
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in [
        "Container isolation: namespaces (",
        "11 capabilities",
        "this is not a sandbox for untrusted code.",
        "gpus   gpu      gpu.example.com  gpu-0   pci 0000:03:00.0",
        "networkData.ips              strings  10.9.0.5/24",
        "hardwareAddress: 02:00:00:00:00:05",
        "      resourceClaims:\n      - {name: gpus,",
        "No leftovers",
    ] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    for line in output.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// The commands that the demo prints work; a signal ends it without leftovers.
#[test]
fn the_demo_can_keep_running() {
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

    demo.signal("INT");
    assert_eq!(demo.0.wait().unwrap().code(), Some(130), "as after Ctrl-C");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    assert_eq!(processes_with(temporary.path()), Vec::<String>::new());
}

/// Drivers end with a demo that is killed, and its directory is removed.
#[test]
fn nothing_remains_of_a_killed_demo() {
    let temporary = short_directory();
    let mut demo = Demo::start(&["--keep"], temporary.path());
    let lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    until(lines, "Ctrl-C");
    assert!(processes_with(temporary.path()).len() >= 2, "two drivers");
    demo.signal("KILL");
    demo.0.wait().unwrap();
    eventually(|| processes_with(temporary.path()).is_empty(), || processes_with(temporary.path()).join(", "));
    let left = || std::fs::read_dir(temporary.path()).unwrap().count();
    eventually(|| left() == 0, || "the directory remains".to_owned());
}

/// Returns the command lines of the processes with a path in their environment or arguments.
fn processes_with(path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    let read = |process: &Path, file: &str| {
        String::from_utf8_lossy(&std::fs::read(process.join(file)).unwrap_or_default()).replace('\0', " ")
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let own = format!("/proc/{}", std::process::id());
    let others = processes.filter(|process| *process != Path::new(&own));
    others
        .filter(|process| ["environ", "cmdline"].iter().any(|file| read(process, file).contains(path)))
        .map(|process| read(&process, "cmdline"))
        .collect()
}

fn eventually(condition: impl Fn() -> bool, describe: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !condition() {
        assert!(Instant::now() < deadline, "{}", describe());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The user's own driver, instead of the samples.
#[test]
fn the_demo_runs_with_the_users_own_driver() {
    let temporary = short_directory();
    let driver =
        format!("{} sample-driver gpu --enable-device-metadata", snapbox::cmd::cargo_bin!("drakkar").display());
    let assert = drakkar().args(["demo", "--driver", &driver]).env("TMPDIR", temporary.path()).assert().success();
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in [
        "Driver gpu.example.com is registered",
        "It has published 2 devices in 1 ResourceSlice  ",
        "demo   device   gpu.example.com  gpu-0",
        "No leftovers",
    ] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
}

/// The official example driver keeps files of its own: a checkpoint, and a CDI spec for all claims.
#[test]
fn a_driver_may_keep_files_of_its_own() {
    let output = demo_with_driver(
        r#"echo '{"checksum": 1, "v1": {"preparedClaims": {}}}' > "$plugin/checkpoint.json"
           echo '{"cdiVersion": "0.3.0", "kind": "k8s.gpu.example.com/gpu", "devices": [{"name": "common", "containerEdits":
               {"env": ["NODE=worker-0"]}}]}' > "$CDI_DIR/k8s.gpu.example.com-common.json""#,
    );
    let output = String::from_utf8(output.success().get_output().stdout.clone()).unwrap();
    for wanted in [
        "No leftovers",
        "The driver keeps these files of its own:",
        "cdi/k8s.gpu.example.com-common.json",
        "kubelet/plugins/gpu.example.com/checkpoint.json",
    ] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
}

/// A file of the claim that is not removed with it fails the demo.
#[test]
fn leftovers_of_the_claim_are_reported() {
    let left = demo_with_driver(r#"mkdir -p "$plugin/prepared"; touch "$plugin/prepared/default_demo.json""#).failure();
    let errors = String::from_utf8(left.get_output().stderr.clone()).unwrap();
    let file = "leftovers of the pod: kubelet/plugins/gpu.example.com/prepared/default_demo.json";
    assert!(errors.contains(file) && !errors.contains("prepared,"), "{errors}");
}

/// Runs the demo with a sample driver, after a script that has the plugin directory in `$plugin`.
fn demo_with_driver(script: &str) -> snapbox::cmd::OutputAssert {
    let temporary = short_directory();
    let driver = format!(
        "plugin=\"$KUBELET_ROOT_DIR/plugins/gpu.example.com\"; mkdir -p \"$plugin\" \"$CDI_DIR\"; {script}\n\
         exec {} sample-driver gpu --enable-device-metadata",
        snapbox::cmd::cargo_bin!("drakkar").display()
    );
    drakkar().args(["demo", "--driver", &driver]).env("TMPDIR", temporary.path()).assert()
}

/// Without a container runtime, the demo is a dry run.
#[test]
fn a_dry_run_shows_what_containers_would_get() {
    let temporary = short_directory();
    let assert = drakkar().args(["demo", "--runtime", "none"]).env("TMPDIR", temporary.path()).assert().success();
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in ["Containers do not run", "No leftovers"] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    let mount = "at/var/run/dra-device-attributes/net/eth/net.example.com-metadata.json(ro,";
    assert!(output.split_whitespace().collect::<String>().contains(mount), "{output}");
    for line in output.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let no_runtime = drakkar().args(["demo", "--runtime", "no-such-runtime"]).assert().code(3);
    assert!(String::from_utf8_lossy(&no_runtime.get_output().stderr).contains("no-such-runtime"));
}

#[test]
fn a_driver_that_exits_is_reported_at_once_with_its_output() {
    let temporary = short_directory();
    let driver = "echo no such device >&2; exit 3";
    let assert = drakkar().args(["demo", "--driver", driver]).env("TMPDIR", temporary.path()).assert().failure();
    let errors = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(errors.contains("the driver exited: exit status: 3"), "{errors}");
    assert!(errors.contains("\nThe driver's log, the newest line last:\n  no such device\n"), "{errors}");
}

#[test]
fn the_demo_says_what_it_waits_for() {
    let temporary = short_directory();
    let mut demo = Demo::start(&["--driver", "sleep 1000"], temporary.path());
    let lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines = until(lines, "Waiting: the driver has no registration socket in");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    demo.signal("TERM");
    assert_eq!(demo.0.wait().unwrap().code(), Some(143));
}

/// The driver writes its CDI specs where the container runtime does not look.
#[test]
fn a_cdi_device_that_cannot_be_resolved_ends_the_demo_at_once() {
    let errors = failure_of_driver("CDI_DIR=$(mktemp -d -p \"$TMPDIR\")");
    assert!(errors.contains("drakkar: the kubelet cannot run the pod: Failed: Error: "), "{errors}");
    assert!(errors.contains("hint: its CDI spec must be in $CDI_DIR, /"), "{errors}");
}

/// The driver cannot write the claim's metadata: a file is where its directory should be.
#[test]
fn a_claim_that_cannot_be_prepared_ends_the_demo_at_once() {
    let directory = "$KUBELET_ROOT_DIR/plugins/gpu.example.com/dra-device-metadata";
    let errors = failure_of_driver(&format!("mkdir -p \"{directory}\"; touch \"{directory}/default_demo\""));
    let event = "drakkar: the kubelet cannot run the pod: FailedPrepareDynamicResources: ";
    assert!(errors.contains(event), "{errors}");
}

/// Runs the demo with a sample driver after a script, and returns its errors. It must not be the timeout that ends it.
fn failure_of_driver(script: &str) -> String {
    let temporary = short_directory();
    let driver = format!(
        "{script}\nexport CDI_DIR\nexec {} sample-driver gpu --enable-device-metadata",
        snapbox::cmd::cargo_bin!("drakkar").display()
    );
    let assert = drakkar().args(["demo", "--driver", &driver]).env("TMPDIR", temporary.path()).assert().failure();
    let errors = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(!errors.contains("is not running after"), "{errors}");
    errors
}

/// A demo that keeps running; dropping it ends it.
struct Demo(Child);

impl Demo {
    fn start(arguments: &[&str], temporary: &Path) -> Self {
        let mut command = Command::new(snapbox::cmd::cargo_bin!("drakkar"));
        command.arg("demo").args(arguments).env("TMPDIR", temporary);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Demo {
    fn signal(&self, signal: &str) {
        let signal = format!("-{signal}");
        assert!(Command::new("kill").args([&signal, &self.0.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the lines up to the first that contains a text.
fn until(lines: impl Iterator<Item = String>, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    for line in lines {
        let is_last = line.contains(last);
        seen.push(line);
        if is_last {
            return seen;
        }
    }
    panic!("no line with {last}: {seen:#?}");
}

/// Creates a directory with a short path, because it has sockets.
fn short_directory() -> TempDir {
    TempDir::with_prefix_in("d", PathBuf::from("/tmp")).unwrap()
}
