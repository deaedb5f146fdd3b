//! What the kubelet is answered: the driver's devices, checked, and with metadata for just the right containers.

use std::error::Error;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drakkar_node::kubelet::Device as Answered;
use drakkar_plugin::{
    Batch, BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, Helper, Outcomes, PluginBuilder,
};
use serde_json::{Value, json};

use crate::support::{
    DRIVER, Kubelet, Line, Node, Ongoing, PATIENCE, TestClaim, TestDriver, cdi_devices, eventually, in_time,
};

/// A node, a driver on it, and its kubelet.
struct Scene {
    node: Node,
    helper: Helper,
    kubelet: Kubelet,
}

impl Scene {
    async fn new(driver: impl DraPlugin) -> Self {
        Self::with(driver, |builder| builder).await
    }

    async fn with(driver: impl DraPlugin, set: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        let node = Node::default();
        let helper = set(node.builder()).start(driver).await.unwrap();
        let kubelet = Kubelet::of(&helper).await;
        Self { node, helper, kubelet }
    }

    /// A claim with a device of its own.
    fn claim(&self, name: &str) -> TestClaim {
        self.node.claim(TestClaim::new(name, &format!("uid-of-{name}")).device("gpu", &format!("gpu-{name}")))
    }

    /// Whether anything has been written for any claim.
    fn has_files(&self) -> bool {
        self.node.files().iter().any(|file| file.ends_with(".json"))
    }
}

/// The allocated devices, as a driver without metadata returns them.
fn allocated(claim: &Claim) -> Vec<Device> {
    let own_id = |device: &str| format!("{DRIVER}/gpu={device}");
    claim.results().map(|result| Device { cdi_device_ids: vec![own_id(&result.device)], ..result.into() }).collect()
}

/// A device of `node-1`, with a CDI device of its own.
fn device(requests: &[&str], name: &str) -> Device {
    Device {
        requests: requests.iter().map(ToString::to_string).collect(),
        pool_name: "node-1".into(),
        device_name: name.into(),
        cdi_device_ids: vec![format!("{DRIVER}/gpu={name}")],
        ..Device::default()
    }
}

/// The CDI devices that a kubelet gives to a container, as section 2.3 has it: a container that references the whole
/// claim gets all, another those of devices for its request and of devices for all requests.
fn handed_to(container: Option<&str>, devices: &[Answered]) -> Vec<String> {
    let is_meant = |device: &&Answered| match container {
        None => true,
        Some(request) => device.request_names.is_empty() || device.request_names.iter().any(|name| name == request),
    };
    devices.iter().filter(is_meant).flat_map(|device| device.cdi_device_ids.clone()).collect()
}

fn metadata_id(claim: &TestClaim, request: &str) -> String {
    format!("{DRIVER}/metadata={}_{request}", claim.uid())
}

/// A driver that has a better way for many claims.
struct BatchDriver<P, U> {
    prepare: P,
    unprepare: U,
}

impl<P, U> DraPlugin for BatchDriver<P, U>
where
    P: Fn(&[Claim]) -> Outcomes<Vec<Device>> + Send + Sync + 'static,
    U: Fn(&[ClaimRef]) -> Outcomes<()> + Send + Sync + 'static,
{
    async fn prepare(&self, _: &Claim) -> Result<Vec<Device>, BoxError> {
        Err("the batch is to be prepared".into())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Err("the batch is to be unprepared".into())
    }

    async fn prepare_batch(&self, claims: &Batch<Claim>) -> Outcomes<Vec<Device>> {
        (self.prepare)(claims)
    }

    async fn unprepare_batch(&self, claims: &Batch<ClaimRef>) -> Outcomes<()> {
        (self.unprepare)(claims)
    }
}

/// G18: every claim of a batch gets exactly one answer: what the driver left out has failed, what it made up is dropped.
#[tokio::test]
async fn a_batch_has_one_answer_for_each_claim_whatever_the_driver_answers() {
    let forgets = Arc::new(AtomicBool::new(true));
    let is_forgetful = forgets.clone();
    let driver = BatchDriver {
        prepare: |claims: &[Claim]| {
            let known = claims.iter().filter(|claim| claim.reference().name != "forgotten");
            let mut outcomes: Outcomes<_> =
                known.map(|claim| (claim.reference().uid.clone(), Ok(allocated(claim)))).collect();
            outcomes.insert("made-up".parse().unwrap(), Ok(vec![device(&[], "gpu-9")]));
            outcomes
        },
        unprepare: move |claims: &[ClaimRef]| {
            let forgets = is_forgetful.load(Ordering::SeqCst);
            let known = claims.iter().filter(|claim| !forgets || claim.name != "two");
            let mut outcomes: Outcomes<()> = known.map(|claim| (claim.uid.clone(), Ok(()))).collect();
            outcomes.insert("made-up".parse().unwrap(), Err("no such claim".into()));
            outcomes
        },
    };
    let scene = Scene::new(driver).await;
    let (one, two, forgotten) = (scene.claim("one"), scene.claim("two"), scene.claim("forgotten"));

    let prepared = scene.kubelet.prepare(&[&one, &forgotten, &two]).await;

    assert_eq!(prepared.len(), 3, "{prepared:?}");
    assert!(prepared[one.uid()].is_ok() && prepared[two.uid()].is_ok());
    let error = prepared[forgotten.uid()].as_ref().unwrap_err();
    assert!(error.contains("did not say what became of the claim"), "{error}");
    assert!(!scene.node.metadata_file(&forgotten, "gpu").exists());

    let unprepared = scene.kubelet.unprepare(&[&one, &two]).await;

    assert_eq!(unprepared.len(), 2, "{unprepared:?}");
    assert_eq!(unprepared[one.uid()], Ok(()));
    assert!(unprepared[two.uid()].as_ref().unwrap_err().contains("did not say"));
    assert!(!scene.node.metadata_file(&one, "gpu").exists());
    assert!(scene.node.metadata_file(&two, "gpu").exists());
    forgets.store(false, Ordering::SeqCst);
    scene.kubelet.unprepare_one(&two).await.unwrap();
    assert!(!scene.has_files());
}

