//! Tests of slow and lost responses, in virtual time.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drakkar_client::{ClaimRef, DraClient};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::claims::{ClaimSource, FetchError};
use crate::metrics::Metrics;

const DRIVER: &str = "gpu.example.com";

/// The delay and status of a response. `None` for no response at all.
type Planned = Option<(Duration, StatusCode)>;

/// Returns a source whose API server follows a script, and the number of requests that the server has received.
fn source(script: impl Fn(usize) -> Planned + Send + 'static) -> (ClaimSource, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let requests = count.clone();
    let service = tower::service_fn(move |_: Request<Body>| {
        let planned = script(requests.fetch_add(1, Ordering::SeqCst));
        async move {
            let Some((takes, status)) = planned else { return std::future::pending().await };
            tokio::time::sleep(takes).await;
            let body = if status == StatusCode::OK { claim_object() } else { json!({"message": "not today"}) };
            let answer = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, std::io::Error>(answer.unwrap())
        }
    });
    let client = kube::Client::new(service, "default");
    let driver = DRIVER.parse().unwrap();
    let metrics = Metrics::new(&driver);
    (ClaimSource::new(DraClient::new(client), driver, metrics), count)
}

fn claim() -> ClaimRef {
    ClaimRef {
        namespace: "default".parse().unwrap(),
        name: "train".parse().unwrap(),
        uid: "6a1f0a5e-0000-4000-8000-000000000001".parse().unwrap(),
    }
}

fn claim_object() -> Value {
    let result = json!({"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"});
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "default", "uid": claim().uid.as_str()},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    })
}

/// The kubelet gives a call 45 s: a response within that time is in time.
#[tokio::test(start_paused = true)]
async fn a_fetch_waits_for_a_slow_api_server() {
    for seconds in [12, 25, 38] {
        let (source, requests) = source(move |_| Some((Duration::from_secs(seconds), StatusCode::OK)));
        let started = Instant::now();

        let fetched = source.fetch(&claim()).await.unwrap();

        assert_eq!(fetched.results().count(), 1);
        assert_eq!(started.elapsed().as_secs(), seconds, "no time is lost by the second request");
        assert!(requests.load(Ordering::SeqCst) <= 2, "a slow server gets at most twice the load");
    }
}

/// A connection that is dead without an error costs ten seconds, but does not fail the prepare.
#[tokio::test(start_paused = true)]
async fn a_lost_request_is_replaced_by_a_second_one() {
    let (source, requests) = source(|request| (request > 0).then_some((Duration::ZERO, StatusCode::OK)));
    let started = Instant::now();

    assert_eq!(source.fetch(&claim()).await.unwrap().results().count(), 1);

    assert_eq!((started.elapsed().as_secs(), requests.load(Ordering::SeqCst)), (10, 2));
}

/// A second request that fails does not cancel the first, which is still in flight.
#[tokio::test(start_paused = true)]
async fn a_failed_second_request_does_not_end_the_wait_for_the_first() {
    let (source, _) = source(|request| match request {
        0 => Some((Duration::from_secs(20), StatusCode::OK)),
        _ => Some((Duration::ZERO, StatusCode::SERVICE_UNAVAILABLE)),
    });

    assert_eq!(source.fetch(&claim()).await.unwrap().results().count(), 1);
}

/// The fetch fails before the kubelet's deadline, so that the other claims of the call get their responses.
#[tokio::test(start_paused = true)]
async fn a_fetch_without_any_response_fails_before_the_kubelets_deadline() {
    let (source, requests) = source(|_| None);
    let started = Instant::now();

    let Err(error) = source.fetch(&claim()).await else { panic!("the fetch succeeded without a response") };

    assert!(matches!(error, FetchError::Api { .. }) && error.to_string().contains("within 40 s"), "{error}");
    assert_eq!((started.elapsed().as_secs(), requests.load(Ordering::SeqCst)), (40, 2));
}
