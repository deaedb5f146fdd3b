//! Fetching claims from the API server.

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

use crate::support::{DRIVER, Kubelet, Line, Node, Ongoing, PATIENCE, TestClaim, TestDriver};

const V1_PATH: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

/// A node, and a driver on it that prepares whatever was allocated.
struct Scene {
    node: Node,
    driver: TestDriver,
    helper: Helper,
    kubelet: Kubelet,
}

impl Scene {
    async fn new() -> Self {
        Self::with(TestDriver::default()).await
    }

    async fn with(driver: TestDriver) -> Self {
        let node = Node::default();
        let helper = node.start(&driver).await;
        let kubelet = Kubelet::of(&helper).await;
        Self { node, driver, helper, kubelet }
    }

    /// A driver whose requests to the API server wait for something first.
    async fn waiting(before: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        let (node, driver) = (Node::default(), TestDriver::default());
        let api = node.api.client();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (api, wait) = (api.clone(), before());
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

    /// A claim with one device that no other claim has.
    fn claim(&self, name: &str) -> TestClaim {
        self.node.claim(TestClaim::new(name, &format!("uid-of-{name}")).device("gpu", &format!("gpu-{name}")))
    }
}

fn named(namespace: &str, name: &str, uid: &str) -> ClaimId {
    ClaimId { namespace: namespace.into(), name: name.into(), uid: uid.into() }
}

/// The claim in the form that it has in another version of the API.
fn in_version(claim: &TestClaim, version: &str) -> Value {
    let mut object = claim.object.clone();
    object["apiVersion"] = json!(format!("resource.k8s.io/{version}"));
    if version == "v1beta1" {
        object["spec"]["devices"]["requests"] = json!([{"name": "gpu", "deviceClassName": "gpus", "count": 1}]);
    }
    object
}

/// G16: one bad claim fails alone, whatever is wrong with it.
#[tokio::test]
async fn bad_claims_of_every_kind_fail_alone() {
    let scene = Scene::new().await;
    let good = scene.claim("good");
    let stranger = json!({"request": "nic", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"});
    scene.node.claim(TestClaim::new("reborn", "uid-of-another").device("gpu", "gpu-1"));
    scene.node.claim(TestClaim::new("foreign", "uid-of-foreign").result(stranger));
    scene.node.claim(TestClaim::new("empty", "uid-of-empty"));
    let mut pending = TestClaim::new("pending", "uid-of-pending");
    pending.object["status"] = json!({});
    let mut young = TestClaim::new("young", "uid-of-young");
    young.object.as_object_mut().unwrap().remove("status");
    scene.node.claim(pending);
    scene.node.claim(young);
    let bad = [
        (
            "default",
            "unknown",
            "uid-of-unknown",
            "get resourceclaim default/unknown (uid uid-of-unknown): it does not exist",
        ),
        ("default", "reborn", "uid-of-reborn", "is now another, with uid uid-of-another"),
        ("default", "foreign", "uid-of-foreign", "no device of it is from driver gpu.example.com"),
        ("default", "empty", "uid-of-empty", "no device of it is from driver gpu.example.com"),
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

    let mut answers = scene.kubelet.0.prepare(call).await.unwrap();

    assert_eq!(answers.len(), bad.len() + 1, "an answer for each, and no other: {answers:?}");
    assert_eq!(answers.remove(good.uid()).unwrap().unwrap().len(), 1);
    for (_, _, uid, expected) in bad {
        let error = answers.remove(uid).unwrap().unwrap_err();
        assert!(error.contains(expected), "claim with uid {uid:?}: {error}");
    }
    assert_eq!(scene.driver.take_calls(), ["prepare good"]);
    let claims: Vec<_> =
        std::fs::read_dir(scene.node.plugin_directory().join("dra-device-metadata")).unwrap().collect();
    assert_eq!(claims.len(), 1, "only the good claim has files: {claims:?}");
}

/// G16, for unprepare: a claim that cannot be is told, and the others are unprepared.
#[tokio::test]
async fn bad_names_in_an_unprepare_fail_alone() {
    let scene = Scene::new().await;
    let (one, mut bad) = (scene.claim("one"), TestClaim::new("two", ".."));
    bad.object["metadata"]["name"] = json!("../one");
    scene.kubelet.prepare_one(&one).await.unwrap();

    let answers = scene.kubelet.unprepare(&[&bad, &one]).await;

    assert_eq!(answers[one.uid()], Ok(()));
    assert!(answers[".."].as_ref().unwrap_err().contains("claim name"), "{answers:?}");
    assert!(!scene.node.metadata_file(&one, "gpu").exists());
    assert_eq!(scene.driver.take_calls(), ["prepare one", "unprepare one"]);
}

/// G17: a claim costs one request, and so does one that does not exist; an unprepare costs none.
#[tokio::test]
async fn a_claim_costs_one_request_whether_it_exists_or_not() {
    let scene = Scene::new().await;
    let claim = scene.claim("there");
    let missing = TestClaim::new("missing", "uid-of-missing");

    scene.kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(scene.node.api.take_log(), [format!("{V1_PATH}/there")]);

    let error = scene.kubelet.prepare_one(&missing).await.unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    assert_eq!(scene.node.api.take_log(), [format!("{V1_PATH}/missing")]);

    scene.kubelet.unprepare_one(&claim).await.unwrap();
    assert!(scene.node.api.take_log().is_empty());
}

/// G17: the claims of a batch are fetched at the same time: none of these requests is answered before all are there.
#[tokio::test]
async fn all_claims_of_a_batch_are_fetched_at_once() {
    let (barrier, tries) = (Arc::new(Barrier::new(64)), Arc::new(AtomicUsize::new(0)));
    let counted = tries.clone();
    let scene = Scene::waiting(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let barrier = barrier.clone();
        Box::pin(async move {
            barrier.wait().await;
        })
    })
    .await;
    let claims: Vec<TestClaim> = (0..64).map(|number| scene.claim(&format!("c{number}"))).collect();

    let answers = scene.kubelet.prepare(&claims.iter().collect::<Vec<_>>()).await;

    assert_eq!(answers.values().filter(|answer| answer.is_ok()).count(), 64);
    assert_eq!(tries.load(Ordering::SeqCst), 64, "none had to be given up and tried again");
}

/// G17: however large the batch is, the API server has no more than 64 requests to answer at a time.
#[tokio::test]
async fn no_more_than_64_requests_are_on_their_way_at_once() {
    let scene = Scene::new().await;
    scene.node.api.slow_down(Duration::from_millis(20));
    let claims: Vec<TestClaim> = (0..200).map(|number| scene.claim(&format!("c{number}"))).collect();

    let answers = scene.kubelet.prepare(&claims.iter().collect::<Vec<_>>()).await;

    assert_eq!(answers.values().filter(|answer| answer.is_ok()).count(), 200);
    assert_eq!(scene.node.api.take_log().len(), 200);
    let most = scene.node.api.most_in_flight();
    assert!((2..=64).contains(&most), "{most} at once");
}

/// G17: an API server without v1 is asked once which versions it has, and from then on in the best of them.
#[tokio::test]
async fn an_older_api_server_is_asked_in_the_version_that_it_has() {
    for version in ["v1beta2", "v1beta1"] {
        let scene = Scene::new().await;
        scene.node.api.serve_only(&[version]);
        let (one, two) = (scene.claim("one"), scene.claim("two"));
        scene.node.api.put(&in_version(&one, version));
        scene.node.api.put(&in_version(&two, version));
        let path = format!("/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims");

        assert_eq!(scene.kubelet.prepare_one(&one).await.unwrap().len(), 1, "{version}");
        let log = scene.node.api.take_log();
        assert_eq!(log, [format!("{V1_PATH}/one"), "/apis/resource.k8s.io".to_owned(), format!("{path}/one")]);

        assert_eq!(scene.kubelet.prepare_one(&two).await.unwrap().len(), 1, "{version}");
        assert_eq!(scene.node.api.take_log(), [format!("{path}/two")]);

        let error = scene.kubelet.prepare_one(&TestClaim::new("missing", "uid")).await.unwrap_err();
        assert!(error.contains("does not exist"), "{error}");
        assert_eq!(scene.node.api.take_log(), [format!("{path}/missing")]);
    }
}

/// G17: an API server can be another one tomorrow.
#[tokio::test]
async fn an_api_server_that_changes_its_versions_is_followed() {
    let scene = Scene::new().await;
    for (name, version) in [("one", "v1"), ("two", "v1beta1"), ("three", "v1beta2"), ("four", "v1")] {
        let claim = scene.claim(name);
        scene.node.api.serve_only(&[version]);
        scene.node.api.put(&in_version(&claim, version));
        assert_eq!(scene.kubelet.prepare_one(&claim).await.unwrap().len(), 1, "{name} in {version}");
    }
}

/// G17: what the server does not have is said, with what was looked for.
#[tokio::test]
async fn an_api_server_without_any_known_version_is_told_of() {
    let scene = Scene::new().await;
    let claim = scene.claim("one");
    scene.node.api.serve_only(&["v1alpha3"]);

    let error = scene.kubelet.prepare_one(&claim).await.unwrap_err();

    assert!(error.contains("serves none of resource.k8s.io/v1, resource.k8s.io/v1beta2"), "{error}");
    assert_eq!(scene.node.api.take_log().len(), 2);
}

/// G17: the driver sees one form of requests, whatever version the API server has.
#[tokio::test]
async fn requests_of_v1beta1_have_the_form_of_today() {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let driver = TestDriver::preparing(move |claim| {
        *keep.lock().unwrap() = Some(serde_json::to_value(claim.object()).unwrap());
        Ok(vec![])
    });
    let scene = Scene::with(driver).await;
    scene.node.api.serve_only(&["v1beta1"]);
    let claim = scene.claim("one");
    let mut object = in_version(&claim, "v1beta1");
    let alternatives = json!([{"name": "large", "deviceClassName": "large-gpus"}]);
    object["spec"]["devices"]["requests"] = json!([
        {"name": "gpu", "deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2, "adminAccess": false},
        {"name": "any", "firstAvailable": alternatives},
    ]);
    scene.node.api.put(&object);

    scene.kubelet.prepare_one(&claim).await.unwrap();

    let seen = seen.lock().unwrap().take().unwrap();
    let exactly = json!({"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2, "adminAccess": false});
    let expected = json!([{"name": "gpu", "exactly": exactly}, {"name": "any", "firstAvailable": alternatives}]);
    assert_eq!(seen["spec"]["devices"]["requests"], expected);
}

/// Trouble of the API server that passes is not the kubelet's: it would come back after a minute at the earliest.
#[tokio::test]
async fn trouble_that_passes_is_waited_for_within_the_call() {
    let scene = Scene::new().await;
    let claim = scene.claim("one");
    scene.node.api.fail_next(&[StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS]);

    assert_eq!(scene.kubelet.prepare_one(&claim).await.unwrap().len(), 1);

    assert_eq!(scene.node.api.take_log().len(), 3);
}

/// A token that is being rotated is refused for a moment.
#[tokio::test]
async fn a_token_that_is_refused_once_fails_no_prepare() {
    let scene = Scene::new().await;
    let claim = scene.claim("one");
    scene.node.api.fail_next(&[StatusCode::UNAUTHORIZED]);

    assert_eq!(scene.kubelet.prepare_one(&claim).await.unwrap().len(), 1);

    assert_eq!(scene.node.api.take_log().len(), 2);
    scene.node.api.fail_next(&[StatusCode::UNAUTHORIZED; 20]);
    let error = scene.kubelet.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains("401") && error.contains("not today"), "{error}");
    assert_eq!(scene.node.api.take_log().len(), 5);
}

/// Tries are bounded, and what the server said last is told.
#[tokio::test]
async fn trouble_that_does_not_pass_is_an_error_after_five_tries() {
    let scene = Scene::new().await;
    let claim = scene.claim("one");
    scene.node.api.fail_next(&[StatusCode::INTERNAL_SERVER_ERROR; 20]);

    let error = scene.kubelet.prepare_one(&claim).await.unwrap_err();

    assert!(error.contains("default/one (uid uid-of-one)") && error.contains("500"), "{error}");
    assert!(error.contains("not today"), "{error}");
    assert_eq!(scene.node.api.take_log().len(), 5);
    assert!(scene.driver.take_calls().is_empty());
}

/// A refusal is final: it is not tried again, and told in the server's words.
#[tokio::test]
async fn a_refusal_is_told_at_once_in_the_servers_words() {
    let scene = Scene::new().await;
    let claim = scene.claim("one");
    for refusal in [StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST] {
        scene.node.api.fail_next(&[refusal]);
        let error = scene.kubelet.prepare_one(&claim).await.unwrap_err();
        assert!(error.contains(refusal.as_str()) && error.contains("not today"), "{error}");
        assert_eq!(scene.node.api.take_log().len(), 1, "{refusal}");
    }
    assert!(scene.driver.take_calls().is_empty());
    assert_eq!(scene.kubelet.prepare_one(&claim).await.unwrap().len(), 1);
}

/// An API server that never answers costs the kubelet its deadline, and no more. The driver's side is over then, also
/// when it does not hear that the kubelet has given up.
#[tokio::test]
async fn a_hanging_api_server_costs_no_more_than_the_kubelets_deadline() {
    let ongoing = Ongoing::default();
    let requests = ongoing.clone();
    let scene = Scene::waiting(move || {
        let one = requests.one();
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(one);
        })
    })
    .await;
    let claim = scene.claim("one");
    let line = Line::to(&scene.node, &scene.helper);
    let kubelet = Kubelet::at(&line.socket).await;
    let (deadline, started) = (Duration::from_millis(500), Instant::now());

    let call = tokio::spawn(async move { kubelet.prepare_within(deadline, &claim).await });
    ongoing.wait_for(1).await;
    line.mute();
    assert!(call.await.unwrap().is_err());
    ongoing.wait_for(0).await;

    // A try alone is given longer.
    let took = started.elapsed();
    assert!(took >= deadline && took < Duration::from_secs(8), "{took:?}");
    assert!(scene.driver.take_calls().is_empty());
    tokio::time::timeout(PATIENCE, scene.helper.stop()).await.unwrap().unwrap();
}

/// A claim that a call names twice is prepared once, and answered.
#[tokio::test]
async fn a_claim_that_is_asked_for_twice_is_prepared_once() {
    let scene = Scene::new().await;
    let claim = scene.claim("one");

    let answers = scene.kubelet.prepare(&[&claim, &claim]).await;
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[claim.uid()].as_ref().unwrap().len(), 1);
    assert_eq!(scene.node.api.take_log().len(), 1);

    assert_eq!(scene.kubelet.unprepare(&[&claim, &claim]).await, [(claim.uid().to_owned(), Ok(()))].into());
    assert_eq!(scene.driver.take_calls(), ["prepare one", "unprepare one"]);
}

/// G16, G32: an older and a newer claim of one name in the same call are two claims, and do not wait for each other.
#[tokio::test]
async fn an_older_and_a_newer_claim_of_one_name_are_told_apart_in_one_call() {
    let scene = Scene::new().await;
    let older = TestClaim::new("one", "older").device("gpu", "gpu-0");
    let newer = scene.node.claim(TestClaim::new("one", "newer").device("gpu", "gpu-1"));

    let answers = scene.kubelet.prepare(&[&older, &newer]).await;
    assert!(answers["older"].as_ref().unwrap_err().contains("is now another, with uid newer"), "{answers:?}");
    assert!(answers["newer"].is_ok(), "{answers:?}");

    assert_eq!(scene.kubelet.unprepare(&[&older]).await, [("older".to_owned(), Ok(()))].into());
    assert_eq!(scene.node.metadata(&newer, "gpu")["metadata"]["uid"], "newer");

    let both = scene.kubelet.unprepare(&[&older, &newer]).await;
    assert!(both.values().all(Result::is_ok), "{both:?}");
    assert!(!scene.node.metadata_file(&newer, "gpu").exists());
}

/// Section 2.4: parameters for a device are those without requests, for its request or for its very subrequest, and only
/// this driver's.
#[test]
fn a_device_has_the_parameters_that_are_meant_for_it() {
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