/// G19: an answer that no kubelet could use, or that is not the claim's, is that claim's error. It names what is wrong,
/// nothing is written, and the devices stay with the claim until it is unprepared.
#[tokio::test]
async fn a_bad_answer_is_refused_and_leaves_nothing() {
    let answer = Arc::new(Mutex::new(Device::default()));
    let current = answer.clone();
    let driver = TestDriver::preparing(move |claim| match claim.reference().name.as_str() {
        "bad" => Ok(vec![device(&["gpu/large"], "gpu-0"), current.lock().unwrap().clone()]),
        _ => Ok(allocated(claim)),
    });
    let scene = Scene::new(driver).await;
    let shared = |share: &str| json!({"request": "gpu/large", "driver": DRIVER, "pool": "node-1", "device": "gpu-1", "shareID": share});
    let foreign = json!({"request": "nic", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"});
    let bad = TestClaim::new("bad", "uid-of-bad").device("gpu/large", "gpu-0").result(shared("s1")).result(foreign);
    let bad = scene.node.claim(bad);
    let next = TestClaim::new("next", "uid-of-next").device("gpu", "gpu-0").result(shared("s1"));
    let next = scene.node.claim(next);
    let good = || device(&["gpu"], "gpu-1");
    let id = |id: &str| Device { cdi_device_ids: vec![id.into()], ..good() };
    let pool = |pool: &str| Device { pool_name: pool.into(), ..good() };
    let cases = [
        (pool(""), "pool name \"\": must not be empty"),
        (pool("Node 1"), "pool name \"Node 1\""),
        (
            pool("node-2"),
            "device node-2/gpu-1, which was not allocated from it; allocated is node-1/gpu-0, node-1/gpu-1",
        ),
        (device(&["gpu"], ""), "device name \"\": must not be empty"),
        (device(&["gpu"], "GPU_1"), "device name \"GPU_1\""),
        (device(&["gpu"], "gpu-7"), "device node-1/gpu-7, which was not allocated from it"),
        (device(&["gpu"], "nic-0"), "device node-1/nic-0, which was not allocated from it"),
        (device(&["tpu"], "gpu-1"), "for request \"tpu\", for which it was not allocated; it was for gpu/large"),
        (device(&["gpu", "nic"], "gpu-1"), "for request \"nic\", for which it was not allocated"),
        (device(&["gpu/small"], "gpu-1"), "for request \"gpu/small\""),
        (device(&["gpu/"], "gpu-1"), "for request \"gpu/\""),
        (device(&[""], "gpu-1"), "for request \"\""),
        (device(&["../gpu"], "gpu-1"), "for request \"../gpu\""),
        (id(""), "with the CDI device \"\": "),
        (id("gpu-1"), "with the CDI device \"gpu-1\": "),
        (id("gpu.example.com/gpu"), "with the CDI device \"gpu.example.com/gpu\": "),
        (id("gpu.example.com/gpu="), "with the CDI device \"gpu.example.com/gpu=\": "),
        (id("0.example.com/gpu=1"), "with the CDI device \"0.example.com/gpu=1\": "),
        (id("gpu.example.com/gpu=../1"), "with the CDI device \"gpu.example.com/gpu=../1\": "),
        (Device { share_id: Some("s2".into()), ..good() }, "node-1/gpu-1 with share id \"s2\", which is none"),
    ];
    for (wrong, expected) in cases {
        *answer.lock().unwrap() = wrong;
        let error = scene.kubelet.prepare_one(&bad).await.unwrap_err();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(!scene.has_files(), "{expected}: {:?}", scene.node.files());
    }
    *answer.lock().unwrap() = good();
    scene.kubelet.prepare_one(&bad).await.unwrap();
    scene.kubelet.prepare_one(&next).await.unwrap_err();
    scene.kubelet.unprepare_one(&bad).await.unwrap();
    scene.kubelet.prepare_one(&next).await.unwrap();
}

/// G19: a bad answer is the error of its claim only.
#[tokio::test]
async fn a_bad_answer_for_one_claim_leaves_the_others_alone() {
    let driver = TestDriver::preparing(|claim| match claim.reference().name.as_str() {
        "bad" => Ok(vec![device(&["gpu"], "gpu-7")]),
        _ => Ok(allocated(claim)),
    });
    let scene = Scene::new(driver).await;
    let (bad, good) = (scene.claim("bad"), scene.claim("good"));

    let answers = scene.kubelet.prepare(&[&bad, &good]).await;

    assert!(answers[bad.uid()].is_err());
    assert_eq!(cdi_devices(answers[good.uid()].as_ref().unwrap()).len(), 2);
}

/// G14: a panic is the error of the claim that it happened for.
#[tokio::test]
async fn a_panic_of_the_driver_is_the_error_of_that_claim() {
    let driver = TestDriver::preparing(|claim| match claim.reference().name.as_str() {
        "hot" => panic!("gpu is on fire"),
        _ => Ok(allocated(claim)),
    });
    let driver = driver.unpreparing(|claim| match claim.name.as_str() {
        "stuck" => panic!("gpu does not let go of {}", claim.name),
        _ => Ok(()),
    });
    for serialize in [true, false] {
        let scene = Scene::with(driver.clone(), |builder| builder.serialize(serialize)).await;
        let (hot, stuck, good) = (scene.claim("hot"), scene.claim("stuck"), scene.claim("good"));

        let prepared = scene.kubelet.prepare(&[&hot, &stuck, &good]).await;
        assert_eq!(prepared[hot.uid()], Err("the driver panicked: gpu is on fire".to_owned()));
        assert!(prepared[stuck.uid()].is_ok() && prepared[good.uid()].is_ok());

        let unprepared = scene.kubelet.unprepare(&[&hot, &stuck, &good]).await;
        assert_eq!(unprepared[hot.uid()], Ok(()));
        assert_eq!(unprepared[stuck.uid()], Err("the driver panicked: gpu does not let go of stuck".to_owned()));
        assert_eq!(unprepared[good.uid()], Ok(()));
        assert!(scene.node.metadata_file(&stuck, "gpu").exists());
        assert!(!scene.node.metadata_file(&good, "gpu").exists());
        scene.kubelet.prepare_one(&good).await.unwrap();
    }
}

/// A driver that panics before it has even made a future.
struct Hasty;

impl DraPlugin for Hasty {
    fn prepare(&self, claim: &Claim) -> impl Future<Output = Result<Vec<Device>, BoxError>> + Send {
        assert_ne!(claim.reference().name, "hot", "too hasty");
        std::future::ready(Ok(allocated(claim)))
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }

    fn unprepare_batch(&self, claims: &Batch<ClaimRef>) -> impl Future<Output = Outcomes<()>> + Send {
        assert!(claims.iter().all(|claim| claim.name != "hot"), "too hasty with all");
        claims.each(|claim| self.unprepare(claim))
    }
}

/// G14: a driver's method may panic before there is a future of it; that too is an error of claims, not of the call.
#[tokio::test]
async fn a_panic_before_the_future_is_the_error_of_its_claims_too() {
    let scene = Scene::new(Hasty).await;
    let (hot, good) = (scene.claim("hot"), scene.claim("good"));

    let prepared = scene.kubelet.prepare(&[&hot, &good]).await;
    assert!(prepared[hot.uid()].as_ref().unwrap_err().contains("too hasty"), "{prepared:?}");
    assert!(prepared[good.uid()].is_ok());

    let unprepared = scene.kubelet.unprepare(&[&hot, &good]).await;
    assert!(unprepared[hot.uid()].as_ref().unwrap_err().contains("too hasty with all"), "{unprepared:?}");
    assert!(unprepared[good.uid()].is_err() && scene.node.metadata_file(&good, "gpu").exists());
    scene.kubelet.unprepare_one(&good).await.unwrap();
}

/// G14: a panic in the batch method is the error of the claims that the driver was asked for; those that failed before
/// keep their own errors, and the server lives.
#[tokio::test]
async fn a_panic_for_the_whole_batch_is_the_error_of_its_claims() {
    let panics = Arc::new(AtomicBool::new(true));
    let (now, then) = (panics.clone(), panics.clone());
    let driver = BatchDriver {
        prepare: move |claims: &[Claim]| {
            assert!(!now.load(Ordering::SeqCst), "all gpus are on fire");
            claims.iter().map(|claim| (claim.reference().uid.clone(), Ok(allocated(claim)))).collect()
        },
        unprepare: move |claims: &[ClaimRef]| {
            assert!(!then.load(Ordering::SeqCst), "all gpus are stuck");
            claims.iter().map(|claim| (claim.uid.clone(), Ok(()))).collect()
        },
    };
    let scene = Scene::new(driver).await;
    let (one, two, unknown) = (scene.claim("one"), scene.claim("two"), TestClaim::new("unknown", "uid-of-unknown"));

    let prepared = scene.kubelet.prepare(&[&one, &two, &unknown]).await;
    for claim in [&one, &two] {
        assert_eq!(prepared[claim.uid()], Err("the driver panicked: all gpus are on fire".to_owned()));
    }
    assert!(prepared[unknown.uid()].as_ref().unwrap_err().contains("does not exist"));
    assert!(!scene.has_files());
    let unprepared = scene.kubelet.unprepare(&[&one, &two]).await;
    assert!(unprepared.values().all(|answer| answer.as_ref().unwrap_err().contains("all gpus are stuck")));

    panics.store(false, Ordering::SeqCst);
    assert!(scene.kubelet.prepare(&[&one, &two]).await.values().all(Result::is_ok));
    assert!(scene.kubelet.unprepare(&[&one, &two]).await.values().all(Result::is_ok));
}

/// G20: what a driver keeps for the next time is not added to.
#[tokio::test]
async fn what_the_driver_keeps_is_not_changed() {
    let kept: Arc<Mutex<Vec<Device>>> = Arc::default();
    let cache = kept.clone();
    let driver = TestDriver::preparing(move |claim| {
        let mut cache = cache.lock().unwrap();
        if cache.is_empty() {
            *cache = allocated(claim);
            cache[0].cdi_device_ids.reserve(16);
        }
        Ok(cache.clone())
    });
    let scene = Scene::new(driver).await;
    let claim = scene.claim("one");

    let first = scene.kubelet.prepare_one(&claim).await.unwrap();
    let second = scene.kubelet.prepare_one(&claim).await.unwrap();

    assert_eq!(kept.lock().unwrap()[0].cdi_device_ids, ["gpu.example.com/gpu=gpu-one"]);
    assert_eq!(cdi_devices(&first), ["gpu.example.com/gpu=gpu-one", &metadata_id(&claim, "gpu")]);
    assert_eq!(first, second);
}

/// G23: a device that is for all requests is told of in each request that the driver has devices for.
#[tokio::test]
async fn a_device_for_all_requests_is_told_of_in_each() {
    let driver = TestDriver::preparing(|_| Ok(vec![device(&[], "gpu-0")]));
    let scene = Scene::new(driver).await;
    let foreign = json!({"request": "c", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"});
    let claim = TestClaim::new("one", "uid-1").device("a", "gpu-0").device("b/large", "gpu-0").result(foreign);
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    for (request, reference) in [("a", "a"), ("b", "b/large")] {
        let told = &scene.node.metadata(&claim, request)["requests"];
        assert_eq!(told, &json!([{"name": reference, "devices": [told_of("gpu-0")]}]), "{request}");
        assert_eq!(handed_to(Some(request), &devices), ["gpu.example.com/gpu=gpu-0", &metadata_id(&claim, request)]);
    }
    assert!(!scene.node.metadata_file(&claim, "c").exists());
    assert_eq!(handed_to(Some("c"), &devices), ["gpu.example.com/gpu=gpu-0"]);
}

/// What a file says of a device without metadata.
fn told_of(device: &str) -> Value {
    json!({"driver": DRIVER, "pool": "node-1", "name": device})
}

/// G24: references to one request share its file, each with an entry of its own.
#[tokio::test]
async fn references_to_one_request_share_a_file_with_an_entry_each() {
    let driver = TestDriver::preparing(|_| {
        Ok(vec![device(&["gpu"], "gpu-0"), device(&["gpu/large"], "gpu-1"), device(&["gpu"], "gpu-2")])
    });
    let scene = Scene::new(driver).await;
    let claim = TestClaim::new("one", "uid-1").device("gpu/large", "gpu-0").device("gpu/large", "gpu-1");
    let claim = scene.node.claim(claim.device("gpu/large", "gpu-2"));

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    let told = &scene.node.metadata(&claim, "gpu")["requests"];
    let expected = json!([
        {"name": "gpu", "devices": [told_of("gpu-0"), told_of("gpu-2")]},
        {"name": "gpu/large", "devices": [told_of("gpu-1")]},
    ]);
    assert_eq!(told, &expected);
    assert!(devices.iter().all(|device| device.request_names == ["gpu"]), "{devices:?}");
    let metadata: Vec<&str> = cdi_devices(&devices).into_iter().filter(|id| id.contains("/metadata=")).collect();
    assert_eq!(metadata, [metadata_id(&claim, "gpu")]);
}

/// G25, D9: a container that references one of two requests that share a device gets that request's file only.
#[tokio::test]
async fn containers_of_requests_that_share_a_device_see_their_own_file_only() {
    let own = "gpu.example.com/gpu=gpu-0";
    // As one device for both requests, as one for all, and as one for each.
    let both = vec![device(&["a", "b"], "gpu-0")];
    let all = vec![device(&[], "gpu-0")];
    let each = vec![device(&["a"], "gpu-0"), device(&["b"], "gpu-0")];
    let references = vec![device(&["a/x", "b"], "gpu-0")];
    for answer in [both, all, each, references] {
        let returned = answer.clone();
        let scene = Scene::new(TestDriver::preparing(move |_| Ok(returned.clone()))).await;
        let claim = scene.node.claim(TestClaim::new("one", "uid-1").device("a/x", "gpu-0").device("b", "gpu-0"));
        let (of_a, of_b) = (metadata_id(&claim, "a"), metadata_id(&claim, "b"));

        let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

        for device in &devices {
            let carries_metadata = device.cdi_device_ids.iter().any(|id| id.contains("/metadata="));
            assert!(!carries_metadata || device.request_names.len() == 1, "{answer:?}: {device:?}");
            assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("node-1", "gpu-0"));
        }
        assert_eq!(handed_to(Some("a"), &devices), [own, &of_a], "{answer:?}");
        assert_eq!(handed_to(Some("b"), &devices), [own, &of_b], "{answer:?}");
        let mut whole = handed_to(None, &devices);
        whole.sort();
        whole.dedup();
        assert_eq!(whole, [own, &of_a, &of_b], "{answer:?}");
    }
}

/// Section 2.3: the first CDI id names the device in the pod's health, so the framework's comes after the driver's, and
/// once for each request.
#[tokio::test]
async fn the_metadata_id_comes_once_and_after_the_drivers_own() {
    let driver = TestDriver::preparing(|_| {
        let mut first = device(&["gpu/large"], "gpu-0");
        first.cdi_device_ids.push(format!("{DRIVER}/gpu=all"));
        Ok(vec![first, device(&["gpu/large"], "gpu-1")])
    });
    let scene = Scene::new(driver).await;
    let claim = TestClaim::new("one", "uid-1").device("gpu/large", "gpu-0").device("gpu/large", "gpu-1");
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    let id = metadata_id(&claim, "gpu");
    let first = ["gpu.example.com/gpu=gpu-0", "gpu.example.com/gpu=all", &id];
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[0].cdi_device_ids, first);
    assert_eq!(devices[1].cdi_device_ids, ["gpu.example.com/gpu=gpu-1"]);
}

/// Section 2.3: a kubelet does not strip subrequests, so names in the answer have none, and none twice.
#[tokio::test]
async fn the_kubelet_gets_requests_without_subrequests_and_none_twice() {
    let driver = TestDriver::preparing(|_| Ok(vec![device(&["gpu/large", "gpu", "nic/fast"], "gpu-0")]));
    let scene = Scene::new(driver).await;
    let claim = TestClaim::new("one", "uid-1").device("gpu/large", "gpu-0").device("nic/fast", "gpu-0");
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    assert_eq!(devices[0].request_names, ["gpu", "nic"]);
    assert_eq!(devices[0].cdi_device_ids, ["gpu.example.com/gpu=gpu-0"]);
}

/// A result with a share of a device.
fn share(request: &str, device: &str, share_id: &str) -> Value {
    json!({"request": request, "driver": DRIVER, "pool": "node-1", "device": device, "shareID": share_id})
}

/// Share ids are the driver's, or those of the allocation where the driver gave none; v1beta1 of the kubelet's API has
/// no field for them.
#[tokio::test]
async fn share_ids_are_passed_on_or_filled_in() {
    let driver = TestDriver::preparing(|_| {
        let given = Device { share_id: Some("s2".into()), ..device(&["b"], "gpu-1") };
        Ok(vec![device(&["a"], "gpu-0"), given, device(&["b"], "gpu-1"), device(&["c"], "gpu-2")])
    });
    let scene = Scene::new(driver).await;
    let claim = TestClaim::new("one", "uid-1").result(share("a", "gpu-0", "s0")).result(share("b", "gpu-1", "s1"));
    let claim = scene.node.claim(claim.result(share("b", "gpu-1", "s2")).device("c", "gpu-2"));

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    let shares: Vec<Option<&str>> = devices.iter().map(|device| device.share_id.as_deref()).collect();
    assert_eq!(shares, [Some("s0"), Some("s2"), None, None], "the third could be either share: {devices:?}");

    let older = scene.kubelet.older();
    let expected: Vec<Answered> = devices.into_iter().map(|device| Answered { share_id: None, ..device }).collect();
    assert_eq!(older.prepare_one(&claim).await.unwrap(), expected);
    older.unprepare_one(&claim).await.unwrap();
    assert!(!scene.has_files());
}

/// Share ids of devices that the framework adds are those of the allocation.
#[tokio::test]
async fn a_device_that_the_driver_did_not_return_has_the_share_of_the_allocation() {
    let scene = Scene::new(TestDriver::preparing(|_| Ok(vec![]))).await;
    let claim = TestClaim::new("one", "uid-1").result(share("a", "gpu-0", "s0")).result(share("a", "gpu-1", "s1"));
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    let told = |device: &Answered| (device.device_name.clone(), device.share_id.clone().unwrap());
    let expected = [("gpu-0".to_owned(), "s0".to_owned()), ("gpu-1".to_owned(), "s1".to_owned())];
    assert_eq!(devices.iter().map(told).collect::<Vec<_>>(), expected);
    assert_eq!(cdi_devices(&devices), [metadata_id(&claim, "a")]);
}

/// Errors of claims come the same way in both versions of the kubelet's API.
#[tokio::test]
async fn errors_are_told_in_v1beta1_too() {
    let scene = Scene::new(TestDriver::default()).await;
    let good = scene.claim("good");
    let unknown = TestClaim::new("unknown", "uid-of-unknown");

    let answers = scene.kubelet.older().prepare(&[&unknown, &good]).await;

    assert!(answers[unknown.uid()].as_ref().unwrap_err().contains("does not exist"));
    assert_eq!(answers[good.uid()].as_ref().unwrap().len(), 1);
}

/// Claims `one` and `two` that were both allocated the same device, in these words.
fn rivals(scene: &Scene, one: &Value, two: &Value) -> (TestClaim, TestClaim) {
    let claim = |name: &str, more: &Value| {
        let mut result = json!({"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"});
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        scene.node.claim(TestClaim::new(name, &format!("uid-of-{name}")).result(result))
    };
    (claim("one", one), claim("two", two))
}

/// G21: a device that another claim still has is refused, with and without metadata, until that claim is unprepared.
#[tokio::test]
async fn a_device_of_another_claim_is_refused_until_that_is_unprepared() {
    for metadata in [true, false] {
        let driver = TestDriver::default();
        let scene = Scene::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
        let (one, two) = rivals(&scene, &json!({}), &json!({}));
        scene.kubelet.prepare_one(&one).await.unwrap();

        let error = scene.kubelet.prepare_one(&two).await.unwrap_err();

        let expected = "device node-1/gpu-0 is still prepared for claim default/one (uid uid-of-one)";
        assert!(error.contains(expected) && error.contains("claim default/two (uid uid-of-two)"), "{error}");
        assert_eq!(driver.take_calls(), ["prepare one"], "the driver is not asked");
        assert!(!scene.node.metadata_file(&two, "gpu").exists());
        let again = scene.kubelet.prepare_one(&one).await;
        assert!(again.is_ok(), "the same claim again: {again:?}");

        scene.kubelet.unprepare_one(&one).await.unwrap();
        scene.kubelet.prepare_one(&two).await.unwrap();
    }
}

/// The pod of a claim was removed by force: the scheduler has given its device to another before the kubelet unprepares it.
#[tokio::test]
async fn a_prepare_waits_for_a_device_that_is_about_to_be_free() {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.device_timeout(PATIENCE)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    scene.kubelet.prepare_one(&one).await.unwrap();

    let (prepared, ()) = tokio::join!(scene.kubelet.prepare_one(&two), async {
        // It has been refused once when the claim that is in its way has been asked for.
        eventually("the second claim waits", || (scene.node.api.gets(one.name()) >= 2).then_some(())).await;
        scene.kubelet.unprepare_one(&one).await.unwrap();
    });

    assert_eq!(prepared.unwrap().len(), 1);
    assert_eq!(driver.take_calls(), ["prepare one", "unprepare one", "prepare two"]);
}

/// What has changed while a claim waited is seen: it is fetched again.
#[tokio::test]
async fn a_claim_that_is_deleted_while_it_waits_is_not_prepared() {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.device_timeout(PATIENCE)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    scene.kubelet.prepare_one(&one).await.unwrap();

    let (refused, ()) = tokio::join!(scene.kubelet.prepare_one(&two), async {
        eventually("the second claim waits", || (scene.node.api.gets(one.name()) >= 2).then_some(())).await;
        scene.node.api.remove("default", two.name());
        scene.kubelet.unprepare_one(&one).await.unwrap();
    });

    assert!(refused.unwrap_err().contains("does not exist"));
    assert_eq!(driver.take_calls(), ["prepare one", "unprepare one"]);
}

/// A claim of the same call is not waited for: the kubelet does not unprepare it before it has its answer.
#[tokio::test]
async fn claims_of_one_call_do_not_wait_for_each_other() {
    let scene = Scene::with(TestDriver::default(), |builder| builder.device_timeout(10 * PATIENCE)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    let answers = in_time(scene.kubelet.prepare(&[&one, &two])).await;
    assert!(answers[one.uid()].is_ok() != answers[two.uid()].is_ok(), "{answers:?}");
}

/// G21: two claims of one call cannot have one device either.
#[tokio::test]
async fn of_two_claims_of_one_call_with_the_same_device_one_is_refused() {
    let scene = Scene::new(TestDriver::default()).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    let other = scene.claim("other");

    let answers = scene.kubelet.prepare(&[&one, &two, &other]).await;

    assert!(answers[one.uid()].is_ok() != answers[two.uid()].is_ok(), "{answers:?}");
    assert!(answers[other.uid()].is_ok());
}

/// G21: what may be shared is not refused: admin access, and different shares of a device.
#[tokio::test]
async fn a_device_may_be_in_two_claims_if_it_is_looked_at_or_shared() {
    let share = |id: &str| json!({"shareID": id});
    let cases = [
        (json!({}), json!({"adminAccess": true}), true),
        (json!({"adminAccess": true}), json!({}), true),
        (json!({"adminAccess": true}), json!({"adminAccess": true}), true),
        (json!({}), json!({"adminAccess": false}), false),
        (share("s1"), share("s2"), true),
        (share("s1"), share("s1"), false),
        (share("s1"), json!({}), false),
        (json!({}), share("s1"), false),
        (json!({}), json!({"pool": "node-2"}), true),
        (json!({}), json!({"device": "gpu-1"}), true),
    ];
    for (of_one, of_two, fits) in cases {
        let scene = Scene::new(TestDriver::default()).await;
        let (one, two) = rivals(&scene, &of_one, &of_two);
        scene.kubelet.prepare_one(&one).await.unwrap();
        let outcome = scene.kubelet.prepare_one(&two).await;
        assert_eq!(outcome.is_ok(), fits, "{of_one} and {of_two}: {outcome:?}");
    }
}

/// G21: a driver that knows better can turn the guard off.
#[tokio::test]
async fn without_the_guard_a_device_may_be_in_two_claims() {
    let scene = Scene::with(TestDriver::default(), |builder| builder.double_allocation_guard(false)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));

    let answers = scene.kubelet.prepare(&[&one, &two]).await;

    assert!(answers.values().all(Result::is_ok), "{answers:?}");
}

/// G21: a device is not free before the driver has unprepared it.
#[tokio::test]
async fn a_failed_unprepare_keeps_the_files_and_the_device() {
    let stuck = Arc::new(AtomicBool::new(true));
    let is_stuck = stuck.clone();
    let driver = TestDriver::default()
        .unpreparing(move |_| if is_stuck.load(Ordering::SeqCst) { Err("gpu does not let go".into()) } else { Ok(()) });
    let scene = Scene::new(driver).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    scene.kubelet.prepare_one(&one).await.unwrap();

    assert_eq!(scene.kubelet.unprepare_one(&one).await, Err("gpu does not let go".to_owned()));

    assert!(scene.node.metadata_file(&one, "gpu").exists() && scene.node.spec_file(&one, "gpu").exists());
    scene.kubelet.prepare_one(&two).await.unwrap_err();
    stuck.store(false, Ordering::SeqCst);
    scene.kubelet.unprepare_one(&one).await.unwrap();
    assert!(!scene.has_files());
    scene.kubelet.prepare_one(&two).await.unwrap();
}

#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Layered {
    text: &'static str,
    source: Option<Box<Layered>>,
}

fn layered(texts: &[&'static str]) -> Layered {
    let (text, rest) = texts.split_first().unwrap();
    Layered { text, source: (!rest.is_empty()).then(|| Box::new(layered(rest))) }
}

/// Never silent: the kubelet gets the driver's error with all that caused it, each told once.
#[tokio::test]
async fn the_drivers_error_is_told_with_its_causes() {
    let driver = TestDriver::preparing(|_| {
        let error = layered(&["prepare gpu-0", "bind vfio-pci: permission denied", "permission denied"]);
        assert!(error.source().is_some());
        Err(error.into())
    });
    let driver = driver.unpreparing(|_| Err(layered(&["reset gpu-0", "timed out"]).into()));
    let scene = Scene::new(driver).await;
    let claim = scene.claim("one");

    let prepared = scene.kubelet.prepare_one(&claim).await;
    assert_eq!(prepared, Err("prepare gpu-0: bind vfio-pci: permission denied".to_owned()));
    assert_eq!(scene.kubelet.unprepare_one(&claim).await, Err("reset gpu-0: timed out".to_owned()));
}

/// Section 2.2: an empty text would mean success, so an error without a text gets one.
#[tokio::test]
async fn an_error_without_a_text_is_an_error_all_the_same() {
    let driver = TestDriver::preparing(|_| Err("".into())).unpreparing(|_| Err("".into()));
    let scene = Scene::new(driver).await;
    let claim = scene.claim("one");

    assert!(!scene.kubelet.prepare_one(&claim).await.unwrap_err().is_empty());
    assert!(!scene.kubelet.unprepare_one(&claim).await.unwrap_err().is_empty());
    assert!(!scene.has_files());
}

/// Section 2.1: a kubelet also unprepares what was never prepared.
#[tokio::test]
async fn unpreparing_the_unknown_succeeds_and_twice_is_fine() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;
    let (claim, unknown) = (scene.claim("one"), TestClaim::new("unknown", "uid-of-unknown"));
    scene.kubelet.prepare_one(&claim).await.unwrap();
    scene.node.api.remove("default", "one");

    for _ in 0..2 {
        let answers = scene.kubelet.unprepare(&[&unknown, &claim]).await;
        assert_eq!(answers.len(), 2);
        assert!(answers.values().all(Result::is_ok), "{answers:?}");
    }
    assert!(!scene.has_files());
    assert_eq!(driver.take_calls().len(), 5, "the driver may have something to undo");
}

/// Section 2.2: a call without claims is answered.
#[tokio::test]
async fn a_call_without_claims_is_answered_without_the_driver() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;

    assert!(scene.kubelet.prepare(&[]).await.is_empty());
    assert!(scene.kubelet.unprepare(&[]).await.is_empty());
    assert!(driver.take_calls().is_empty());
}

