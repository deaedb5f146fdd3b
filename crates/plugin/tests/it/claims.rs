//! Tests of fetching claims from the API server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drakkar_node::kubelet::ClaimId;
use drakkar_plugin::{Claim, Helper};
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::support::{DRIVER, InFlight, Kubelet, Node, SocketProxy, TIMEOUT, TestClaim, TestDriver};

const V1_PATH: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

/// A node with a driver that prepares all allocated devices.
struct Fixture {
    node: Node,
    driver: TestDriver,
    helper: Helper,
    kubelet: Kubelet,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(TestDriver::default()).await
    }

    async fn with(driver: TestDriver) -> Self {
        let node = Node::default();
        let helper = node.start(&driver).await;
        let kubelet = Kubelet::of(&helper).await;
        Self { node, driver, helper, kubelet }
    }

    /// Starts a driver whose requests to the API server wait for a future first.
    async fn waiting(before: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        let node = Node::default();
        let driver = TestDriver::default();
        let api = node.api.client();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            let wait = before();
            async move {
                wait.await;
                api.send(request).await
            }
        });
        let builder = node.builder().client(kube::Client::new(service, "default"));
        let helper = builder.start(driver.clone()).await.unwrap();
        let kubelet = Kubelet::of(&helper).await;
        Self { node, driver, helper, kubelet }
    }

    /// Creates a claim with a device of its own.
    fn claim(&self, name: &str) -> TestClaim {
        self.node.named_claim(name)
    }
}

fn named(namespace: &str, name: &str, uid: &str) -> ClaimId {
    ClaimId { namespace: namespace.into(), name: name.into(), uid: uid.into() }
}

/// Returns the claim in another version of the API.
fn in_version(claim: &TestClaim, version: &str) -> Value {
    let mut object = claim.object.clone();
    object["apiVersion"] = json!(format!("resource.k8s.io/{version}"));
    if version == "v1beta1" {
        object["spec"]["devices"]["requests"] = json!([{"name": "gpu", "deviceClassName": "gpus", "count": 1}]);
    }
    object
}

/// G16: an invalid claim fails alone, whatever is wrong with it.
#[tokio::test]
async fn bad_claims_of_every_kind_fail_alone() {
    let fixture = Fixture::new().await;
    let good = fixture.claim("good");
    let other_driver = json!({"request": "nic", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"});
    fixture.node.claim(TestClaim::new("reborn", "uid-of-another").device("gpu", "gpu-1"));
    fixture.node.claim(TestClaim::new("foreign", "uid-of-foreign").result(other_driver));
    fixture.node.claim(TestClaim::new("empty", "uid-of-empty"));
    let mut pending = TestClaim::new("pending", "uid-of-pending");
    pending.object["status"] = json!({});
    let mut young = TestClaim::new("young", "uid-of-young");
    young.object.as_object_mut().unwrap().remove("status");
    fixture.node.claim(pending);
    fixture.node.claim(young);
    let bad = [
        (
            "default",
            "unknown",
            "uid-of-unknown",
            "get resourceclaim default/unknown (uid uid-of-unknown): it does not exist",
        ),
        ("default", "reborn", "uid-of-reborn", "another claim has that name now, with uid uid-of-another"),
        ("default", "foreign", "uid-of-foreign", "but has no device of driver gpu.example.com"),
        ("default", "empty", "uid-of-empty", "but has no device of driver gpu.example.com"),
        ("default", "pending", "uid-of-pending", "default/pending (uid uid-of-pending) is not allocated"),
        ("default", "young", "uid-of-young", "default/young (uid uid-of-young) is not allocated"),
        ("..", "good", "1", "namespace \"..\""),
        ("a/b", "good", "2", "namespace \"a/b\""),
        ("", "good", "3", "namespace \"\": must not be empty"),
        ("default", "..", "4", "claim name \"..\""),
        ("default", "../good", "5", "claim name \"../good\""),
        ("default", "", "6", "claim name \"\": must not be empty"),
        ("default", "good", "..", "claim UID \"..\""),
        ("default", "good", "../7", "claim UID \"../7\""),
        ("default", "good", "", "claim UID \"\": must not be empty"),
    ];
    let mut call: Vec<ClaimId> = bad.iter().map(|(namespace, name, uid, _)| named(namespace, name, uid)).collect();
    call.insert(7, (&good).into());

    let mut responses = fixture.kubelet.0.prepare(call).await.unwrap();

    assert_eq!(responses.len(), bad.len() + 1, "one response for each claim: {responses:?}");
    assert_eq!(responses.remove(good.uid()).unwrap().unwrap().len(), 1);
    for (_, _, uid, expected) in bad {
        let error = responses.remove(uid).unwrap().unwrap_err();
        assert!(error.contains(expected), "claim with uid {uid:?}: {error}");
    }
    assert_eq!(fixture.driver.take_calls(), ["prepare good"]);
    let claims: Vec<_> =
        std::fs::read_dir(fixture.node.plugin_directory().join("dra-device-metadata")).unwrap().collect();
    assert_eq!(claims.len(), 1, "only the good claim has files: {claims:?}");
}

/// G16, for unprepare: an invalid name is an error, and the other claims are unprepared.
#[tokio::test]
async fn bad_names_in_an_unprepare_fail_alone() {
    let fixture = Fixture::new().await;
    let one = fixture.claim("one");
    let mut bad = TestClaim::new("two", "..");
    bad.object["metadata"]["name"] = json!("../one");
    fixture.kubelet.prepare_one(&one).await.unwrap();

    let responses = fixture.kubelet.unprepare(&[&bad, &one]).await;

    assert_eq!(responses[one.uid()], Ok(()));
    assert!(responses[".."].as_ref().unwrap_err().contains("claim name"), "{responses:?}");
    assert!(!fixture.node.metadata_file(&one, "gpu").exists());
    assert_eq!(fixture.driver.take_calls(), ["prepare one", "unprepare one"]);
}

/// G17: a claim costs one request, and so does one that does not exist; an unprepare costs none.
#[tokio::test]
async fn a_claim_costs_one_request_whether_it_exists_or_not() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("there");
    let missing = TestClaim::new("missing", "uid-of-missing");

    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.api.take_log(), [format!("{V1_PATH}/there")]);

    let error = fixture.kubelet.prepare_one(&missing).await.unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    assert_eq!(fixture.node.api.take_log(), [format!("{V1_PATH}/missing")]);

    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert!(fixture.node.api.take_log().is_empty());
}

