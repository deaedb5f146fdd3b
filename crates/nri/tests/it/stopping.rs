//! The end of a plugin.

use drakkar_nri::api::RunPodSandboxRequest;
use drakkar_nri::{ConnectionError, State};
use drakkar_nri_api::PLUGIN_SERVICE;

use crate::plugin::{Behaviour, logged, start, wait_for};
use crate::runtime::{Runtime, patiently, pod};

/// Otherwise the runtime would let the pod start without the plugin.
#[tokio::test]
async fn a_call_in_progress_is_answered_before_the_connection_ends() {
    let runtime = Runtime::new();
    let (handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Wait);
    let request = RunPodSandboxRequest { pod: Some(pod("train")) };
    let stream = peer.send(PLUGIN_SERVICE, "RunPodSandbox", &request, 0).await;
    logged(&mut log, "run train").await;
    let stopping = tokio::spawn(handle.stop());
    recorder.gate.notify_one();
    assert_eq!(peer.result::<()>(stream).await, Ok(()));
    peer.closed().await;
    patiently(stopping).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_was_stopped_does_not_connect_again() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let state = handle.state();
    patiently(handle.stop()).await;
    peer.closed().await;
    let State::Disconnected { error: Some(error), .. } = &*state.borrow() else { panic!("it is disconnected") };
    assert!(matches!(**error, ConnectionError::Stopped), "{error}");
}

#[tokio::test]
async fn a_plugin_that_waits_for_a_runtime_stops_at_once() {
    let mut runtime = Runtime::new();
    runtime.shut();
    let (handle, _recorder, _log) = start(&runtime);
    wait_for(&handle, |state| matches!(state, State::Disconnected { error: Some(_), .. })).await;
    patiently(handle.stop()).await;
}

#[tokio::test]
async fn a_dropped_handle_closes_the_connection() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    drop(handle);
    peer.closed().await;
}

#[tokio::test(start_paused = true)]
async fn handlers_that_never_end_are_cancelled_after_a_while() {
    let runtime = Runtime::new();
    let (handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Wait);
    let request = RunPodSandboxRequest { pod: Some(pod("train")) };
    peer.send(PLUGIN_SERVICE, "RunPodSandbox", &request, 0).await;
    logged(&mut log, "run train").await;
    handle.stop().await;
}
