//! Our NRI client on containerd's own library for runtimes: NRI 0.12, and 0.8 whose pod events are state changes.

mod runtime;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drakkar_nri::{
    Adjustments, BoxError, Call, Container, ContainerAdjustment, ContainerUpdate, Event, Events, Handle, NriPlugin,
    Plugin, PodSandbox, PodSandboxExt as _, Resources, State, Updates,
};
use serde_json::json;

use crate::support::{nri_0_8, program};
use runtime::{GoRuntime, patiently, pod};

/// A plugin that records its calls. It fails and is slow where the name of the pod says so.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn record(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl NriPlugin for Recorder {
    async fn synchronize(
        &self,
        _: &Call,
        pods: &[PodSandbox],
        _: &[Container],
    ) -> Result<Vec<ContainerUpdate>, BoxError> {
        self.record(format!("synchronize {}", pods.len()));
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, call: &Call, pod: &PodSandbox) -> Result<(), BoxError> {
        let namespace = pod.network_namespace().unwrap_or(Path::new("none"));
        self.record(format!("run {} {} {}", pod.name, pod.uid, namespace.display()));
        match &*pod.name {
            "failing" => Err("no interface".into()),
            "slow" => {
                call.abandoned().await;
                self.record("rolled back".to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn stop_pod_sandbox(&self, _: &Call, pod: &PodSandbox) {
        self.record(format!("stop {}", pod.name));
    }

    async fn remove_pod_sandbox(&self, _: &Call, pod: &PodSandbox) {
        self.record(format!("remove {}", pod.name));
    }

    async fn create_container(&self, _: &Call, _: &PodSandbox, c: &Container) -> Result<Adjustments, BoxError> {
        self.record(format!("create {}", c.name));
        Ok(ContainerAdjustment::new()
            .env("INTERFACE", "eth1")
            .env("BIG", "x".repeat(100_000))
            .remove_env("OLD")
            .annotation("example.com/a", "b")
            .bind_mount("/host", "/in", ["ro"])
            .cdi_device("example.com/net=eth1")
            .resources(Resources::new().cpu_set("0-1"))
            .sysctl("net.ipv4.ip_forward", "1")
            .into())
    }

    async fn start_container(&self, _: &Call, _: &PodSandbox, container: &Container) -> Result<(), BoxError> {
        self.record(format!("start {}", container.name));
        Ok(())
    }
}

fn start(socket: &Path) -> (Handle, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let events = Events::POD_LIFECYCLE | Event::CreateContainer | Event::StartContainer;
    let handle = Plugin::new("interop", 10).events(events).socket(socket).start(recorder.clone()).unwrap();
    (handle, recorder)
}

async fn synchronized(handle: &Handle) -> State {
    patiently(handle.state().wait_for(State::is_synchronized)).await.unwrap().clone()
}

#[tokio::test]
async fn a_plugin_follows_a_pod_from_beginning_to_end() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let (handle, recorder) = start(&socket);
    let mut runtime = GoRuntime::start(program, &socket, &[]).await;
    runtime.plugins(1).await;
    let State::Synchronized { runtime: other, .. } = synchronized(&handle).await else { unreachable!() };
    assert_eq!((&*other.name, &*other.version), ("interop", "v1.0.0"));
    assert_eq!(other.nri_version.as_deref(), Some("v0.12.2"));
    assert_eq!(other.request_timeout, Duration::from_secs(2));

    runtime.pod("RunPodSandbox", "train").await.unwrap();
    let container = json!({"id": "c1", "name": "main", "env": ["OLD=1"]});
    let created = runtime.relay("CreateContainer", &pod("train"), &container).await.unwrap();
    let adjust = &created["adjust"];
    assert_eq!(adjust["annotations"], json!({"example.com/a": "b"}));
    assert_eq!(adjust["mounts"][0]["options"], json!(["rbind", "ro"]));
    assert_eq!(adjust["CDIDevices"], json!([{"name": "example.com/net=eth1"}]));
    assert_eq!(adjust["linux"]["resources"]["cpu"]["cpus"], "0-1");
    assert_eq!(adjust["linux"]["sysctl"], json!({"net.ipv4.ip_forward": "1"}));
    let env = adjust["env"].as_array().unwrap();
    assert!(env.contains(&json!({"key": "INTERFACE", "value": "eth1"})), "{env:?}");
    assert!(env.iter().any(|one| one["value"].as_str().is_some_and(|value| value.len() == 100_000)));
    runtime.relay("StartContainer", &pod("train"), &container).await.unwrap();
    runtime.pod("StopPodSandbox", "train").await.unwrap();
    runtime.pod("RemovePodSandbox", "train").await.unwrap();
    let expected = [
        "synchronize 0",
        "run train uid-train /run/netns/train",
        "create main",
        "start main",
        "stop train",
        "remove train",
    ];
    assert_eq!(recorder.take(), expected);
}

#[tokio::test]
async fn a_plugin_follows_a_pod_of_an_old_runtime() {
    let Some(program) = nri_0_8() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let (handle, recorder) = start(&socket);
    let mut runtime = GoRuntime::start(program, &socket, &[]).await;
    let State::Synchronized { runtime: other, .. } = synchronized(&handle).await else { unreachable!() };
    assert_eq!(other.nri_version, None);
    runtime.pod("RunPodSandbox", "train").await.unwrap();
    let error = runtime.pod("RunPodSandbox", "failing").await.unwrap_err();
    assert!(error.ends_with("RunPodSandbox of pod default/failing: no interface"), "{error}");
    let container = json!({"id": "c1", "name": "main"});
    let created = runtime.relay("CreateContainer", &pod("train"), &container).await.unwrap();
    assert_eq!(created["adjust"]["CDIDevices"], json!([{"name": "example.com/net=eth1"}]));
    runtime.relay("StartContainer", &pod("train"), &container).await.unwrap();
    runtime.pod("StopPodSandbox", "train").await.unwrap();
    runtime.pod("RemovePodSandbox", "train").await.unwrap();
    let expected = [
        "synchronize 0",
        "run train uid-train /run/netns/train",
        "run failing uid-failing /run/netns/failing",
        "create main",
        "start main",
        "stop train",
        "remove train",
    ];
    assert_eq!(recorder.take(), expected);
}

#[tokio::test]
async fn an_error_fails_the_pod_and_the_plugin_stays_connected() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let mut runtime = GoRuntime::start(program, &socket, &[]).await;
    let (handle, recorder) = start(&socket);
    runtime.plugins(1).await;
    let error = runtime.pod("RunPodSandbox", "failing").await.unwrap_err();
    assert!(error.contains("NRI plugin 10-interop: RunPodSandbox of pod default/failing: no interface"), "{error}");
    assert_eq!(recorder.take()[2..], ["stop failing", "remove failing"], "the runtime undoes the pod");
    runtime.pod("RunPodSandbox", "next").await.unwrap();
    assert_eq!(handle.counters().connections, 1);
}

/// containerd would let the pod start without the plugin if it did not answer.
#[tokio::test]
async fn a_slow_handler_fails_the_pod_and_the_plugin_stays_connected() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    // A quarter of it is left for the answer to arrive.
    let mut runtime = GoRuntime::start(program, &socket, &["--request-timeout", "4s"]).await;
    let (handle, recorder) = start(&socket);
    runtime.plugins(1).await;
    let error = runtime.pod("RunPodSandbox", "slow").await.unwrap_err();
    assert!(error.contains("code = DeadlineExceeded"), "{error}");
    assert!(error.contains("RunPodSandbox of pod default/slow took longer than 2."), "{error}");
    runtime.pod("RunPodSandbox", "next").await.unwrap();
    let calls = recorder.take();
    assert!(calls.contains(&"rolled back".to_owned()) && calls.contains(&"stop slow".to_owned()), "{calls:?}");
    assert_eq!(handle.counters().connections, 1);
}

