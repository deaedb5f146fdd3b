//! Servers that cannot select slices by pool, and the encoding of slices.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures::stream;
use http::{Request, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::Value;

use super::super::content::{DeviceFacts, SliceHeader};
use super::super::devices::encoded;
use super::super::resources::PublishedDevice;
use super::super::slice_devices::{Row, SliceDevices};
use super::*;

/// A server that refuses some requests, and its log.
fn server(refuses: fn(&str) -> bool) -> (Api, Arc<Mutex<Vec<String>>>) {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = log.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        seen.lock().unwrap().push(uri.clone());
        let slice = |pool: &str| {
            json!({
                "metadata": {"name": format!("of-{pool}"), "uid": pool, "resourceVersion": "7"},
                "spec": {"driver": "d", "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}},
            })
        };
        let (status, body) = if refuses(&uri) {
            (400, json!({"kind": "Status", "message": "field label not supported: spec.pool.name"}))
        } else if uri.contains("watch=true") {
            (200, json!({"type": "ADDED", "object": slice("rack")}))
        } else {
            (200, json!({"metadata": {"resourceVersion": "9"}, "items": [slice("rack"), slice("other")]}))
        };
        let answer = Response::builder().status(status).body(Body::from(format!("{body}\n").into_bytes()));
        async move { Ok::<_, Infallible>(answer.unwrap()) }
    });
    let scope = Scope { driver: "d".into(), node: None, pool: Some("rack".into()) };
    (Api::new(DraClient::new(kube::Client::new(service, "default")), scope), log)
}

const POOL: &str = "spec.pool.name%3Drack";

#[tokio::test]
async fn lists_and_watches_select_by_pool() {
    let (api, log) = server(|_| false);
    let listed = api.list(&Freshness::Any).await.unwrap();
    assert_eq!((listed.slices.len(), listed.resource_version.as_str()), (1, "9"), "other pools are skipped");
    let mut events = api.watch("9", Duration::from_secs(5)).await.unwrap();
    assert!(matches!(events.next().await.unwrap(), Some(Event::Applied(slice)) if slice.pool == "rack"));
    assert!(events.next().await.unwrap().is_none());
    let log = log.lock().unwrap();
    assert!(
        log.len() == 2
            && log.iter().all(|uri| uri.contains(POOL) && uri.contains("spec.driver%3Dd%2Cspec.nodeName%3D%2C"))
    );
    assert!(log[0].contains("resourceVersion=0") && log[1].contains("resourceVersion=9"), "{log:?}");
}

#[tokio::test]
async fn a_server_that_cannot_list_by_pool_is_asked_for_all() {
    let (api, log) = server(|uri| uri.contains(POOL));
    assert_eq!(api.list(&Freshness::Now).await.unwrap().slices.len(), 1);
    api.list(&Freshness::Now).await.unwrap();
    api.watch("9", Duration::from_secs(5)).await.unwrap();
    let log = log.lock().unwrap();
    let with_pool: Vec<bool> = log.iter().map(|uri| uri.contains(POOL)).collect();
    assert_eq!(with_pool, [true, false, false, true, false], "{log:?}");
}

#[tokio::test]
async fn a_server_that_cannot_watch_by_pool_may_still_list_by_pool() {
    let (api, log) = server(|uri| uri.contains(POOL) && uri.contains("watch=true"));
    api.list(&Freshness::Now).await.unwrap();
    api.watch("9", Duration::from_secs(5)).await.unwrap();
    api.list(&Freshness::Now).await.unwrap();
    let with_pool: Vec<bool> = log.lock().unwrap().iter().map(|uri| uri.contains(POOL)).collect();
    assert_eq!(with_pool, [true, true, false, true]);
}

