//! Faults on demand, and the runtime's own end.

use std::time::Duration;

use drakkar_node::nri::api::v1alpha1::SynchronizeRequest;
use drakkar_node::nri::{self, Answer, Call, Event, Fault};
use drakkar_node::{Node, assert_eventually};
use prost::Message as _;

use crate::support::plugin::{Connected, Plugin, network};
use crate::support::{node, sleeper};

async fn connect(node: &Node) -> Connected {
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "demo").events(7).connect(nri.socket()).await;
    nri.wait_plugin("10-demo").await.unwrap();
    plugin
}

/// Returns the answer to the only call of a kind.
fn answer(node: &Node, event: Event) -> Answer {
    let of_event = |entry: &nri::Entry| entry.call == Some(event.into());
    let found: Vec<nri::Entry> = node.nri().unwrap().log().into_iter().filter(of_event).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].answer.clone()
}

#[tokio::test]
async fn a_connection_can_be_cut_now_before_a_call_and_during_a_call() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = connect(&node).await;
    assert!(nri.cut("10-demo") && !nri.cut("20-other"));
    assert_eventually!(plugin.is_closed());
    for (fault, name, delivered) in [(Fault::CutBefore, "before", 0), (Fault::CutDuring, "during", 1)] {
        let plugin = connect(&node).await;
        nri.clear_log();
        nri.inject(Event::RunPodSandbox, fault);
        node.create_pod(sleeper(name)).await.unwrap().running().await.unwrap();
        assert_eventually!(plugin.is_closed());
        assert_eq!(plugin.of("RunPodSandbox").len(), delivered, "{fault:?}");
        assert_eq!(answer(&node, Event::RunPodSandbox), Answer::Closed("cut by the test".to_owned()));
    }
}

#[tokio::test]
async fn a_call_can_be_late_and_one_that_is_too_late_ends_the_connection() {
    let config = nri::Config::default().request_timeout(Duration::from_secs(1));
    let Some(node) = node(config).await else { return };
    let nri = node.nri().unwrap();
    let plugin = connect(&node).await;
    nri.inject(Event::RunPodSandbox, Fault::Late(Duration::from_millis(300)));
    nri.inject(Event::RunPodSandbox, Fault::Late(Duration::from_secs(5)));
    node.create_pod(sleeper("late")).await.unwrap().running().await.unwrap();
    assert!(plugin.of("RunPodSandbox")[0].timeout <= 700_000_000, "what is left of the timeout");
    node.create_pod(sleeper("too-late")).await.unwrap().running().await.unwrap();
    assert_eventually!(plugin.is_closed());
    assert_eq!(plugin.of("RunPodSandbox").len(), 1);
}

#[tokio::test]
async fn an_event_can_be_lost() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = connect(&node).await;
    nri.inject_always(Event::StopPodSandbox, Fault::NotSent);
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    assert_eventually!(plugin.methods()[2..] == ["RunPodSandbox", "RemovePodSandbox"], "{:?}", plugin.methods());
    assert_eq!(answer(&node, Event::StopPodSandbox), Answer::NotSent);
    nri.clear_faults();
    let pod = node.create_pod(sleeper("web-2")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    assert_eventually!(plugin.of("StopPodSandbox").len() == 1);
}

#[tokio::test]
async fn a_connection_can_be_cut_while_a_plugin_connects() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    nri.inject(Call::Configure, Fault::CutDuring);
    nri.inject(Call::Synchronize, Fault::CutDuring);
    for method in ["Configure", "Synchronize"] {
        let plugin = Plugin::new("10", "demo").connect(nri.socket()).await;
        assert_eventually!(plugin.is_closed());
        assert_eq!(plugin.methods().last().map(String::as_str), Some(method));
    }
    connect(&node).await;
}

#[tokio::test]
async fn a_restarted_runtime_has_its_pods_but_never_announces_their_end() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let before = connect(&node).await;
    let pod = node.create_pod(sleeper("before")).await.unwrap();
    pod.running().await.unwrap();
    let sandbox = pod.sandbox().unwrap();
    let process = pod.process("main");

    nri.stop().await.unwrap();
    assert_eventually!(before.is_closed());
    assert!(!nri.socket().exists());
    assert_eq!(pod.process("main"), process, "containers outlive the runtime");
    let during = node.create_pod(sleeper("during")).await.unwrap();
    nri.start().unwrap();
    let plugin = Plugin::new("10", "demo").connect(nri.socket()).await;
    nri.wait_plugin("10-demo").await.unwrap();
    during.running().await.unwrap();
    let all = SynchronizeRequest::decode(&plugin.of("Synchronize")[0].payload[..]).unwrap();
    let known = all.pods.iter().find(|pod| pod.id == sandbox.id).unwrap();
    assert_eq!(network(known).as_deref(), sandbox.network.as_ref().and_then(|path| path.to_str()));
    assert!(all.containers.iter().any(|container| container.pod_sandbox_id == sandbox.id), "{all:?}");

    pod.delete().await.unwrap();
    during.delete().await.unwrap();
    let of = |method: &str| plugin.of(method).iter().map(|call| call.pod().name).collect::<Vec<_>>();
    assert_eventually!(of("RemovePodSandbox").contains(&"during".to_owned()));
    assert_eq!((of("StopPodSandbox"), of("RemovePodSandbox")), (vec!["during".into()], vec!["during".into()]));
    assert_eq!(of("StopContainer"), ["before", "during"], "the runtime finds its containers again, but not its pods");
    assert!(!sandbox.network.unwrap().exists());
}

#[tokio::test]
async fn a_restart_in_the_middle_of_an_event_fails_the_sandbox_and_leaves_nothing_of_it() {
    let config = nri::Config::default().request_timeout(Duration::from_secs(60));
    let Some(node) = node(config).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "hangs").events(7).answers(|call| match call.method.as_str() {
        "RunPodSandbox" => crate::support::plugin::Reply::Never,
        _ => crate::support::plugin::Reply::empty(),
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin("10-hangs").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    assert_eventually!(plugin.of("RunPodSandbox").len() == 1);
    nri.restart().await.unwrap();
    pod.running().await.unwrap();
    let events = pod.events().await.unwrap();
    let failed = "FailedCreatePodSandBox: Failed to create pod sandbox: the container runtime was restarted";
    assert_eq!(events, [failed]);
    let first = plugin.of("RunPodSandbox")[0].clone();
    assert_ne!(pod.sandbox().unwrap().id, first.pod().id);
    assert!(!std::path::Path::new(&first.network().unwrap()).exists());
    assert_eq!(plugin.methods().last().map(String::as_str), Some("RunPodSandbox"), "nothing is undone");
}

#[tokio::test]
async fn a_reboot_ends_sandboxes_and_the_kubelet_makes_new_ones() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let pod = drakkar_node::Pod::new("web").restart_policy("Always");
    let pod = pod.container(drakkar_node::Container::new("main", ["sleep", "infinity"]));
    let pod = node.create_pod(pod).await.unwrap();
    pod.running().await.unwrap();
    let before = pod.sandbox().unwrap();
    node.reboot().await.unwrap();
    assert_eventually!(pod.sandbox().is_some_and(|sandbox| sandbox.id != before.id));
    assert_eventually!(pod.process("main").is_some());
    assert!(!before.network.unwrap().exists());
    assert_eq!(nri.sandboxes().len(), 1);
}