#[tokio::test]
async fn a_plugin_survives_the_crash_of_its_runtime() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let mut runtime = GoRuntime::start(program, &socket, &[]).await;
    let (handle, recorder) = start(&socket);
    runtime.plugins(1).await;
    runtime.kill();
    patiently(handle.state().wait_for(|state| !state.is_synchronized())).await.unwrap();
    let mut runtime = GoRuntime::start(program, &socket, &["--pods", "3"]).await;
    runtime.plugins(1).await;
    runtime.pod("RunPodSandbox", "train").await.unwrap();
    assert_eq!(recorder.take(), ["synchronize 0", "synchronize 3", "run train uid-train /run/netns/train"]);
}

/// More than a message holds: the library sends them in parts.
#[tokio::test]
async fn many_pods_are_synchronized_in_parts() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let arguments = ["--pods", "400", "--pod-size", "40000", "--request-timeout", "60s"];
    let mut runtime = GoRuntime::start(program, &socket, &arguments).await;
    let (_handle, recorder) = start(&socket);
    runtime.plugins(1).await;
    assert_eq!(recorder.take(), ["synchronize 400"]);
}

#[tokio::test]
async fn a_plugin_updates_containers() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let mut runtime = GoRuntime::start(program, &socket, &[]).await;
    let (handle, _recorder) = start(&socket);
    runtime.plugins(1).await;
    synchronized(&handle).await;
    let update = |id: &str| ContainerUpdate::new(id, Resources::new().cpu_set("3"));
    let updates = Updates::from(update("one")).update(update("two"));
    let failed = patiently(handle.update_containers(updates)).await.unwrap();
    // The runtime of these tests fails the first half.
    assert_eq!(failed.iter().map(ContainerUpdate::container_id).collect::<Vec<_>>(), ["one"]);
    let line = runtime.wait(|line| line["updates"].is_array()).await;
    assert_eq!(line["updates"][1]["linux"]["resources"]["cpu"]["cpus"], "3");
}

/// The plugin is this test binary, which the library launches; see `plugin_process`.
#[tokio::test]
async fn a_plugin_is_launched_by_the_runtime() {
    let Some(program) = program() else { return };
    let directory = tempfile::tempdir().unwrap();
    let [plugins, config] = ["plugins", "conf.d"].map(|name| {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    std::fs::write(format!("{config}/launched.conf"), "level: debug").unwrap();
    let script = format!(
        "#!/bin/sh\nexec '{}' --exact nri::plugin_process --nocapture >'{}' 2>&1\n",
        std::env::current_exe().unwrap().display(),
        directory.path().join("log").display()
    );
    let path = format!("{plugins}/42-launched");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("nri.sock");
    let arguments = ["--plugins", &plugins, "--plugin-config", &config, "--request-timeout", "60s"];
    let mut runtime = GoRuntime::start(program, &socket, &arguments).await;
    runtime.plugins(1).await;
    let error = runtime.pod("RunPodSandbox", "failing").await.unwrap_err();
    assert!(error.contains("NRI plugin 42-launched: RunPodSandbox of pod default/failing: no interface"), "{error}");
}

#[tokio::test]
async fn plugin_process() {
    if std::env::var_os(drakkar_nri::DESCRIPTOR_VARIABLE).is_none() {
        return;
    }
    let (handle, _recorder) = start(Path::new("/nonexistent"));
    handle.ended().await;
}
