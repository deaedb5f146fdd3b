//! The session with a plugin: registration, configuration, synchronization, and both carriers of events.

use std::time::{Duration, Instant};

use drakkar_node::assert_eventually;
use drakkar_node::nri::api::v1alpha1::{
    ConfigureRequest, ContainerUpdate, Event, StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
    UpdateContainersRequest,
};
use drakkar_node::nri::{self, Version};
use prost::Message as _;
use tokio::net::UnixStream;

use crate::support::plugin::{Connected, Plugin, Reply, network};
use crate::support::{node, sleeper};

fn configure(plugin: &Connected) -> ConfigureRequest {
    ConfigureRequest::decode(&plugin.of("Configure")[0].payload[..]).unwrap()
}

fn synchronize(plugin: &Connected) -> Vec<SynchronizeRequest> {
    let decode = |payload: &[u8]| SynchronizeRequest::decode(payload).unwrap();
    plugin.of("Synchronize").iter().map(|call| decode(&call.payload)).collect()
}

#[tokio::test]
async fn a_plugin_learns_the_runtime_its_timeouts_and_what_runs() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    let plugin = Plugin::new("10", "late").connect(nri.socket()).await;
    nri.wait_plugin("10-late").await.unwrap();
    let request = configure(&plugin);
    assert_eq!((request.runtime_name.as_str(), request.runtime_version.as_str()), ("containerd", "v2.3.4"));
    assert_eq!((request.registration_timeout, request.request_timeout), (5000, 2000));
    assert_eq!(request.nri_version, "v0.12.0");
    let [all] = &synchronize(&plugin)[..] else { panic!("{:?}", plugin.methods()) };
    assert_eq!((all.pods.len(), all.containers.len(), all.more), (1, 1, false));
    assert_eq!((all.pods[0].uid.as_str(), network(&all.pods[0]).is_some()), (pod.uid(), true));
    assert_eq!(all.containers[0].pod_sandbox_id, all.pods[0].id);
    assert_eq!(nri.plugins()[0].events, 0x3fff, "a mask of 0 subscribes to everything");
}

#[tokio::test]
async fn a_mask_with_an_unknown_event_ends_the_connection() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "new").events(0x4001).connect(nri.socket()).await;
    assert_eventually!(plugin.is_closed());
    let reason = "10-new: closed: the plugin subscribed to events that do not exist: 0x4000";
    assert_eventually!(nri.log().iter().any(|entry| entry.to_string() == reason), "{:?}", nri.log());
}

#[tokio::test]
async fn a_plugin_that_does_not_register_blocks_the_next_one_only_until_its_timeout() {
    let config = nri::Config::default().registration_timeout(Duration::from_millis(200));
    let Some(node) = node(config).await else { return };
    let nri = node.nri().unwrap();
    let started = Instant::now();
    let silent = UnixStream::connect(nri.socket()).await.unwrap();
    let plugin = Plugin::new("10", "next").connect(nri.socket()).await;
    nri.wait_plugin("10-next").await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert!(!plugin.is_closed());
    silent.readable().await.unwrap();
    assert_eq!(silent.try_read(&mut [0]).unwrap(), 0, "the connection is closed");
    for (index, name) in [("1", "short"), ("10", "no spaces"), ("ab", "letters")] {
        let refused = Plugin::new(index, name).connect(nri.socket()).await;
        assert_eventually!(refused.is_closed());
    }
}

