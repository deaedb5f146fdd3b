//! The events of pods and containers: their order, their content, and what failures do.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drakkar_node::assert_eventually;
use drakkar_node::nri::{self, Answer, Event};

use crate::support::plugin::{Call, Plugin, Reply};
use crate::support::{node, on_host_network, script, sleeper};

#[tokio::test]
async fn a_pod_is_announced_in_containerds_order() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "order").events(0x07ff).connect(nri.socket()).await;
    nri.wait_plugin("10-order").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    let started = [
        "Configure",
        "Synchronize",
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
    ];
    assert_eventually!(plugin.methods() == started, "{:?}", plugin.methods());
    let network = plugin.of("RunPodSandbox")[0].network().unwrap();
    assert!(Path::new(&network).exists() && network.starts_with(node.directory().to_str().unwrap()), "{network}");
    let sandbox = pod.sandbox().unwrap();
    assert_eq!(sandbox.network.as_deref(), Some(Path::new(&network)));
    let run = plugin.of("RunPodSandbox")[0].pod();
    assert_eq!((run.id, run.uid.as_str(), run.name.as_str()), (sandbox.id.clone(), pod.uid(), "web"));
    assert_eq!(run.ips, sandbox.ips);
    let container = plugin.of("PostStartContainer")[0].container();
    assert_eq!(container.pid, pod.process("main").unwrap());
    assert_eq!((container.pod_sandbox_id, container.args), (sandbox.id, vec!["sleep".into(), "infinity".into()]));

    pod.delete().await.unwrap();
    let ended = ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"];
    assert_eventually!(plugin.methods()[7..] == ended, "{:?}", plugin.methods());
    assert_eq!(plugin.of("StopPodSandbox")[0].network(), Some(network.clone()));
    assert!(!Path::new(&network).exists());
    assert_eventually!(nri.sandboxes().is_empty());
    let log: Vec<String> = nri.log().iter().map(ToString::to_string).collect();
    assert!(log.contains(&"10-order StopPodSandbox default/web: success".to_owned()), "{log:?}");
}

#[tokio::test]
async fn a_container_that_ends_by_itself_is_announced_before_its_sandbox_stops() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let mask = 1 << 1 | 1 << 9;
    let plugin = Plugin::new("10", "exits").events(mask).connect(nri.socket()).await;
    nri.wait_plugin("10-exits").await.unwrap();
    let pod = node.create_pod(script("job", "exit 3")).await.unwrap();
    assert_eq!(pod.finished().await.unwrap(), "Failed");
    let methods = ["Configure", "Synchronize", "StopContainer", "StopPodSandbox"];
    assert_eventually!(plugin.methods() == methods, "{:?}", plugin.methods());
    assert_eq!(plugin.of("StopContainer")[0].container().exit_code, 3);
}

#[tokio::test]
async fn plugins_are_called_in_the_order_of_their_indices() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let mut plugins = Vec::new();
    for (index, name) in [("90", "last"), ("10", "first"), ("50", "second")] {
        plugins.push(Plugin::new(index, name).events(1).connect(nri.socket()).await);
        nri.wait_plugin(&format!("{index}-{name}")).await.unwrap();
    }
    node.create_pod(sleeper("web")).await.unwrap().running().await.unwrap();
    let called = nri.log().into_iter().filter(|entry| entry.call == Some(Event::RunPodSandbox.into()));
    let order: Vec<String> = called.map(|entry| entry.plugin).collect();
    assert_eq!(order, ["10-first", "50-second", "90-last"]);
}

