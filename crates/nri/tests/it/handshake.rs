//! Registration, `Configure` and `Synchronize`.

use drakkar_nri::api::{ConfigureRequest, SynchronizeRequest, SynchronizeResponse};
use drakkar_nri::{ConnectionError, Event, Events, Plugin, StartError, State};
use drakkar_nri_api::PLUGIN_SERVICE;
use rstest::rstest;

use crate::plugin::{Behaviour, Recorder, logged, start, start_with, wait_for};
use crate::runtime::{Runtime, configure, container, pod};

#[tokio::test]
async fn a_plugin_registers_and_is_synchronized() {
    let runtime = Runtime::new();
    let (handle, _recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept().await;
    let register = peer.register().await;
    assert_eq!((&*register.plugin_name, &*register.plugin_idx, &*register.nri_version), ("demo", "10", "0.12.2"));
    assert!(matches!(wait_for(&handle, |state| matches!(state, State::Registered)).await, State::Registered));
    assert_eq!(peer.configure(&configure()).await, 0x3fff);
    assert!(!handle.state().borrow().is_synchronized());
    peer.synchronize(vec![pod("a"), pod("b")]).await;
    let State::Synchronized { runtime, .. } = wait_for(&handle, State::is_synchronized).await else { unreachable!() };
    assert_eq!((&*runtime.name, &*runtime.version), ("containerd", "v2.3.4"));
    assert_eq!(runtime.nri_version.as_deref(), Some("0.12.2"));
    assert_eq!(logged(&mut log, "configure").await, r#"configure containerd v2.3.4 "" 0x3fff"#);
    assert_eq!(logged(&mut log, "synchronize").await, "synchronize 2 0");
    let counters = handle.counters();
    assert_eq!((counters.connections, counters.registrations, counters.synchronizations), (1, 1, 1));
}

/// Runtimes call `Configure` as soon as they see the registration, which can be before they answer it.
#[tokio::test]
async fn configure_can_come_before_the_answer_to_the_registration() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept().await;
    let (stream, _) = peer.plugins_call().await;
    assert_eq!(peer.configure(&configure()).await, 0x3fff);
    peer.synchronize(Vec::new()).await;
    wait_for(&handle, State::is_synchronized).await;
    peer.answer(stream, &()).await;
    assert_eq!(peer.run("train").await, Ok(()));
    assert!(handle.state().borrow().is_synchronized(), "a late answer does not undo it");
}

#[rstest]
#[case::old_containerd("containerd", "v2.1.4", "", 0x07ff)]
#[case::new_containerd("containerd", "v2.2.1", "", 0x3fff)]
#[case::crio_between("cri-o", "1.33.0", "", 0x1fff)]
#[case::development_build("drakkar", "", "(devel)", 0x3fff)]
#[tokio::test]
async fn only_events_that_the_runtime_knows_are_in_the_mask(
    #[case] name: &str,
    #[case] version: &str,
    #[case] nri_version: &str,
    #[case] mask: i32,
) {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.register().await;
    let request = ConfigureRequest {
        runtime_name: name.to_owned(),
        runtime_version: version.to_owned(),
        nri_version: nri_version.to_owned(),
        ..configure()
    };
    assert_eq!(peer.configure(&request).await, mask);
}

/// A mask of 0 would subscribe to everything.
#[tokio::test]
async fn a_runtime_that_knows_none_of_the_events_is_refused() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start_with(&runtime, Event::ValidateContainerAdjustment);
    let mut peer = runtime.accept().await;
    peer.register().await;
    let request = ConfigureRequest {
        runtime_name: "containerd".to_owned(),
        runtime_version: "v1.7.26".to_owned(),
        ..ConfigureRequest::default()
    };
    let error = peer.call::<()>("Configure", &request).await.unwrap_err();
    assert_eq!(error.code, 9);
    assert!(error.message.contains("containerd v1.7.26 knows none of the plugin's events"), "{}", error.message);
}

#[tokio::test]
async fn a_split_synchronize_is_put_together() {
    let runtime = Runtime::new();
    let (_handle, _recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&configure()).await;
    for (pods, containers, more) in [(3, 0, true), (0, 4, true), (1, 1, false)] {
        let request =
            SynchronizeRequest { pods: vec![pod("p"); pods], containers: vec![container("c"); containers], more };
        let answer: SynchronizeResponse = peer.call("Synchronize", &request).await.unwrap();
        assert_eq!((answer.more, answer.update.len()), (more, 0));
    }
    assert_eq!(logged(&mut log, "synchronize").await, "synchronize 4 5");
}

