//! Plugins on containerd's own library for NRI, unchanged, on the embedded node; and our client beside them. They verify the
//! node's side of NRI, since the library is what plugins run on with containerd and CRI-O.

use std::process::Command;
use std::sync::{Arc, Mutex};

use drakkar_node::nri::{self, Version};
use drakkar_node::{Container, DriverProcess, Node, Pod, assert_eventually};
use drakkar_nri::{BoxError, Call, Events, NriPlugin, Plugin, PodSandbox, PodSandboxExt as _, State};
use rstest::rstest;
use serde_json::Value;

use crate::support::{nri_0_8, program};

/// The events of a pod with one container, from its start to its end.
const LIFE: [&str; 9] = [
    "RunPodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
];

/// Starts a node with NRI; `None` if pods cannot have networks here.
async fn node(config: nri::Config) -> Option<Node> {
    let node = Node::builder().nri(config).start().await.unwrap();
    match node.nri().unwrap().network_problem() {
        Some(problem) => {
            assert!(std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_none(), "namespaces are required: {problem}");
            println!("skipped: pods cannot have networks here: {problem}");
            None
        }
        None => Some(node),
    }
}

/// Starts a plugin on the library of NRI 0.12, and waits until it is synchronized.
async fn plugin(node: &Node, arguments: &[&str]) -> Option<DriverProcess> {
    let mut command = Command::new(program()?.path());
    command.arg("nri-stub").args(arguments);
    let plugin = node.spawn("nri.example.com", command).unwrap();
    node.nri().unwrap().wait_plugin("10-recorder").await.unwrap();
    Some(plugin)
}