/// G17: the claims of a batch are fetched concurrently: none of these requests gets a response before all have arrived.
#[tokio::test]
async fn all_claims_of_a_batch_are_fetched_concurrently() {
    let barrier = Arc::new(Barrier::new(64));
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let fixture = Fixture::waiting(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let barrier = barrier.clone();
        Box::pin(async move {
            barrier.wait().await;
        })
    })
    .await;
    let claims: Vec<TestClaim> = (0..64).map(|number| fixture.claim(&format!("c{number}"))).collect();

    let responses = fixture.kubelet.prepare(&claims.iter().collect::<Vec<_>>()).await;

    assert_eq!(responses.values().filter(|response| response.is_ok()).count(), 64);
    assert_eq!(requests.load(Ordering::SeqCst), 64, "no request was retried");
}

/// G17: however large the batch is, at most 64 requests are in flight.
#[tokio::test]
async fn no_more_than_64_requests_are_in_flight() {
    let fixture = Fixture::new().await;
    fixture.node.api.slow_down(Duration::from_millis(20));
    let claims: Vec<TestClaim> = (0..200).map(|number| fixture.claim(&format!("c{number}"))).collect();

    let responses = fixture.kubelet.prepare(&claims.iter().collect::<Vec<_>>()).await;

    assert_eq!(responses.values().filter(|response| response.is_ok()).count(), 200);
    assert_eq!(fixture.node.api.take_log().len(), 200);
    let max = fixture.node.api.max_in_flight();
    assert!((2..=64).contains(&max), "{max} at once");
}

/// G17: without v1, the API server's versions are discovered once, and the best of them is used from then on.
#[tokio::test]
async fn an_older_version_of_the_api_is_discovered_and_used() {
    for version in ["v1beta2", "v1beta1"] {
        let fixture = Fixture::new().await;
        fixture.node.api.serve_only(&[version]);
        let one = fixture.claim("one");
        let two = fixture.claim("two");
        fixture.node.api.put(&in_version(&one, version));
        fixture.node.api.put(&in_version(&two, version));
        let path = format!("/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims");

        assert_eq!(fixture.kubelet.prepare_one(&one).await.unwrap().len(), 1, "{version}");
        let log = fixture.node.api.take_log();
        assert_eq!(log, [format!("{V1_PATH}/one"), "/apis/resource.k8s.io".to_owned(), format!("{path}/one")]);

        assert_eq!(fixture.kubelet.prepare_one(&two).await.unwrap().len(), 1, "{version}");
        assert_eq!(fixture.node.api.take_log(), [format!("{path}/two")]);

        let error = fixture.kubelet.prepare_one(&TestClaim::new("missing", "uid")).await.unwrap_err();
        assert!(error.contains("does not exist"), "{error}");
        assert_eq!(fixture.node.api.take_log(), [format!("{path}/missing")]);
    }
}

