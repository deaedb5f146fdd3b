//! Connections that end, runtimes that restart.

use drakkar_nri::api::RunPodSandboxRequest;
use drakkar_nri::{ConnectionError, Event, State};
use drakkar_nri_api::PLUGIN_SERVICE;

use crate::plugin::{Behaviour, logged, start, wait_for};
use crate::runtime::{Runtime, pod};

#[tokio::test]
async fn a_plugin_waits_for_a_runtime_that_is_not_there_yet() {
    let mut runtime = Runtime::new();
    runtime.shut();
    let (handle, _recorder, _log) = start(&runtime);
    let state = wait_for(&handle, |state| matches!(state, State::Disconnected { error: Some(_), .. })).await;
    let State::Disconnected { error: Some(error), since } = state else { unreachable!() };
    assert!(matches!(&*error, ConnectionError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("nri.sock"), "{error}");
    runtime.listen();
    runtime.accept_and_synchronize().await;
    assert!(handle.counters().connect_failures > 0);
    assert!(since.elapsed().as_secs() < 60);
}

#[tokio::test]
async fn a_plugin_connects_again_after_an_abrupt_end() {
    let runtime = Runtime::new();
    let (handle, _recorder, mut log) = start(&runtime);
    for round in 1..=3 {
        let mut peer = runtime.accept_and_synchronize().await;
        assert_eq!(peer.run("train").await, Ok(()));
        logged(&mut log, "run train").await;
        wait_for(&handle, State::is_synchronized).await;
        // In the middle of a frame.
        peer.write_bytes(&[0, 0, 0, 1, 0, 0, 0, 200, 1, 2, 3]).await;
        drop(peer);
        wait_for(&handle, |state| !state.is_synchronized()).await;
        assert_eq!(handle.counters().connections, round);
    }
}

/// The runtime removes its socket and makes another: the path is dialled again, not the socket.
#[tokio::test]
async fn a_plugin_finds_the_new_socket_of_a_restarted_runtime() {
    let mut runtime = Runtime::new();
    let (handle, _recorder, mut log) = start(&runtime);
    let peer = runtime.accept_and_synchronize().await;
    wait_for(&handle, State::is_synchronized).await;
    runtime.shut();
    drop(peer);
    wait_for(&handle, |state| {
        matches!(state, State::Disconnected { error: Some(error), .. } if matches!(**error, ConnectionError::Connect { .. }))
    })
    .await;
    runtime.listen();
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&crate::runtime::configure()).await;
    peer.synchronize(vec![pod("survivor")]).await;
    logged(&mut log, "synchronize 0").await;
    logged(&mut log, "synchronize 1").await;
    wait_for(&handle, State::is_synchronized).await;
    assert_eq!(handle.counters().synchronizations, 2);
}

#[tokio::test]
async fn a_handler_learns_that_the_connection_was_lost() {
    let runtime = Runtime::new();
    let (handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::RollBack);
    peer.send(PLUGIN_SERVICE, "RunPodSandbox", &RunPodSandboxRequest { pod: Some(pod("train")) }, 0).await;
    logged(&mut log, "run train").await;
    drop(peer);
    assert_eq!(logged(&mut log, "rolled back").await, "rolled back: Disconnected");
    recorder.behave(Behaviour::Succeed);
    let mut peer = runtime.accept_and_synchronize().await;
    assert_eq!(peer.run("train").await, Ok(()), "the new connection works");
    assert_eq!(handle.counters().event(Event::RunPodSandbox).unwrap().disconnected, 1);
}

/// Registered and configured, but not synchronized, for as long as it takes: the runtime finishes its work first.
#[tokio::test(start_paused = true)]
async fn a_plugin_waits_for_synchronize_without_limit() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.configure(&crate::runtime::configure()).await;
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    peer.synchronize(Vec::new()).await;
    wait_for(&handle, State::is_synchronized).await;
    assert_eq!(handle.counters().connections, 1);
}