/// Returns the lines that a plugin has printed.
fn lines(plugin: &DriverProcess) -> Vec<Value> {
    let log = plugin.log().unwrap();
    // The last line may not be complete.
    log.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn events(plugin: &DriverProcess) -> Vec<String> {
    lines(plugin).iter().map(|line| line["event"].as_str().unwrap_or_default().to_owned()).collect()
}

fn sleeper(name: &str) -> Pod {
    Pod::new(name).container(Container::new("main", ["sleep", "infinity"]))
}

fn network(pod: &Value) -> Option<&str> {
    let namespaces = pod["linux"]["namespaces"].as_array()?;
    namespaces.iter().find(|namespace| namespace["type"] == "network")?["path"].as_str()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_plugin_gets_all_events_and_adjusts_containers() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let file = node.directory().join("file");
    std::fs::write(&file, "mounted\n").unwrap();
    let mount = format!("{}:/run/from-plugin", file.display());
    let Some(plugin) = plugin(&node, &["--env", "FROM=plugin", "--mount", &mount]).await else { return };
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    let output = pod.exec("main", ["sh", "-c", "echo $FROM; cat /run/from-plugin"]).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "plugin\nmounted\n");
    let sandbox = pod.sandbox().unwrap();
    pod.delete().await.unwrap();
    let all = || [&["Configure", "Synchronize"], &LIFE[..]].concat();
    assert_eventually!(events(&plugin) == all(), "{:?}", events(&plugin));
    let lines = lines(&plugin);
    assert_eq!((&lines[0]["runtime"], &lines[0]["version"]), (&"containerd".into(), &"v2.3.4".into()));
    for event in [2, 8] {
        let pod = &lines[event]["pod"];
        assert_eq!(network(pod), sandbox.network.as_ref().and_then(|path| path.to_str()), "{pod}");
        assert_eq!((&pod["id"], &pod["ips"][0]), (&sandbox.id.clone().into(), &sandbox.ips[0].clone().into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_go_plugin_fails_the_sandbox_again_and_again() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let Some(plugin) = plugin(&node, &["--fail", "RunPodSandbox"]).await else { return };
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    let undone = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    let expected = [&["Configure", "Synchronize"], &undone[..], &undone].concat();
    assert_eventually!(events(&plugin).starts_with(&expected.iter().map(ToString::to_string).collect::<Vec<_>>()));
    let reported = pod.events().await.unwrap();
    assert!(reported[0].contains("plugin 10-recorder: RunPodSandbox fails, as it should"), "{reported:?}");
    plugin.kill().await.unwrap();
    pod.running().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_plugin_that_is_too_slow_is_disconnected_and_the_pod_runs() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let Some(mut plugin) = plugin(&node, &["--sleep", "4s"]).await else { return };
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    plugin.wait().await.unwrap();
    assert!(events(&plugin).contains(&"Closed".to_owned()), "{:?}", events(&plugin));
    assert_eventually!(node.nri().unwrap().plugins().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_plugin_joins_the_parts_of_a_synchronization_also_after_a_restart_of_the_runtime() {
    let Some(node) = node(nri::Config::default().max_synchronize(2000)).await else { return };
    let nri = node.nri().unwrap();
    let pods: Vec<String> = (0..8).map(|at| format!("pod-{at}")).collect();
    for name in &pods {
        node.create_pod(sleeper(name)).await.unwrap().running().await.unwrap();
    }
    for restarted in [false, true] {
        if restarted {
            nri.restart().await.unwrap();
        }
        nri.clear_log();
        let Some(plugin) = plugin(&node, &[]).await else { return };
        let parts = nri.log().iter().filter(|entry| entry.call == Some(nri::Call::Synchronize)).count();
        assert!(parts > 1, "{:?}", nri.log());
        assert_eventually!(lines(&plugin).iter().any(|line| line["event"] == "Synchronize"));
        let lines = lines(&plugin);
        let all = lines.iter().rfind(|line| line["event"] == "Synchronize").unwrap();
        assert_eq!((all["pods"].as_array().unwrap().len(), all["containers"].as_array().unwrap().len()), (8, 8));
        plugin.kill().await.unwrap();
        assert_eventually!(nri.plugins().is_empty());
    }
}

#[rstest]
#[case(Version::V0_6)]
#[case(Version::V0_8)]
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_go_plugin_works_with_an_older_runtime(#[case] version: Version) {
    let Some(node) = node(nri::Config::default().version(version)).await else { return };
    let Some(plugin) = plugin(&node, &["--env", "FROM=plugin"]).await else { return };
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    let output = pod.exec("main", ["sh", "-c", "echo $FROM"]).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "plugin\n");
    pod.delete().await.unwrap();
    let all = || [&["Configure", "Synchronize"], &LIFE[..]].concat();
    assert_eventually!(events(&plugin) == all(), "{:?}", events(&plugin));
    let lines = lines(&plugin);
    assert!(network(&lines[2]["pod"]).is_some() && network(&lines[8]["pod"]).is_none(), "{lines:?}");
}

#[rstest]
#[case(Version::V0_8)]
#[case(Version::V0_12)]
#[tokio::test(flavor = "multi_thread")]
async fn a_go_plugin_on_the_library_of_0_8_works_with_both(#[case] version: Version) {
    let Some(node) = node(nri::Config::default().version(version)).await else { return };
    let nri = node.nri().unwrap();
    let Some(program) = nri_0_8() else { return };
    let mut command = Command::new(program.path());
    command.arg("nri-stub");
    let plugin = node.spawn("nri.example.com", command).unwrap();
    nri.wait_plugin("08-recorder08").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    let expected = ["Synchronize", "RunPodSandbox", "StartContainer", "StopPodSandbox", "RemovePodSandbox"];
    assert_eventually!(events(&plugin) == expected, "{:?}", events(&plugin));
    let refused = nri.log().iter().filter(|entry| matches!(entry.answer, nri::Answer::Error { code: 12, .. })).count();
    assert_eq!(refused, usize::from(version == Version::V0_12), "the calls of 0.12 are tried once");
}

/// A plugin on our client that records pods with their networks.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn record(&self, event: &str, pod: &PodSandbox) {
        let network = pod.network_namespace().map(|path| path.display().to_string()).unwrap_or_default();
        self.0.lock().unwrap().push(format!("{event} {} {network}", pod.id));
    }

    fn recorded(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl NriPlugin for Recorder {
    async fn run_pod_sandbox(&self, call: &Call, pod: &PodSandbox) -> Result<(), BoxError> {
        if pod.name == "slow" && !self.recorded().iter().any(|line| line.starts_with("remove")) {
            call.abandoned().await;
        }
        self.record("run", pod);
        Ok(())
    }

    async fn stop_pod_sandbox(&self, _: &Call, pod: &PodSandbox) {
        self.record("stop", pod);
    }

    async fn remove_pod_sandbox(&self, _: &Call, pod: &PodSandbox) {
        self.record("remove", pod);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_sees_what_a_go_plugin_sees() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let Some(plugin) = plugin(&node, &[]).await else { return };
    let recorder = Arc::new(Recorder::default());
    let ours = Plugin::new("ours", 20).events(Events::POD_LIFECYCLE).socket(node.nri().unwrap().socket());
    let ours = ours.start(recorder.clone()).unwrap();
    ours.state().wait_for(State::is_synchronized).await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    assert_eventually!(recorder.recorded().len() == 3, "{:?}", recorder.recorded());
    let of_go = || -> Vec<String> {
        let lines = lines(&plugin);
        let line = |event: &str, name: &str| {
            let line = lines.iter().find(|line| line["event"] == event)?;
            Some(format!("{name} {} {}", line["pod"]["id"].as_str()?, network(&line["pod"])?))
        };
        [("RunPodSandbox", "run"), ("StopPodSandbox", "stop"), ("RemovePodSandbox", "remove")]
            .into_iter()
            .filter_map(|(event, name)| line(event, name))
            .collect()
    };
    assert_eventually!(of_go() == recorder.recorded(), "{:?} {:?}", of_go(), recorder.recorded());
    ours.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_fails_a_slow_pod_in_time_and_comes_back_after_a_restart_of_the_runtime() {
    // The client answers after three quarters of it; the rest is for a busy machine.
    let timeout = std::time::Duration::from_secs(6);
    let Some(node) = node(nri::Config::default().request_timeout(timeout)).await else { return };
    let nri = node.nri().unwrap();
    let recorder = Arc::new(Recorder::default());
    let ours = Plugin::new("ours", 20).events(Events::POD_LIFECYCLE).socket(nri.socket());
    let ours = ours.start(recorder.clone()).unwrap();
    nri.wait_plugin("20-ours").await.unwrap();
    // The first attempt fails with an error before the runtime's deadline, so the pod does not run without the plugin.
    let pod = node.create_pod(sleeper("slow")).await.unwrap();
    pod.running().await.unwrap();
    let failed = nri.log().into_iter().find(|entry| matches!(entry.answer, nri::Answer::Error { .. }));
    assert_eq!(failed.and_then(|entry| entry.call), Some(nri::Event::RunPodSandbox.into()), "{:?}", nri.log());
    assert!(!nri.log().iter().any(|entry| matches!(entry.answer, nri::Answer::Closed(_))), "{:?}", nri.log());
    nri.restart().await.unwrap();
    nri.wait_plugin("20-ours").await.unwrap();
    let next = node.create_pod(sleeper("next")).await.unwrap();
    next.running().await.unwrap();
    let sandbox = next.sandbox().unwrap();
    assert!(recorder.recorded().iter().any(|line| line.starts_with(&format!("run {}", sandbox.id))));
    ours.stop().await;
}
