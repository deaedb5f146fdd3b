//! WATCH.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::support::{Client, PODS, SLICES, server, server_with, slice};
use crate::Config;

async fn version(api: &Client) -> String {
    api.get(SLICES).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

fn pair(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test]
async fn a_watch_sends_existing_objects_and_changes() {
    let api = server().await;
    api.post(SLICES, &slice("one")).await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "one"));
    api.post(SLICES, &slice("two")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "two"));
    api.merge(&format!("{SLICES}/two"), &json!({ "metadata": { "labels": { "a": "b" } } })).await;
    assert_eq!(watch.brief().await, pair("MODIFIED", "two"));
    api.delete(&format!("{SLICES}/one"), &Value::Null).await;
    assert_eq!(watch.brief().await, pair("DELETED", "one"));
}

#[tokio::test]
async fn a_watch_from_a_version_sends_only_later_changes() {
    let api = server().await;
    api.post(SLICES, &slice("one")).await;
    let from = version(&api).await;
    api.post(SLICES, &slice("two")).await;
    let (_, last) = api.delete(&format!("{SLICES}/one"), &Value::Null).await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true&resourceVersion={from}")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "two"));
    let gone = watch.next().await.unwrap();
    assert_eq!((gone["type"].as_str(), &gone["object"]), (Some("DELETED"), &last));
}

#[tokio::test]
async fn an_object_that_enters_or_leaves_the_selection_is_added_or_deleted() {
    let api = server().await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true&labelSelector=a%3Db")).await;
    let label = |value: &str| json!({ "metadata": { "labels": { "a": value } } });
    let path = format!("{SLICES}/one");
    api.post(SLICES, &slice("one")).await;
    api.merge(&path, &label("b")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "one"));
    let (_, left) = api.merge(&path, &label("c")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["metadata"]["labels"]["a"], "b", "the object as it last matched");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
    api.merge(&path, &label("b")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "one"));
}

#[tokio::test]
async fn a_pod_enters_the_selection_of_its_kubelet_when_it_is_bound() {
    let api = server().await;
    let mut watch = api.watch("/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Da").await;
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    assert_eq!(api.post(PODS, &pod).await.0, 201);
    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "a" } });
    assert_eq!(api.post(&format!("{PODS}/p/binding"), &binding).await.0, 201);
    assert_eq!(watch.brief().await, pair("ADDED", "p"));
}

#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark() {
    let api = server().await;
    api.post(SLICES, &slice("one")).await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = api.watch(&format!("{SLICES}?{query}")).await;
    assert_eq!(watch.brief().await, pair("ADDED", "one"));
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"], json!({ "k8s.io/initial-events-end": "true" }));
    assert_eq!(mark["object"]["metadata"]["resourceVersion"], version(&api).await);
}

#[tokio::test]
async fn bookmarks_advance_the_version_without_events() {
    let api = server_with(Config { bookmark_interval: Duration::from_millis(20), ..Config::default() }).await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true&allowWatchBookmarks=true&labelSelector=no")).await;
    api.post(SLICES, &slice("one")).await;
    let wanted = version(&api).await;
    loop {
        let line = watch.next().await.unwrap();
        assert_eq!(line["type"], "BOOKMARK");
        if line["object"]["metadata"]["resourceVersion"] == *wanted {
            break;
        }
    }
}

#[tokio::test]
async fn a_version_before_the_event_window_is_gone() {
    let api = server_with(Config { event_window: 2, ..Config::default() }).await;
    let from = version(&api).await;
    for name in ["one", "two", "three"] {
        api.post(SLICES, &slice(name)).await;
    }
    let mut watch = api.watch(&format!("{SLICES}?watch=true&resourceVersion={from}")).await;
    assert_eq!(watch.status, 200, "the error is an event of the watch");
    let error = watch.next().await.unwrap();
    assert_eq!((error["type"].as_str(), &error["object"]["code"]), (Some("ERROR"), &json!(410)));
    assert_eq!(error["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
    let exact = format!("{SLICES}?resourceVersion={from}&resourceVersionMatch=Exact");
    assert_eq!(api.get(&exact).await.0, 410, "the error of a list is its status");
}

#[tokio::test]
async fn a_watch_that_is_not_read_blocks_no_writer() {
    let api = server_with(Config { event_window: 10, ..Config::default() }).await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true")).await;
    assert_eq!(api.post(SLICES, &slice("big")).await.0, 201);
    for index in 0..120 {
        let change = json!({ "metadata": { "annotations": { "big": "x".repeat(200_000), "n": index.to_string() } } });
        assert_eq!(api.merge(&format!("{SLICES}/big"), &change).await.0, 200);
    }
    // The client gets the events that fit into the socket buffers, and then an error for the missed rest.
    loop {
        let line = watch.next().await.unwrap();
        if line["type"] == "ERROR" {
            assert_eq!(line["object"]["code"], 410);
            break;
        }
    }
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout() {
    let api = server().await;
    let mut watch = api.watch(&format!("{SLICES}?watch=true&timeoutSeconds=1")).await;
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn contradicting_parameters_are_refused() {
    let api = server().await;
    for query in
        ["watch=1&sendInitialEvents=true", "watch=1&resourceVersionMatch=NotOlderThan", "resourceVersionMatch=Exact"]
    {
        let (code, answer) = api.json(Method::GET, &format!("{SLICES}?{query}"), &Value::Null).await;
        assert_eq!((code, &answer["details"]["kind"]), (422, &json!("ListOptions")), "{query}: {answer}");
    }
}