#[tokio::test]
async fn synchronization_comes_in_parts_and_only_for_plugins_that_can_handle_them() {
    let config = nri::Config::default().max_synchronize(1500);
    let Some(node) = node(config).await else { return };
    let nri = node.nri().unwrap();
    let names: Vec<String> = (0..6).map(|at| format!("pod-{at}")).collect();
    for name in &names {
        node.create_pod(sleeper(name)).await.unwrap().running().await.unwrap();
    }
    let plugin = Plugin::new("10", "parts").connect(nri.socket()).await;
    nri.wait_plugin("10-parts").await.unwrap();
    let parts = synchronize(&plugin);
    assert!(parts.len() > 1, "{parts:?}");
    assert!(parts.iter().all(|part| part.encoded_len() <= 1500 || part.pods.len() == 1));
    let mut pods: Vec<&str> = parts.iter().flat_map(|part| &part.pods).map(|pod| pod.name.as_str()).collect();
    pods.sort_unstable();
    assert_eq!(pods, names);
    assert_eq!(parts.iter().map(|part| part.containers.len()).sum::<usize>(), 6);

    let unaware = Plugin::new("20", "unaware").answers(|call| match call.method.as_str() {
        "Synchronize" => {
            // `more` is not returned.
            let update = ContainerUpdate { container_id: "x".into(), ..ContainerUpdate::default() };
            Reply::message(&SynchronizeResponse { update: vec![update], more: false })
        }
        _ => Reply::empty(),
    });
    let unaware = unaware.connect(nri.socket()).await;
    assert_eventually!(unaware.is_closed());
    assert_eq!(synchronize(&unaware).len(), 1);
}

#[tokio::test]
async fn a_plugin_without_the_calls_of_0_12_gets_state_changes_from_then_on() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "old").events(7).answers(|call| match call.method.as_str() {
        "StateChange" | "Synchronize" => Reply::empty(),
        _ => Reply::Error(12, "method"),
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin("10-old").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    let methods = ["Configure", "Synchronize", "RunPodSandbox", "StateChange", "StateChange", "StateChange"];
    assert_eventually!(plugin.methods() == methods, "{:?}", plugin.methods());
    let decode = |payload: &[u8]| StateChangeEvent::decode(payload).unwrap().event();
    let events: Vec<Event> = plugin.of("StateChange").iter().map(|call| decode(&call.payload)).collect();
    assert_eq!(events, [Event::RunPodSandbox, Event::StopPodSandbox, Event::RemovePodSandbox]);
}

#[tokio::test]
async fn an_older_runtime_has_state_changes_a_smaller_mask_and_tells_less() {
    let Some(node) = node(nri::Config::default().version(Version::V0_6)).await else { return };
    let nri = node.nri().unwrap();
    let refused = Plugin::new("10", "new").events(0x2001).connect(nri.socket()).await;
    assert_eventually!(refused.is_closed());
    let plugin = Plugin::new("10", "any").connect(nri.socket()).await;
    nri.wait_plugin("10-any").await.unwrap();
    let request = configure(&plugin);
    assert_eq!((request.registration_timeout, request.request_timeout), (0, 0));
    assert_eq!((request.runtime_version.as_str(), request.nri_version.as_str()), ("v1.7.25", ""));
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap().delete().await.unwrap();
    let decode = |payload: &[u8]| StateChangeEvent::decode(payload).unwrap();
    let changes = || plugin.of("StateChange").iter().map(|call| decode(&call.payload)).collect::<Vec<_>>();
    let events = || changes().iter().map(StateChangeEvent::event).collect::<Vec<_>>();
    let expected = [
        Event::RunPodSandbox,
        Event::PostCreateContainer,
        Event::StartContainer,
        Event::PostStartContainer,
        Event::StopPodSandbox,
        Event::RemoveContainer,
        Event::RemovePodSandbox,
    ];
    assert_eventually!(events() == expected, "{:?}", events());
    let changes = changes();
    assert!(network(changes[0].pod.as_ref().unwrap()).is_some() && changes[0].pod.as_ref().unwrap().ips.is_empty());
    assert_eq!(network(changes[4].pod.as_ref().unwrap()), None, "no namespaces in StopPodSandbox");
    assert_eq!(plugin.of("CreateContainer").len() + plugin.of("StopContainer").len(), 2, "these two are calls");
}

#[tokio::test]
async fn the_oldest_runtime_leaves_a_plugin_connected_that_did_not_synchronize() {
    for (version, is_closed) in [(Version::V0_6, false), (Version::V0_8, true)] {
        let Some(node) = node(nri::Config::default().version(version)).await else { return };
        let nri = node.nri().unwrap();
        let fails = Plugin::new("10", "fails").answers(|call| match call.method.as_str() {
            "Synchronize" => Reply::Error(2, "no"),
            _ => Reply::empty(),
        });
        let fails = fails.connect(nri.socket()).await;
        // Plugins connect one after the other: when this one is connected, the other was handled.
        let _next = Plugin::new("20", "next").connect(nri.socket()).await;
        nri.wait_plugin("20-next").await.unwrap();
        node.create_pod(sleeper("web")).await.unwrap().running().await.unwrap();
        assert_eq!(fails.methods(), ["Configure", "Synchronize"], "no events");
        assert_eventually!(fails.is_closed() == is_closed);
    }
}

#[tokio::test]
async fn updates_of_containers_are_recorded_and_those_of_unknown_ones_fail() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "updates").connect(nri.socket()).await;
    nri.wait_plugin("10-updates").await.unwrap();
    node.create_pod(sleeper("web")).await.unwrap().running().await.unwrap();
    let update = |id: &str| ContainerUpdate { container_id: id.to_owned(), ..ContainerUpdate::default() };
    let known = update(&plugin.of("CreateContainer")[0].container().id);
    let request = UpdateContainersRequest { update: vec![known, update("unknown")], evict: vec![] };
    let answer = plugin.update_containers(&request).await;
    assert_eq!(answer.failed, [update("unknown")]);
    let [recorded] = &nri.updates()[..] else { panic!("{:?}", nri.updates()) };
    assert_eq!((recorded.plugin.as_str(), &recorded.updates, recorded.call), ("10-updates", &request, None));
}