/// G17: an API server may be upgraded or downgraded while the driver runs.
#[tokio::test]
async fn a_change_of_the_api_servers_versions_is_followed() {
    let fixture = Fixture::new().await;
    for (name, version) in [("one", "v1"), ("two", "v1beta1"), ("three", "v1beta2"), ("four", "v1")] {
        let claim = fixture.claim(name);
        fixture.node.api.serve_only(&[version]);
        fixture.node.api.put(&in_version(&claim, version));
        assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap().len(), 1, "{name} in {version}");
    }
}

/// G17: the error names the versions that the driver supports.
#[tokio::test]
async fn an_api_server_without_a_supported_version_is_an_error() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one");
    fixture.node.api.serve_only(&["v1alpha3"]);

    let error = fixture.kubelet.prepare_one(&claim).await.unwrap_err();

    assert!(error.contains("serves none of resource.k8s.io/v1, resource.k8s.io/v1beta2"), "{error}");
    assert_eq!(fixture.node.api.take_log().len(), 2);
}

/// G17: the driver sees v1, whatever version the API server has.
#[tokio::test]
async fn requests_of_v1beta1_are_converted_to_v1() {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let driver = TestDriver::preparing(move |claim| {
        *keep.lock().unwrap() = Some(serde_json::to_value(claim.object()).unwrap());
        Ok(vec![])
    });
    let fixture = Fixture::with(driver).await;
    fixture.node.api.serve_only(&["v1beta1"]);
    let claim = fixture.claim("one");
    let mut object = in_version(&claim, "v1beta1");
    let alternatives = json!([{"name": "large", "deviceClassName": "large-gpus"}]);
    object["spec"]["devices"]["requests"] = json!([
        {"name": "gpu", "deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2, "adminAccess": false},
        {"name": "any", "firstAvailable": alternatives},
    ]);
    fixture.node.api.put(&object);

    fixture.kubelet.prepare_one(&claim).await.unwrap();

    let seen = seen.lock().unwrap().take().unwrap();
    let exactly = json!({"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2, "adminAccess": false});
    let expected = json!([{"name": "gpu", "exactly": exactly}, {"name": "any", "firstAvailable": alternatives}]);
    assert_eq!(seen["spec"]["devices"]["requests"], expected);
}

/// The kubelet would retry after a minute at the earliest.
#[tokio::test]
async fn a_transient_failure_of_the_api_server_is_retried_within_the_call() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one");
    fixture.node.api.fail_next(&[StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS]);

    assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap().len(), 1);

    assert_eq!(fixture.node.api.take_log().len(), 3);
}

/// A token may be refused for a moment while it is rotated.
#[tokio::test]
async fn a_token_that_is_refused_once_does_not_fail_a_prepare() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one");
    fixture.node.api.fail_next(&[StatusCode::UNAUTHORIZED]);

    assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap().len(), 1);

    assert_eq!(fixture.node.api.take_log().len(), 2);
    fixture.node.api.fail_next(&[StatusCode::UNAUTHORIZED; 20]);
    let error = fixture.kubelet.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains("401") && error.contains("not today"), "{error}");
    assert_eq!(fixture.node.api.take_log().len(), 5);
}

/// The number of attempts is limited, and the error is the last response of the server.
#[tokio::test]
async fn a_failure_that_persists_is_an_error_after_five_attempts() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one");
    fixture.node.api.fail_next(&[StatusCode::INTERNAL_SERVER_ERROR; 20]);

    let error = fixture.kubelet.prepare_one(&claim).await.unwrap_err();

    assert!(error.contains("default/one (uid uid-of-one)") && error.contains("500"), "{error}");
    assert!(error.contains("not today"), "{error}");
    assert_eq!(fixture.node.api.take_log().len(), 5);
    assert!(fixture.driver.take_calls().is_empty());
}

/// A refusal is permanent: it is not retried, and the error has the server's message.
#[tokio::test]
async fn a_refusal_is_not_retried_and_has_the_servers_message() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one");
    for refusal in [StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST] {
        fixture.node.api.fail_next(&[refusal]);
        let error = fixture.kubelet.prepare_one(&claim).await.unwrap_err();
        assert!(error.contains(refusal.as_str()) && error.contains("not today"), "{error}");
        assert_eq!(fixture.node.api.take_log().len(), 1, "{refusal}");
    }
    assert!(fixture.driver.take_calls().is_empty());
    assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap().len(), 1);
}

