#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` in the arguments reads best")]

mod isolation;
mod life;
mod oci;
mod refusals;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// A runner with its own directories: `cdi` for specs, `state` for its files.
struct Bench {
    directory: TempDir,
    runner: Option<Runner>,
}

impl Bench {
    fn new(isolation: Isolation) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("cdi")).unwrap();
        let mut config = Config::new([directory.path().join("cdi")], directory.path().join("state"));
        config.isolation = isolation;
        let runner = Some(Runner::new(config).unwrap());
        Self { directory, runner }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.text(name)
    }

    /// Writes a spec `example.com/{name}` with one device `0`, and returns the device's name.
    fn device(&self, name: &str, edits: Value) -> String {
        self.spec(&format!("{name}.json"), name, json!([{ "name": "0", "containerEdits": edits }]), json!({}));
        format!("example.com/{name}=0")
    }

    fn spec(&self, file: &str, class: &str, devices: Value, edits: Value) {
        let kind = format!("example.com/{class}");
        let spec = json!({ "cdiVersion": "1.0.0", "kind": kind, "devices": devices, "containerEdits": edits });
        fs::write(self.path("cdi").join(file), spec.to_string()).unwrap();
    }

    fn runner(&self) -> &Runner {
        self.runner.as_ref().unwrap()
    }

    /// Runs a container to its exit; returns the exit and the output.
    async fn run(&self, spec: ContainerSpec) -> (Exit, String) {
        let id = self.runner().start(spec).await.unwrap();
        let exit = self.runner().wait(&id).await.unwrap();
        (exit, self.log(&id))
    }

    /// Runs a script to its exit, which must be a success; returns the output.
    async fn script(&self, script: &str, devices: &[&str]) -> String {
        let (exit, output) = self.run(container(script, devices)).await;
        assert_eq!(exit, Exit::new(0, None), "{output}");
        output
    }

    fn log(&self, id: &ContainerId) -> String {
        String::from_utf8(self.runner().logs(id).unwrap()).unwrap()
    }

    /// Waits until the container has logged this text.
    async fn until_logged(&self, id: &ContainerId, text: &str) {
        eventually(|| self.log(id).contains(text)).await;
    }
}

/// Returns a container that runs a script.
fn container(script: &str, devices: &[&str]) -> ContainerSpec {
    ContainerSpec {
        pod_uid: "uid-1".into(),
        pod_name: "pod".into(),
        namespace: "default".into(),
        name: "main".into(),
        command: vec!["sh".into(), "-c".into(), script.into()],
        cdi_devices: devices.iter().map(|&device| device.to_owned()).collect(),
        ..ContainerSpec::default()
    }
}

fn bind(host: &str, container: &str) -> Value {
    json!({ "hostPath": host, "containerPath": container, "options": ["ro", "bind"] })
}

/// Waits for a condition. The timeout is long, for slow machines; only a failing test waits for it.
async fn eventually(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports whether the isolation cannot be tested here, and prints that.
fn skipped(isolation: &Isolation) -> bool {
    let skip = *isolation == Isolation::Root && !is_root();
    if skip {
        println!("skipped: isolation {isolation} needs root");
    }
    skip
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn mounts_of_host() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// Returns an argument for `sleep` that no other process has: it identifies a process inside and outside of a container.
fn unique_time() -> String {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("1000.{:07}{count:03}", std::process::id())
}

/// Counts the processes of the host that sleep for that time; zombies do not count.
fn sleepers(time: &str) -> usize {
    let command = format!("sleep\0{time}\0");
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("cmdline"));
    processes.filter(|file| fs::read(file).is_ok_and(|text| text == command.as_bytes())).count()
}

fn alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}