/// A driver that hangs as long as it is told to.
struct Hanging {
    hangs: Arc<AtomicBool>,
    ongoing: Ongoing,
}

impl Hanging {
    async fn maybe_hang(&self) {
        if self.hangs.load(Ordering::SeqCst) {
            let _one = self.ongoing.one();
            std::future::pending::<()>().await;
        }
    }
}

impl DraPlugin for Hanging {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        self.maybe_hang().await;
        Ok(vec![Device {
            metadata: Some(DeviceMetadata::default().attribute("model", "m1")),
            ..allocated(claim).remove(0)
        }])
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        self.maybe_hang().await;
        Ok(())
    }
}

/// G12: a driver that hangs is dropped at the kubelet's deadline, also when the driver's side does not hear that the
/// kubelet has given up. Nothing stays locked: the claim can be prepared after, and when it is unprepared another with its
/// device.
#[tokio::test]
async fn a_driver_that_hangs_is_dropped_at_the_kubelets_deadline() {
    for serialize in [true, false] {
        let (hangs, ongoing) = (Arc::new(AtomicBool::new(true)), Ongoing::default());
        let driver = Hanging { hangs: hangs.clone(), ongoing: ongoing.clone() };
        let scene = Scene::with(driver, |builder| builder.serialize(serialize)).await;
        let (one, two) = rivals(&scene, &json!({}), &json!({}));
        let line = Line::to(&scene.node, &scene.helper);
        let muted = Kubelet::at(&line.socket).await;
        let (deadline, started) = (Duration::from_millis(500), Instant::now());
        let claim = TestClaim { object: one.object.clone() };

        let call = tokio::spawn(async move { muted.prepare_within(deadline, &claim).await });
        ongoing.wait_for(1).await;
        line.mute();
        assert!(call.await.unwrap().is_err());
        ongoing.wait_for(0).await;

        assert!(started.elapsed() >= deadline);
        assert!(!scene.has_files());
        hangs.store(false, Ordering::SeqCst);
        scene.kubelet.prepare_one(&one).await.unwrap();
        assert_eq!(scene.node.metadata(&one, "gpu")["metadata"]["generation"], 1);
        scene.kubelet.unprepare_one(&one).await.unwrap();
        scene.kubelet.prepare_one(&two).await.unwrap();
    }
}