#[tokio::test]
async fn while_a_container_stops_no_plugin_synchronizes_and_then_no_pod_starts() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    // Stops only when it is killed, or when the file is there.
    let released = node.directory().join("released");
    let script =
        format!("trap 'echo stopping' TERM; echo up; while ! test -e {}; do sleep 0.05; done", released.display());
    let main = drakkar_node::Container::new("main", ["sh", "-c", &script]);
    let mut slow = serde_json::Value::from(drakkar_node::Pod::new("slow").container(main));
    slow["spec"]["terminationGracePeriodSeconds"] = 600.into();
    let directory = node.directory().to_str().unwrap();
    slow["spec"]["volumes"] = serde_json::json!([{"name": "node", "hostPath": {"path": directory}}]);
    slow["spec"]["containers"][0]["volumeMounts"] = serde_json::json!([{"name": "node", "mountPath": directory}]);
    let slow = node.create_pod(slow).await.unwrap();
    slow.running().await.unwrap();
    assert_eventually!(slow.logs("main").is_ok_and(|logs| logs == "up\n"));
    slow.start_deletion().await.unwrap();
    assert_eventually!(slow.logs("main").is_ok_and(|logs| logs.ends_with("stopping\n")));

    let plugin = Plugin::new("10", "waits").connect(nri.socket()).await;
    assert_eventually!(plugin.methods() == ["Configure"]);
    let next = node.create_pod(sleeper("next")).await.unwrap();
    let unready = next.with_timeout(Duration::from_millis(500)).running().await.is_err();
    assert!(unready && next.sandbox().is_none(), "a new sandbox waits behind the plugin");
    assert_eq!(plugin.methods(), ["Configure"]);
    std::fs::write(&released, "").unwrap();
    next.running().await.unwrap();
    assert_eq!(plugin.methods()[..2], ["Configure", "Synchronize"]);
    assert_eq!(plugin.of("RunPodSandbox")[0].pod().name, "next");
    assert_eq!(synchronize(&plugin)[0].containers, []);
    slow.gone().await.unwrap();
}
