//! Events, by both carriers.

use drakkar_nri::api::{
    CreateContainerRequest, Event as ApiEvent, LinuxPids, LinuxResources, PluginInstance, StateChangeEvent,
    UpdateContainerRequest, UpdatePodSandboxRequest, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};
use drakkar_nri::{BoxError, Call, Event, Events, NriPlugin, Plugin, PodSandbox};
use rstest::rstest;

use crate::plugin::{Behaviour, logged, start, start_with};
use crate::runtime::{Runtime, container, pod};

#[rstest]
#[case("RunPodSandbox", ApiEvent::RunPodSandbox, "run train")]
#[case("StopPodSandbox", ApiEvent::StopPodSandbox, "stop train")]
#[case("RemovePodSandbox", ApiEvent::RemovePodSandbox, "remove train")]
#[case("PostUpdatePodSandbox", ApiEvent::PostUpdatePodSandbox, "post-update train")]
#[tokio::test]
async fn a_pod_event_is_the_same_by_both_carriers(
    #[case] method: &str,
    #[case] event: ApiEvent,
    #[case] expected: &str,
) {
    let runtime = Runtime::new();
    let (handle, _recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    logged(&mut log, "synchronize").await;
    assert_eq!(peer.pod_event(method, "train").await, Ok(()));
    assert_eq!(logged(&mut log, "").await, expected);
    assert_eq!(peer.state_change(event, false).await, Ok(()));
    assert_eq!(logged(&mut log, "").await, expected);
    let counters = handle.counters();
    let counters = counters.events.iter().find(|counters| counters.event.name() == method).unwrap();
    assert_eq!((counters.succeeded, counters.failed, counters.expired), (2, 0, 0));
}

#[rstest]
#[case("PostCreateContainer", ApiEvent::PostCreateContainer, "post-create train main")]
#[case("StartContainer", ApiEvent::StartContainer, "start train main")]
#[case("PostStartContainer", ApiEvent::PostStartContainer, "post-start train main")]
#[case("PostUpdateContainer", ApiEvent::PostUpdateContainer, "post-update train main")]
#[case("RemoveContainer", ApiEvent::RemoveContainer, "remove train main")]
#[tokio::test]
async fn a_container_event_is_the_same_by_both_carriers(
    #[case] method: &str,
    #[case] event: ApiEvent,
    #[case] expected: &str,
) {
    let runtime = Runtime::new();
    let (_handle, _recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    logged(&mut log, "synchronize").await;
    let request = CreateContainerRequest { pod: Some(pod("train")), container: Some(container("main")) };
    assert_eq!(peer.call(method, &request).await, Ok(()));
    assert_eq!(logged(&mut log, "").await, expected);
    assert_eq!(peer.state_change(event, true).await, Ok(()));
    assert_eq!(logged(&mut log, "").await, expected);
}

#[tokio::test]
async fn events_with_resources_and_verdicts_arrive() {
    let runtime = Runtime::new();
    let (_handle, _recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let resources = LinuxResources { pids: Some(LinuxPids { limit: 7 }), ..LinuxResources::default() };
    let request = UpdatePodSandboxRequest {
        pod: Some(pod("train")),
        linux_resources: Some(resources.clone()),
        overhead_linux_resources: None,
    };
    assert_eq!(peer.call("UpdatePodSandbox", &request).await, Ok(()));
    assert_eq!(logged(&mut log, "update").await, "update train Some(LinuxPids { limit: 7 })");
    let request = UpdateContainerRequest {
        pod: Some(pod("train")),
        container: Some(container("main")),
        linux_resources: Some(resources),
    };
    assert_eq!(peer.call("UpdateContainer", &request).await, Ok(()));
    assert_eq!(logged(&mut log, "update").await, "update train main");
    let request = ValidateContainerAdjustmentRequest {
        plugins: vec![PluginInstance::default(); 2],
        ..ValidateContainerAdjustmentRequest::default()
    };
    let verdict: ValidateContainerAdjustmentResponse =
        peer.call("ValidateContainerAdjustment", &request).await.unwrap();
    assert_eq!((verdict.reject, &*verdict.reason), (true, "not today"));
    assert_eq!(logged(&mut log, "validate").await, "validate 2 plugins");
}

#[tokio::test]
async fn an_error_of_the_plugin_names_plugin_event_and_pod() {
    let runtime = Runtime::new();
    let (handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Fail);
    let error = peer.run("train").await.unwrap_err();
    assert_eq!(error.code, 2);
    assert_eq!(error.message, "NRI plugin 10-demo: RunPodSandbox of pod default/train: no interface");
    assert_eq!(handle.counters().event(Event::RunPodSandbox).unwrap().failed, 1);
    recorder.behave(Behaviour::Succeed);
    assert_eq!(peer.run("train").await, Ok(()), "the connection is still there");
}

#[tokio::test]
async fn a_panic_of_the_plugin_fails_the_call_alone() {
    let runtime = Runtime::new();
    let (_handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Panic);
    let error = peer.run("train").await.unwrap_err();
    assert_eq!(error.code, 13);
    assert!(error.message.ends_with("the plugin panicked: a bug"), "{}", error.message);
    assert_eq!(peer.pod_event("StopPodSandbox", "train").await, Ok(()), "the end of a pod never fails");
    recorder.behave(Behaviour::Succeed);
    assert_eq!(peer.run("train").await, Ok(()));
}

#[tokio::test]
async fn an_unknown_method_or_service_has_code_12() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    assert_eq!(peer.call::<()>("FlyToTheMoon", &()).await.unwrap_err().code, 12);
    let stream = peer.send("nri.pkg.api.v2.Plugin", "RunPodSandbox", &(), 0).await;
    assert_eq!(peer.result::<()>(stream).await.unwrap_err().code, 12);
    assert_eq!(handle.counters().unknown_methods, 2);
}

#[tokio::test]
async fn an_event_that_makes_no_sense_is_refused() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    for (event, message) in [
        (ApiEvent::CreateContainer, "StateChange with event 4, which is no state change"),
        (ApiEvent::Last, "StateChange with event 15, which is no state change"),
        (ApiEvent::StartContainer, "StartContainer without a container"),
    ] {
        let error = peer.state_change(event, false).await.unwrap_err();
        assert_eq!((error.code, &*error.message), (3, message));
    }
    let error = peer.call::<()>("RunPodSandbox", &()).await.unwrap_err();
    assert_eq!((error.code, &*error.message), (3, "RunPodSandbox without a pod"));
    let request = StateChangeEvent { event: 1, ..StateChangeEvent::default() };
    assert_eq!(peer.call::<()>("StateChange", &request).await.unwrap_err().message, "RunPodSandbox without a pod");
}

#[tokio::test]
async fn events_that_were_not_subscribed_to_do_not_reach_the_plugin() {
    let runtime = Runtime::new();
    let (_handle, _recorder, mut log) = start_with(&runtime, Events::POD_LIFECYCLE);
    let mut peer = runtime.accept_and_synchronize().await;
    logged(&mut log, "synchronize").await;
    assert_eq!(peer.state_change(ApiEvent::StartContainer, true).await, Ok(()));
    assert_eq!(peer.run("train").await, Ok(()));
    assert_eq!(logged(&mut log, "").await, "run train");
}

struct OnlyStop;

impl NriPlugin for OnlyStop {
    async fn stop_pod_sandbox(&self, _: &Call, _: &PodSandbox) {}
}

/// It would have agreed to every pod, without having looked at one.
#[tokio::test]
async fn an_event_that_is_subscribed_to_and_not_handled_fails() -> Result<(), BoxError> {
    let runtime = Runtime::new();
    let plugin = Plugin::new("demo", 10).events(Events::POD_LIFECYCLE | Event::CreateContainer).socket(runtime.path());
    let _handle = plugin.start(OnlyStop.into())?;
    let mut peer = runtime.accept_and_synchronize().await;
    let error = peer.run("train").await.unwrap_err();
    assert!(error.message.ends_with("the plugin subscribed to RunPodSandbox but does not handle it"), "{error:?}");
    assert_eq!(peer.pod_event("StopPodSandbox", "train").await, Ok(()));
    assert_eq!(peer.pod_event("RemovePodSandbox", "train").await, Ok(()));
    Ok(())
}