/// G12: an unprepare that hangs ends at the kubelet's deadline too, and what is prepared stays so.
#[tokio::test]
async fn an_unprepare_that_hangs_leaves_the_claim_prepared() {
    let (hangs, ongoing) = (Arc::new(AtomicBool::new(false)), Ongoing::default());
    let driver = Hanging { hangs: hangs.clone(), ongoing: ongoing.clone() };
    let scene = Scene::new(driver).await;
    let claim = scene.claim("one");
    scene.kubelet.prepare_one(&claim).await.unwrap();
    hangs.store(true, Ordering::SeqCst);

    assert!(scene.kubelet.0.unprepare_with_timeout(Duration::from_millis(300), [&claim]).await.is_err());
    ongoing.wait_for(0).await;

    assert!(scene.node.metadata_file(&claim, "gpu").exists());
    hangs.store(false, Ordering::SeqCst);
    scene.kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!scene.has_files());
}

/// G19: gpu-0 was allocated for a, gpu-1 for b; the driver mixes them up.
#[tokio::test]
async fn a_device_for_a_request_that_did_not_get_it_is_refused() {
    let node = Node::default();
    let driver = TestDriver::preparing(|_| {
        let device = |request: &str, name: &str| Device {
            requests: vec![request.into()],
            pool_name: "node-1".into(),
            device_name: name.into(),
            ..Device::default()
        };
        Ok(vec![device("a", "gpu-1"), device("b", "gpu-0")])
    });
    let helper = node.start(&driver).await;
    let kubelet = Kubelet::of(&helper).await;
    let claim = node.claim(TestClaim::new("x", "uid-x").device("a", "gpu-0").device("b", "gpu-1"));
    let answer = kubelet.prepare_one(&claim).await;
    assert!(answer.is_err(), "each container has the other's device: {answer:?}");
}

/// G19: a kubelet would hand it out twice, and the file would tell of it twice.
#[tokio::test]
async fn the_same_device_twice_is_refused() {
    let node = Node::default();
    let driver = TestDriver::preparing(|claim| {
        let one: Vec<Device> = claim.results().map(Device::from).collect();
        Ok([one.clone(), one].concat())
    });
    let helper = node.start(&driver).await;
    let kubelet = Kubelet::of(&helper).await;
    let claim = node.claim(TestClaim::new("x", "uid-x").device("gpu", "gpu-0"));
    let answer = kubelet.prepare_one(&claim).await;
    assert!(answer.unwrap_err().contains("device node-1/gpu-0 twice"));
}