#[tokio::test]
async fn a_refusal_for_another_reason_is_an_error() {
    let (api, _) = server(|_| true);
    let refused = api.list(&Freshness::Now).await;
    assert!(matches!(refused, Err(ApiError::Status { status: StatusCode::BAD_REQUEST, .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_watch_without_an_end_is_an_error() {
    let service = tower::service_fn(|_: Request<Body>| async {
        let endless = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        Ok::<_, Infallible>(Response::builder().status(400).body(endless).unwrap())
    });
    let scope = Scope { driver: "d".into(), node: None, pool: Some("rack".into()) };
    let api = Api::new(DraClient::new(kube::Client::new(service, "default")), scope);
    let refused = timeout(2 * TIMEOUT, api.watch("9", Duration::from_secs(5))).await.unwrap();
    assert!(matches!(refused, Err(ApiError::Timeout { .. })));
}

/// The media types and objects that a server was sent.
type Sent = Arc<Mutex<Vec<(String, Value)>>>;

/// A server that accepts some media types, with one API version.
fn writable(accepts: &'static [&'static str], version: DraVersion) -> (Api, Sent) {
    let log = Sent::default();
    let seen = log.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = seen.clone();
        async move {
            if request.method() == Method::GET {
                return Ok::<_, Infallible>(Response::new(Body::from(events().into_bytes())));
            }
            let media = request.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let is_accepted = accepts.contains(&media.as_str());
            let json = if media == JSON { body.to_vec() } else { protobuf::to_json(&body).unwrap() };
            let mut slice: Value = serde_json::from_slice(&json).unwrap();
            seen.lock().unwrap().push((media, slice.clone()));
            let (status, answer) = if is_accepted {
                slice["metadata"] = json!({"name": "new", "uid": "u", "resourceVersion": "7"});
                (201, slice)
            } else {
                (415, json!({"kind": "Status", "message": "the body of the request was in an unknown format"}))
            };
            let answer = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    let scope = Scope { driver: "d".into(), node: None, pool: None };
    let api = Api::new(DraClient::with_version(kube::Client::new(service, "default"), version), scope);
    (api, log)
}

/// The events of a slice that is created, changed by another client, and changed back.
fn events() -> String {
    let event = |version: &str| {
        let metadata = json!({"name": "new", "uid": "u", "resourceVersion": version});
        let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        json!({"type": "MODIFIED", "object": {"metadata": metadata, "spec": {"driver": "d", "pool": pool}}})
    };
    format!("{}\n{}\n{}\n", event("7"), event("8"), event("7"))
}

async fn create(api: &Api) {
    let header = SliceHeader::default();
    let taints = HashMap::new();
    let device = PublishedDevice::new("gpu-0").attribute("model", "m");
    let text = encoded(&device);
    let (facts, _) = DeviceFacts::of(device).unwrap();
    let devices = SliceDevices::new(Row { texts: &[&text], facts: &[facts], taints: &[], first: 0 });
    let object = SliceObject {
        version: api.version(),
        target: Err("new-".to_owned()),
        owner: None,
        driver: "d",
        pool: "p",
        generation: 1,
        count: 1,
        node: Some("n"),
        header: &header,
        devices: &devices,
        taints: &taints,
    };
    let (stored, _) = api.create(&object).await.unwrap();
    assert_eq!((stored.name.as_str(), stored.devices.names().collect::<Vec<_>>()), ("new", vec!["gpu-0"]));
}

#[tokio::test]
async fn slices_are_sent_as_protobuf() {
    let (api, log) = writable(&[protobuf::MEDIA_TYPE], DraVersion::V1);
    create(&api).await;
    let log = log.lock().unwrap();
    let [(media, slice)] = log.as_slice() else { panic!("{log:?}") };
    assert_eq!(media, protobuf::MEDIA_TYPE);
    assert_eq!(slice["spec"]["devices"][0], json!({"name": "gpu-0", "attributes": {"model": {"string": "m"}}}));
}

#[tokio::test]
async fn a_server_that_refuses_protobuf_gets_json_from_then_on() {
    let (api, log) = writable(&[JSON], DraVersion::V1);
    create(&api).await;
    create(&api).await;
    let log = log.lock().unwrap();
    let sent: Vec<_> = log.iter().map(|(media, _)| media.as_str()).collect();
    assert_eq!(sent, [protobuf::MEDIA_TYPE, JSON, JSON]);
    assert!(log.iter().all(|(_, slice)| *slice == log[0].1), "the same in both forms: {log:?}");
}

#[tokio::test]
async fn v1beta1_is_sent_as_json() {
    let (api, log) = writable(&[JSON], DraVersion::V1beta1);
    create(&api).await;
    let log = log.lock().unwrap();
    let [(_, slice)] = log.as_slice() else { panic!("{log:?}") };
    assert_eq!(slice["spec"]["devices"][0]["basic"]["attributes"]["model"], json!({"string": "m"}));
}

/// The watch repeats every write, with all devices of the slice.
#[tokio::test]
async fn an_event_that_repeats_a_write_is_an_echo_and_no_other_is() {
    let (api, _) = writable(&[protobuf::MEDIA_TYPE], DraVersion::V1);
    let next = async || {
        let mut watch = api.watch("6", Duration::from_secs(5)).await.unwrap();
        let mut seen = Vec::new();
        while let Some(event) = watch.next().await.unwrap() {
            seen.push(match event {
                Event::Echo(version) => format!("echo {version}"),
                Event::Applied(slice) => slice.resource_version.clone(),
                other => panic!("{other:?}"),
            });
        }
        seen
    };
    assert_eq!(next().await, ["7", "8", "7"], "nothing was written");
    create(&api).await;
    assert_eq!(next().await, ["echo 7", "8", "7"], "an echo comes once");
    create(&api).await;
    api.list(&Freshness::Now).await.unwrap_err();
    assert_eq!(next().await, ["7", "8", "7"], "after a list, events are decoded");
}
