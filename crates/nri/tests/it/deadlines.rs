//! A handler that takes too long: the pod fails, and the connection stays.
//!
//! The clock is paused where it can be, and moves on when everything waits: a busy machine makes no deadline pass.

use std::sync::{Arc, Barrier};

use drakkar_nri::Event;
use drakkar_nri::api::{ConfigureRequest, RunPodSandboxRequest, SynchronizeRequest};
use drakkar_nri_api::PLUGIN_SERVICE;

use crate::plugin::{Behaviour, logged, start};
use crate::runtime::{Runtime, configure, pod};

fn impatient() -> ConfigureRequest {
    ConfigureRequest { request_timeout: 100, ..configure() }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_fails_the_pod_before_the_runtime_gives_up() {
    let runtime = Runtime::new();
    let (handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.handshake(&impatient()).await;
    recorder.behave(Behaviour::Wait);
    let error = peer.run("train").await.unwrap_err();
    assert_eq!(error.code, 4);
    assert_eq!(
        error.message,
        "NRI plugin 10-demo: RunPodSandbox of pod default/train took longer than 75ms, \
         75 % of the time that the runtime gives a plugin"
    );
    // It was not cancelled.
    recorder.gate.notify_one();
    assert_eq!(logged(&mut log, "finished").await, "finished, abandoned: Some(Deadline)");
    assert_eq!(handle.counters().event(Event::RunPodSandbox).unwrap().expired, 1);
    recorder.behave(Behaviour::Succeed);
    // The undo of the runtime, on the same connection.
    peer.pod_event("StopPodSandbox", "train").await.unwrap();
    logged(&mut log, "stop train").await;
    assert_eq!(handle.counters().connections, 1);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_call_is_used_if_it_is_shorter() {
    let runtime = Runtime::new();
    let (_handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Wait);
    let request = RunPodSandboxRequest { pod: Some(pod("train")) };
    let stream = peer.send(PLUGIN_SERVICE, "RunPodSandbox", &request, 40_000_000).await;
    let error = peer.result::<()>(stream).await.unwrap_err();
    assert!(error.message.contains("longer than 30ms"), "{}", error.message);
    // Less than nothing is left.
    let stream = peer.send(PLUGIN_SERVICE, "RunPodSandbox", &request, -5).await;
    assert_eq!(peer.result::<()>(stream).await.unwrap_err().code, 4);
}

#[tokio::test(start_paused = true)]
async fn a_handler_learns_that_it_is_late_and_rolls_back() {
    let runtime = Runtime::new();
    let (_handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.handshake(&impatient()).await;
    recorder.behave(Behaviour::RollBack);
    assert_eq!(peer.run("train").await.unwrap_err().code, 4);
    assert_eq!(logged(&mut log, "rolled back").await, "rolled back: Deadline");
}

/// CRI-O would not stop the pod after an error, and the kubelet would try for ever.
#[tokio::test(start_paused = true)]
async fn a_slow_stop_is_answered_with_success() {
    let runtime = Runtime::new();
    let (_handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.handshake(&impatient()).await;
    recorder.behave(Behaviour::Wait);
    for method in ["StopPodSandbox", "RemovePodSandbox"] {
        assert_eq!(peer.pod_event(method, "train").await, Ok(()));
        recorder.gate.notify_one();
        assert_eq!(logged(&mut log, "finished").await, "finished, abandoned: Some(Deadline)");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_is_answered_for() {
    let runtime = Runtime::new();
    let (_handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    let barrier = Arc::new(Barrier::new(2));
    recorder.behave(Behaviour::Block(barrier.clone()));
    let request = RunPodSandboxRequest { pod: Some(pod("train")) };
    let stream = peer.send(PLUGIN_SERVICE, "RunPodSandbox", &request, 10_000_000).await;
    assert_eq!(peer.result::<()>(stream).await.unwrap_err().code, 4);
    barrier.wait();
}

#[tokio::test(start_paused = true)]
async fn a_slow_synchronize_closes_the_connection() {
    let runtime = Runtime::new();
    let (_handle, recorder, mut log) = start(&runtime);
    *recorder.synchronizing.lock().unwrap() = Behaviour::Wait;
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&impatient()).await;
    let error = peer.call::<()>("Synchronize", &SynchronizeRequest::default()).await.unwrap_err();
    assert_eq!(error.code, 4);
    peer.closed().await;
    *recorder.synchronizing.lock().unwrap() = Behaviour::Succeed;
    runtime.accept_and_synchronize().await;
    recorder.gate.notify_one();
    assert_eq!(logged(&mut log, "finished").await, "finished, abandoned: Some(Deadline)");
}

/// The runtime serializes events, so these are handlers that were abandoned. Those beyond the limit fail at once.
#[tokio::test(start_paused = true)]
async fn handlers_that_never_end_do_not_add_up_without_limit() {
    let runtime = Runtime::new();
    let (handle, recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Wait);
    let request = RunPodSandboxRequest { pod: Some(pod("train")) };
    for _ in 0..64 {
        let stream = peer.send(PLUGIN_SERVICE, "RunPodSandbox", &request, 1_000_000).await;
        assert_eq!(peer.result::<()>(stream).await.unwrap_err().code, 4);
    }
    let error = peer.run("train").await.unwrap_err();
    assert_eq!(error.code, 8);
    assert!(error.message.contains("busy"), "{}", error.message);
    assert_eq!(handle.counters().refused, 1);
    // A plugin that is full still connects: disconnected, pods would start without it.
    drop(peer);
    let mut peer = runtime.accept_and_synchronize().await;
    assert_eq!(peer.run("train").await.unwrap_err().code, 8);
    recorder.behave(Behaviour::Succeed);
    recorder.gate.notify_waiters();
    while handle.counters().event(Event::RunPodSandbox).unwrap().succeeded == 0 {
        let _ = peer.run("train").await;
    }
}
