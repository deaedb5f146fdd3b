//! Fault injection.

use std::time::{Duration, Instant};

use http::Method;

use super::support::{Client, SLICES, server, slice};
use crate::{Fault, Filter, Identity, Partition, Resource, Times};

fn node() -> Identity {
    Identity::User { name: "someone".to_owned(), groups: vec!["system:masters".to_owned()] }
}

async fn reaches(api: &Client) -> bool {
    api.send(Method::GET, SLICES, "application/json", String::new()).await.is_ok()
}

#[tokio::test]
async fn the_next_requests_fail_with_the_injected_faults() {
    let api = server().await;
    let filter = Filter::any().verb("create").resource(Resource::ResourceSlice);
    api.server.faults().fail(filter.clone(), Fault::TooManyRequests { retry_after: 1 }, Times::Next(1));
    api.server.faults().fail(filter, Fault::InternalError, Times::Next(1));
    assert_eq!(api.get(SLICES).await.0, 200, "the filter does not select it");
    let (code, answer) = api.post(SLICES, &slice("a")).await;
    assert_eq!((code, &answer["details"]["retryAfterSeconds"]), (429, &1.into()));
    assert_eq!(api.post(SLICES, &slice("a")).await.0, 500);
    assert_eq!(api.post(SLICES, &slice("a")).await.0, 201);
}

#[tokio::test]
async fn a_fault_applies_to_one_client_until_it_is_cleared() {
    let api = server().await;
    let other = api.of(&node());
    api.server.faults().fail(Filter::any().client(&node()), Fault::Unavailable, Times::Always);
    assert_eq!(other.get(SLICES).await.0, 503);
    assert_eq!(other.get(SLICES).await.0, 503);
    assert_eq!(api.get(SLICES).await.0, 200);
    api.server.faults().clear();
    assert_eq!(other.get(SLICES).await.0, 200);
}

#[tokio::test]
async fn a_response_can_be_lost_after_the_request_was_processed() {
    let api = server().await;
    api.server.faults().fail(Filter::any().verb("create"), Fault::LostResponse, Times::Next(1));
    let sent = api.send(Method::POST, SLICES, "application/json", slice("a").to_string()).await;
    assert!(sent.is_err());
    assert_eq!(api.get(&format!("{SLICES}/a")).await.0, 200);
}

#[tokio::test]
async fn requests_can_be_delayed() {
    let api = server().await;
    api.server.faults().delay(Filter::any().verb("get"), Duration::from_millis(50));
    let start = Instant::now();
    api.get(&format!("{SLICES}/a")).await;
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn watches_can_be_dropped() {
    let api = server().await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true")).await;
    api.server.faults().drop_watches();
    assert!(watch.try_next().await.is_err());
    let mut watch = api.watch(&format!("{SLICES}?watch=true")).await;
    api.post(SLICES, &slice("a")).await;
    assert_eq!(watch.brief().await.1, "a");
}

#[tokio::test]
async fn a_partitioned_client_is_disconnected_until_the_partition_heals() {
    let api = server().await;
    let other = api.of(&node());
    let mut watch = other.watch(&format!("{SLICES}?watch=true")).await;
    api.server.faults().partition(Some(&node()), Partition::Cut);
    assert!(watch.try_next().await.is_err());
    assert!(!reaches(&other).await);
    assert!(reaches(&api).await, "other clients are not partitioned");
    api.server.faults().heal();
    assert!(reaches(&other).await);
    api.server.faults().partition(None, Partition::Cut);
    assert!(!reaches(&api).await);
    api.server.faults().heal();
    assert!(reaches(&api).await);
}

#[tokio::test]
async fn a_silent_watch_catches_up_when_the_partition_heals() {
    let api = server().await;
    let other = api.of(&node());
    let mut watch = other.watch(&format!("{SLICES}?watch=true")).await;
    api.server.faults().partition(Some(&node()), Partition::Silent);
    api.post(SLICES, &slice("a")).await;
    let waited = tokio::time::timeout(Duration::from_millis(50), watch.try_next()).await;
    assert!(waited.is_err(), "no event arrives: {:?}", waited.unwrap());
    api.server.faults().heal();
    assert_eq!(watch.brief().await.1, "a");
}

/// As after a restore of `etcd` from a backup: later writes are lost, and their resource versions are used again.
#[tokio::test]
async fn restoring_a_snapshot_brings_back_its_objects_and_versions() {
    let api = server().await;
    assert_eq!(api.post(SLICES, &slice("a")).await.0, 201);
    let snapshot = api.server.snapshot();
    let before = api.get(SLICES).await.1;
    assert_eq!(api.post(SLICES, &slice("b")).await.0, 201);
    let version = api.get(SLICES).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    api.server.restore(&snapshot);
    assert_eq!(api.get(SLICES).await.1, before);
    let newer = format!("{SLICES}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    assert_eq!(api.get(&newer).await.0, 504, "the version is newer than the snapshot");
    let (code, again) = api.post(SLICES, &slice("c")).await;
    assert_eq!((code, again["metadata"]["resourceVersion"].as_str()), (201, Some(version.as_str())));
}