#[tokio::test]
async fn a_failed_synchronize_closes_the_connection_and_is_tried_again() {
    let runtime = Runtime::new();
    let (handle, recorder, _log) = start(&runtime);
    *recorder.synchronizing.lock().unwrap() = Behaviour::Fail;
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&configure()).await;
    let error = peer.call::<()>("Synchronize", &SynchronizeRequest::default()).await.unwrap_err();
    assert_eq!(error.message, "NRI plugin 10-demo: Synchronize with 0 pods and 0 containers: no interface");
    peer.closed().await;
    let state = wait_for(&handle, |state| matches!(state, State::Disconnected { error: Some(_), .. })).await;
    let State::Disconnected { error: Some(error), .. } = state else { unreachable!() };
    assert!(matches!(&*error, ConnectionError::Synchronize(_)), "{error}");
    *recorder.synchronizing.lock().unwrap() = Behaviour::Succeed;
    runtime.accept_and_synchronize().await;
    assert_eq!(handle.counters().synchronize_failures, 1);
}

#[tokio::test]
async fn a_synchronize_that_cannot_be_decoded_closes_the_connection() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&configure()).await;
    // Field 1 as a number, where a message belongs.
    let error = peer.call::<()>("Synchronize", &drakkar_nri::api::OptionalInt { value: 1 }).await.unwrap_err();
    assert_eq!(error.code, 3);
    peer.closed().await;
}

#[tokio::test]
async fn a_refused_registration_is_the_error_of_the_state() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept().await;
    let (stream, _) = peer.plugins_call().await;
    peer.refuse(stream, 2, "invalid plugin name").await;
    peer.closed().await;
    let state = wait_for(&handle, |state| matches!(state, State::Disconnected { error: Some(_), .. })).await;
    let State::Disconnected { error: Some(error), .. } = state else { unreachable!() };
    assert_eq!(error.to_string(), "the runtime refused to register the plugin: invalid plugin name (code 2)");
    runtime.accept_and_synchronize().await;
}

#[tokio::test]
async fn a_runtime_that_never_answers_the_registration_is_left() {
    let runtime = Runtime::new();
    let (recorder, _log) = Recorder::new();
    let timeout = std::time::Duration::from_millis(50);
    let plugin = Plugin::new("demo", 10).events(Events::ALL).socket(runtime.path()).registration_timeout(timeout);
    let handle = plugin.start(recorder).unwrap();
    let mut peer = runtime.accept().await;
    peer.closed().await;
    let state = wait_for(&handle, |state| matches!(state, State::Disconnected { error: Some(_), .. })).await;
    let State::Disconnected { error: Some(error), .. } = state else { unreachable!() };
    assert!(matches!(&*error, ConnectionError::RegisterTimeout(_)), "{error}");
}

/// A runtime that does not like the mask says nothing and hangs up.
#[tokio::test]
async fn a_runtime_that_hangs_up_after_configure_is_reported_with_the_mask() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start_with(&runtime, Events::POD_LIFECYCLE);
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&configure()).await;
    drop(peer);
    let state = wait_for(&handle, |state| matches!(state, State::Disconnected { error: Some(_), .. })).await;
    let State::Disconnected { error: Some(error), .. } = state else { unreachable!() };
    assert_eq!(
        error.to_string(),
        "the runtime closed the connection right after the plugin subscribed to \
         RunPodSandbox, StopPodSandbox, RemovePodSandbox (0x0007)"
    );
}

#[tokio::test]
async fn an_event_before_configure_is_refused() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.register().await;
    assert_eq!(peer.run("train").await.unwrap_err().code, 9);
}

#[tokio::test]
async fn a_plugin_does_not_start_with_what_no_runtime_accepts() {
    let start = |plugin: Plugin| plugin.start(Recorder::new().0).unwrap_err();
    let plugin = || Plugin::new("demo", 10).events(Events::ALL);
    assert!(matches!(start(Plugin::new("a b", 10).events(Events::ALL)), StartError::Name(_)));
    assert!(matches!(start(Plugin::new("", 10).events(Events::ALL)), StartError::Name(_)));
    assert!(matches!(start(Plugin::new("demo", 100).events(Events::ALL)), StartError::Index(_)));
    assert!(matches!(start(plugin().events(Events::NONE)), StartError::NoEvents));
    let error = std::thread::spawn(move || plugin().start(Recorder::new().0).unwrap_err()).join().unwrap();
    assert!(matches!(error, StartError::NoTokioRuntime(_)));
}

#[tokio::test]
async fn a_shutdown_is_acknowledged() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let stream = peer.send(PLUGIN_SERVICE, "Shutdown", &(), 0).await;
    assert_eq!(peer.result::<()>(stream).await, Ok(()));
}