/// The call ends at the kubelet's deadline, even if the framework is not notified that the kubelet has cancelled it.
#[tokio::test]
async fn a_call_with_a_hanging_api_server_ends_at_the_kubelets_deadline() {
    let in_flight = InFlight::default();
    let requests = in_flight.clone();
    let fixture = Fixture::waiting(move || {
        let guard = requests.enter();
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(guard);
        })
    })
    .await;
    let claim = fixture.claim("one");
    let proxy = SocketProxy::to(&fixture.node, &fixture.helper);
    let kubelet = Kubelet::at(&proxy.socket).await;
    let deadline = Duration::from_millis(500);
    let started = Instant::now();

    let call = tokio::spawn(async move { kubelet.prepare_within(deadline, &claim).await });
    in_flight.wait_for(1).await;
    proxy.stop_forwarding();
    assert!(call.await.unwrap().is_err());
    in_flight.wait_for(0).await;

    // A single request would have a longer time limit.
    let took = started.elapsed();
    assert!(took >= deadline && took < Duration::from_secs(8), "{took:?}");
    assert!(fixture.driver.take_calls().is_empty());
    tokio::time::timeout(TIMEOUT, fixture.helper.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_claim_that_is_twice_in_a_call_is_prepared_once() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one");

    let responses = fixture.kubelet.prepare(&[&claim, &claim]).await;
    assert_eq!(responses.len(), 1);
    assert_eq!(responses[claim.uid()].as_ref().unwrap().len(), 1);
    assert_eq!(fixture.node.api.take_log().len(), 1);

    assert_eq!(fixture.kubelet.unprepare(&[&claim, &claim]).await, [(claim.uid().to_owned(), Ok(()))].into());
    assert_eq!(fixture.driver.take_calls(), ["prepare one", "unprepare one"]);
}

/// G16, G32: an older and a newer claim with the same name in one call are two claims, and do not wait for each other.
#[tokio::test]
async fn an_older_and_a_newer_claim_with_the_same_name_are_distinguished_in_one_call() {
    let fixture = Fixture::new().await;
    let older = TestClaim::new("one", "older").device("gpu", "gpu-0");
    let newer = fixture.node.claim(TestClaim::new("one", "newer").device("gpu", "gpu-1"));

    let responses = fixture.kubelet.prepare(&[&older, &newer]).await;
    assert!(
        responses["older"].as_ref().unwrap_err().contains("another claim has that name now, with uid newer"),
        "{responses:?}"
    );
    assert!(responses["newer"].is_ok(), "{responses:?}");

    assert_eq!(fixture.kubelet.unprepare(&[&older]).await, [("older".to_owned(), Ok(()))].into());
    assert_eq!(fixture.node.metadata(&newer, "gpu")["metadata"]["uid"], "newer");

    let both = fixture.kubelet.unprepare(&[&older, &newer]).await;
    assert!(both.values().all(Result::is_ok), "{both:?}");
    assert!(!fixture.node.metadata_file(&newer, "gpu").exists());
}

/// Section 2.4: parameters without requests, for the device's request or for its subrequest apply, and only this driver's.
#[test]
fn a_device_has_the_parameters_that_apply_to_it() {
    let config = |requests: Value, driver: &str, text: &str| {
        let opaque = json!({"driver": driver, "parameters": {"is": text}});
        json!({"source": "FromClass", "requests": requests, "opaque": opaque})
    };
    let mut claim = TestClaim::new("one", "uid").device("gpu/large", "gpu-0").device("nic", "nic-0");
    claim.object["status"]["allocation"]["devices"]["config"] = json!([
        config(json!([]), DRIVER, "for all"),
        config(json!(["gpu"]), DRIVER, "for the request"),
        config(json!(["gpu/large"]), DRIVER, "for the subrequest"),
        config(json!(["gpu/small"]), DRIVER, "for another subrequest"),
        config(json!(["gpu"]), "nic.example.com", "for another driver"),
    ]);
    let claim = Claim::from_object(DRIVER, serde_json::from_value(claim.object).unwrap()).unwrap();
    let parameters = |request: &str| -> Vec<String> {
        let result = claim.results().find(|result| result.request == request).unwrap();
        claim.parameters(result).map(|parameters| parameters.value["is"].as_str().unwrap().to_owned()).collect()
    };

    assert_eq!(parameters("gpu/large"), ["for all", "for the request", "for the subrequest"]);
    assert_eq!(parameters("nic"), ["for all"]);
}
