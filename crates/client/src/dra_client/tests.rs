//! The client against a server that counts requests.

use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use serde_json::json;

use super::*;

const GROUP: &str = "/apis/resource.k8s.io";

/// Creates a client of a server that answers all requests with this status and body, and the count of requests.
fn server(status: u16, body: &str) -> (kube::Client, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let count = requests.clone();
    let body = body.to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        assert_eq!(request.uri().path(), GROUP);
        count.fetch_add(1, Ordering::Relaxed);
        let answer = Response::builder().status(status).header(header::RETRY_AFTER, "1");
        let answer = answer.body(Body::from(body.clone().into_bytes())).unwrap();
        async move {
            // Lets other callers run between request and answer.
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(answer)
        }
    });
    (kube::Client::new(service, "default"), requests)
}

/// Creates a client of a server that serves these versions.
fn serving(versions: &[&str]) -> (kube::Client, Arc<AtomicUsize>) {
    let versions: Vec<_> = versions
        .iter()
        .map(|version| json!({"version": version, "groupVersion": format!("resource.k8s.io/{version}")}))
        .collect();
    server(200, &json!({"name": "resource.k8s.io", "versions": versions}).to_string())
}

#[tokio::test]
async fn the_newest_version_is_discovered_and_clones_share_it() {
    let (client, requests) = serving(&["v1alpha3", "v1beta1", "v1beta2"]);
    let client = DraClient::new(client);
    let clone = client.clone();
    assert_eq!((clone.version(), requests.load(Ordering::Relaxed)), (DraVersion::V1, 0), "assumed without a request");
    assert_eq!(client.rediscover(DraVersion::V1).await.unwrap(), DraVersion::V1beta2);
    assert_eq!((clone.version(), requests.load(Ordering::Relaxed)), (DraVersion::V1beta2, 1));
}

#[tokio::test]
async fn a_server_that_was_upgraded_is_asked_again() {
    let (client, _) = serving(&["v1", "v1beta2"]);
    let client = DraClient::with_version(client, DraVersion::V1beta1);
    assert_eq!(client.rediscover(DraVersion::V1beta1).await.unwrap(), DraVersion::V1);
    assert_eq!(client.version(), DraVersion::V1);
}

#[tokio::test]
async fn concurrent_callers_share_one_discovery() {
    let (client, requests) = serving(&["v1beta1"]);
    let client = DraClient::new(client);
    let callers: Vec<_> = (0..10)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.rediscover(DraVersion::V1).await.unwrap() })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap(), DraVersion::V1beta1);
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_discovery_without_an_answer_ends_for_all_callers_at_the_same_time() {
    let silent = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let client = DraClient::new(kube::Client::new(silent, "default"));
    let both = async { tokio::join!(client.rediscover(DraVersion::V1), client.rediscover(DraVersion::V1)) };
    let (first, second) = timeout(DISCOVERY_TIMEOUT + Duration::from_secs(1), both).await.unwrap();
    for result in [first, second] {
        assert!(matches!(result, Err(ApiError::Timeout { after: DISCOVERY_TIMEOUT, .. })), "{result:?}");
    }
}

/// A request may still be in flight with an old version when another has discovered a new one.
#[tokio::test]
async fn a_late_caller_gets_the_version_that_works() {
    let (client, requests) = serving(&["v1"]);
    let client = DraClient::with_version(client, DraVersion::V1beta2);
    assert_eq!(client.rediscover(DraVersion::V1).await.unwrap(), DraVersion::V1beta2);
    assert_eq!((client.version(), requests.load(Ordering::Relaxed)), (DraVersion::V1beta2, 0));
}

#[tokio::test]
async fn there_is_no_version_where_the_server_lists_only_the_one_that_was_tried_or_none() {
    let lists = [&["v1"][..], &["v1", "v1beta2"], &["v1alpha3", "v2"], &[]];
    let not_found = server(404, "404 page not found");
    for (client, _) in lists.map(serving).into_iter().chain([not_found]) {
        let client = DraClient::new(client);
        assert!(matches!(client.rediscover(DraVersion::V1).await, Err(ApiError::NoVersion)));
        assert_eq!(client.version(), DraVersion::V1);
    }
}

#[tokio::test]
async fn a_failed_discovery_keeps_the_version_and_the_next_caller_retries() {
    for (status, body, is_transient) in [(503, "overloaded", true), (403, "forbidden", false), (200, "{", false)] {
        let (client, requests) = server(status, body);
        let client = DraClient::new(client);
        for _ in 0..2 {
            let error = client.rediscover(DraVersion::V1).await.unwrap_err();
            assert_eq!(error.is_transient(), is_transient, "{error}");
        }
        assert_eq!((client.version(), requests.load(Ordering::Relaxed)), (DraVersion::V1, 2));
    }
}

#[tokio::test]
async fn answers_are_returned_whatever_their_status_unless_they_ask_to_retry() {
    let exchange = async |status| {
        let client = DraClient::new(server(status, "body").0);
        let request = client.request(Method::GET, GROUP, JSON, Vec::new()).unwrap();
        client.exchange(request, 4).await
    };
    for status in [200, 404, 409] {
        assert_eq!(exchange(status).await.unwrap(), (StatusCode::from_u16(status).unwrap(), "body".into()));
    }
    assert!(matches!(exchange(429).await, Err(ApiError::RetryAfter { .. })));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_an_error() {
    let client = DraClient::new(server(200, "body").0);
    let request = client.request(Method::GET, GROUP, JSON, Vec::new()).unwrap();
    assert!(matches!(client.exchange(request, 3).await, Err(ApiError::Send(_))));
}

#[tokio::test]
async fn only_requests_with_a_body_have_a_content_type() {
    let client = DraClient::new(serving(&[]).0);
    let content_type = |body: &[u8]| {
        let request = client.request(Method::POST, GROUP, JSON, body.to_vec()).unwrap();
        assert_eq!(request.headers()[header::ACCEPT], JSON);
        request.headers().get(header::CONTENT_TYPE).cloned()
    };
    assert_eq!(content_type(b""), None);
    assert_eq!(content_type(b"{}").unwrap(), JSON);
    assert!(matches!(client.request(Method::GET, "no path", JSON, Vec::new()), Err(ApiError::Send(_))));
}

#[test]
fn all_but_unreserved_characters_are_escaped() {
    assert_eq!(escape("AZaz09-._~").to_string(), "AZaz09-._~");
    assert_eq!(escape("spec.driver=a,b&c d/e?%+").to_string(), "spec.driver%3Da%2Cb%26c%20d%2Fe%3F%25%2B");
    assert_eq!(escape("ä\0").to_string(), "%C3%A4%00");
}