#[tokio::test]
async fn a_failed_sandbox_is_undone_and_retried_with_a_new_id_and_a_new_network() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let attempts = AtomicUsize::new(0);
    let plugin = Plugin::new("10", "fails").events(7).answers(move |call| match call.method.as_str() {
        "RunPodSandbox" if attempts.fetch_add(1, Ordering::Relaxed) < 2 => Reply::Error(2, "no such interface"),
        _ => Reply::empty(),
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin("10-fails").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    let undone = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
    let expected = [&undone[..], &undone, &undone[..1]].concat();
    assert_eq!(plugin.methods()[2..], expected);
    let ids: Vec<String> = plugin.calls()[2..].iter().map(|call| call.pod().id).collect();
    assert!(ids[0] == ids[1] && ids[0] == ids[2] && ids[0] != ids[3] && ids[3] != ids[6], "{ids:?}");
    let networks: Vec<Option<String>> = plugin.of("RunPodSandbox").iter().map(Call::network).collect();
    assert!(networks[0] != networks[1] && networks[1] != networks[2], "{networks:?}");
    assert!(!Path::new(networks[0].as_ref().unwrap()).exists());
    assert_eq!(plugin.calls()[2].pod().uid, plugin.calls()[8].pod().uid);
    let events = pod.events().await.unwrap();
    let event = "FailedCreatePodSandBox: Failed to create pod sandbox: NRI RunPodSandbox failed: plugin 10-fails: no such \
                 interface (code 2)";
    assert_eq!(events, [event]);
    assert!(!plugin.is_closed(), "an error does not end the connection");
}

#[tokio::test]
async fn a_plugin_that_is_too_slow_is_disconnected_and_the_pod_goes_on() {
    let config = nri::Config::default().request_timeout(Duration::from_millis(300));
    let Some(node) = node(config).await else { return };
    let nri = node.nri().unwrap();
    let slow = Plugin::new("10", "slow").events(1).answers(|call| match call.method.as_str() {
        "RunPodSandbox" => Reply::Never,
        _ => Reply::empty(),
    });
    let slow = slow.connect(nri.socket()).await;
    nri.wait_plugin("10-slow").await.unwrap();
    let next = Plugin::new("20", "next").events(1).connect(nri.socket()).await;
    nri.wait_plugin("20-next").await.unwrap();
    node.create_pod(sleeper("web")).await.unwrap().running().await.unwrap();
    assert_eventually!(slow.is_closed());
    assert!((1..=300_000_000).contains(&slow.of("RunPodSandbox")[0].timeout));
    assert_eq!(next.of("RunPodSandbox").len(), 1, "later plugins are called");
    let log = nri.log();
    let answer = log.iter().find(|entry| entry.plugin == "10-slow" && entry.pod == "default/web");
    let reason = "RunPodSandbox was not answered in time";
    assert_eq!(answer.unwrap().answer, Answer::Closed(reason.to_owned()), "{log:?}");
    assert_eventually!(nri.plugins().len() == 1);
}

#[tokio::test]
async fn errors_of_stop_and_remove_do_not_hold_up_a_pod() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "stuck").answers(|call| match call.method.as_str() {
        "StopPodSandbox" | "RemovePodSandbox" | "StopContainer" | "RemoveContainer" | "PostStartContainer" => {
            Reply::Error(2, "no")
        }
        _ => Reply::empty(),
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin("10-stuck").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    assert_eventually!(plugin.of("RemovePodSandbox").len() == 1);
    assert_eventually!(nri.sandboxes().is_empty());
}

#[tokio::test]
async fn a_pod_with_the_hosts_network_has_no_network_namespace_in_its_events() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "host").events(1).connect(nri.socket()).await;
    nri.wait_plugin("10-host").await.unwrap();
    let pod = node.create_pod(on_host_network(sleeper("agent"))).await.unwrap();
    pod.running().await.unwrap();
    assert_eq!(plugin.of("RunPodSandbox")[0].network(), None);
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let inside = pod.exec("main", ["readlink", "/proc/self/ns/net"]).await.unwrap();
    assert_eq!(String::from_utf8(inside.stdout).unwrap().trim(), own.to_str().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_outlives_a_kubelet_that_is_killed_while_it_is_made() {
    let config = nri::Config::default().request_timeout(Duration::from_secs(30));
    let Some(node) = node(config).await else { return };
    let nri = node.nri().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let plugin = Plugin::new("10", "slow").events(7).answers(move |call| {
        if call.method == "RunPodSandbox" {
            // Until the kubelet was killed and started again.
            tokio::task::block_in_place(|| held.lock().unwrap().recv().unwrap());
        }
        Reply::empty()
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin("10-slow").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    assert_eventually!(plugin.of("RunPodSandbox").len() == 1);
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    release.send(()).unwrap();
    pod.running().await.unwrap();
    assert_eq!(plugin.methods(), ["Configure", "Synchronize", "RunPodSandbox"]);
    // Nor does a kubelet that starts later make another.
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    let sandbox = pod.sandbox().unwrap();
    pod.delete().await.unwrap();
    assert_eventually!(plugin.of("RemovePodSandbox").len() == 1);
    assert_eq!(plugin.of("StopPodSandbox")[0].pod().id, sandbox.id);
    assert_eq!(plugin.of("RunPodSandbox").len(), 1);
}
