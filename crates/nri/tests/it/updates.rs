//! Updates of containers that no event asked for.

use drakkar_nri::api::{UpdateContainersRequest, UpdateContainersResponse};
use drakkar_nri::{ContainerUpdate, Resources, State, UpdateError, Updates};
use prost::Message as _;

use crate::plugin::{Behaviour, logged, start, wait_for};
use crate::runtime::Runtime;

fn updates() -> Updates {
    Updates::from(ContainerUpdate::new("one", Resources::new().cpu_set("2")))
}

#[tokio::test]
async fn updates_go_to_the_runtime_and_failures_come_back() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    wait_for(&handle, State::is_synchronized).await;
    let updater = handle.updater();
    let update = tokio::spawn(async move { updater.update_containers(updates()).await });
    let (stream, request) = peer.plugins_call().await;
    assert_eq!((stream, &*request.method), (3, "UpdateContainers"));
    let request = UpdateContainersRequest::decode(request.payload).unwrap();
    assert_eq!(request.update[0].container_id, "one");
    peer.answer(stream, &UpdateContainersResponse { failed: request.update }).await;
    let failed = update.await.unwrap().unwrap();
    assert_eq!(failed[0].container_id(), "one");

    let updater = handle.updater();
    let update = tokio::spawn(async move { updater.update_containers(updates()).await });
    let (stream, _) = peer.plugins_call().await;
    peer.refuse(stream, 2, "no such container").await;
    let error = update.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the runtime refused to update containers: no such container (code 2)");
    assert_eq!(handle.counters().updates, 2);
}

/// The runtime holds its lock while it waits for the handler.
#[tokio::test]
async fn updates_in_a_handler_are_refused() {
    let runtime = Runtime::new();
    let (_handle, recorder, mut log) = start(&runtime);
    let mut peer = runtime.accept_and_synchronize().await;
    recorder.behave(Behaviour::Update);
    assert_eq!(peer.run("train").await, Ok(()));
    logged(&mut log, "containers cannot be updated by a handler").await;
}

#[tokio::test]
async fn updates_without_a_connection_fail_at_once() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    assert!(matches!(handle.update_containers(updates()).await, Err(UpdateError::NotConnected)));
    let mut peer = runtime.accept_and_synchronize().await;
    wait_for(&handle, State::is_synchronized).await;
    let updater = handle.updater();
    let update = tokio::spawn(async move { updater.update_containers(updates()).await });
    peer.plugins_call().await;
    drop(peer);
    assert!(matches!(update.await.unwrap(), Err(UpdateError::NotConnected)));
}

#[tokio::test]
async fn updates_that_are_too_large_are_refused_here() {
    let runtime = Runtime::new();
    let (handle, _recorder, _log) = start(&runtime);
    let _peer = runtime.accept_and_synchronize().await;
    wait_for(&handle, State::is_synchronized).await;
    let updates = Updates::default().evict("one", "x".repeat(4 << 20));
    assert!(matches!(handle.update_containers(updates).await, Err(UpdateError::Limit(_))));
}
