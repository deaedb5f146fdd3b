//! Tests of the responses to the kubelet: the driver's devices, checked, and with metadata for just the right containers.

use std::error::Error;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drakkar_node::kubelet::Device as KubeletDevice;
use drakkar_plugin::{Batch, BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, Outcomes};
use serde_json::{Value, json};

use crate::support::{
    DRIVER, Kubelet, Line, Node, Ongoing, PATIENCE, Scene, TestClaim, TestDriver, cdi_devices, eventually, in_time,
};

impl Scene {
    /// Creates a claim with a device of its own.
    fn own_claim(&self, name: &str) -> TestClaim {
        self.node.claim(TestClaim::new(name, &format!("uid-of-{name}")).device("gpu", &format!("gpu-{name}")))
    }

    /// Whether there are files of any claim.
    fn has_files(&self) -> bool {
        self.node.files().iter().any(|file| file.ends_with(".json"))
    }
}

/// Returns the allocated devices, as a driver without metadata does.
fn allocated(claim: &Claim) -> Vec<Device> {
    let own_id = |device: &str| format!("{DRIVER}/gpu={device}");
    claim.results().map(|result| Device { cdi_device_ids: vec![own_id(&result.device)], ..result.into() }).collect()
}

/// Returns a device of `node-1`, with a CDI device of its own.
fn device(requests: &[&str], name: &str) -> Device {
    Device {
        requests: requests.iter().map(ToString::to_string).collect(),
        pool_name: "node-1".into(),
        device_name: name.into(),
        cdi_device_ids: vec![format!("{DRIVER}/gpu={name}")],
        ..Device::default()
    }
}

/// Returns the CDI devices that the kubelet passes to a container (section 2.3): a container that references the whole claim
/// gets all of them, any other those of devices for its request and of devices for all requests.
fn cdi_devices_for(container: Option<&str>, devices: &[KubeletDevice]) -> Vec<String> {
    let is_for_container = |device: &&KubeletDevice| match container {
        None => true,
        Some(request) => device.request_names.is_empty() || device.request_names.iter().any(|name| name == request),
    };
    devices.iter().filter(is_for_container).flat_map(|device| device.cdi_device_ids.clone()).collect()
}

fn metadata_id(claim: &TestClaim, request: &str) -> String {
    format!("{DRIVER}/metadata={}_{request}", claim.uid())
}

/// A driver that implements the batch methods.
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

/// G18: every claim of a batch gets exactly one response: a claim without an outcome has failed, unrequested ones are dropped.
#[tokio::test]
async fn a_batch_has_one_response_for_each_claim_whatever_the_driver_returns() {
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
    let one = scene.own_claim("one");
    let two = scene.own_claim("two");
    let forgotten = scene.own_claim("forgotten");

    let prepared = scene.kubelet.prepare(&[&one, &forgotten, &two]).await;

    assert_eq!(prepared.len(), 3, "{prepared:?}");
    assert!(prepared[one.uid()].is_ok() && prepared[two.uid()].is_ok());
    let error = prepared[forgotten.uid()].as_ref().unwrap_err();
    assert!(error.contains("returned no outcome for the claim"), "{error}");
    assert!(!scene.node.metadata_file(&forgotten, "gpu").exists());

    let unprepared = scene.kubelet.unprepare(&[&one, &two]).await;

    assert_eq!(unprepared.len(), 2, "{unprepared:?}");
    assert_eq!(unprepared[one.uid()], Ok(()));
    assert!(unprepared[two.uid()].as_ref().unwrap_err().contains("returned no outcome"));
    assert!(!scene.node.metadata_file(&one, "gpu").exists());
    assert!(scene.node.metadata_file(&two, "gpu").exists());
    forgets.store(false, Ordering::SeqCst);
    scene.kubelet.unprepare_one(&two).await.unwrap();
    assert!(!scene.has_files());
}

/// G19: a response that the kubelet could not use, or with devices of other claims, fails the claim. The error names the cause,
/// nothing is written, and the claim holds its devices until it is unprepared.
#[tokio::test]
async fn an_invalid_driver_response_is_refused_and_leaves_no_files() {
    let response = Arc::new(Mutex::new(Device::default()));
    let current = response.clone();
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
            "device node-2/gpu-1, which is not allocated to the claim from this driver; allocated: node-1/gpu-0, node-1/gpu-1",
        ),
        (device(&["gpu"], ""), "device name \"\": must not be empty"),
        (device(&["gpu"], "GPU_1"), "device name \"GPU_1\""),
        (device(&["gpu"], "gpu-7"), "device node-1/gpu-7, which is not allocated to the claim from this driver"),
        (device(&["gpu"], "nic-0"), "device node-1/nic-0, which is not allocated to the claim from this driver"),
        (device(&["tpu"], "gpu-1"), "for request \"tpu\", for which it is not allocated; allocated for: gpu/large"),
        (device(&["gpu", "nic"], "gpu-1"), "for request \"nic\", for which it is not allocated"),
        (device(&["gpu/small"], "gpu-1"), "for request \"gpu/small\""),
        (device(&["gpu/"], "gpu-1"), "for request \"gpu/\""),
        (device(&[""], "gpu-1"), "for request \"\""),
        (device(&["../gpu"], "gpu-1"), "for request \"../gpu\""),
        (id(""), "with an invalid CDI device id \"\": "),
        (id("gpu-1"), "with an invalid CDI device id \"gpu-1\": "),
        (id("gpu.example.com/gpu"), "with an invalid CDI device id \"gpu.example.com/gpu\": "),
        (id("gpu.example.com/gpu="), "with an invalid CDI device id \"gpu.example.com/gpu=\": "),
        (id("0.example.com/gpu=1"), "with an invalid CDI device id \"0.example.com/gpu=1\": "),
        (id("gpu.example.com/gpu=../1"), "with an invalid CDI device id \"gpu.example.com/gpu=../1\": "),
        (Device { share_id: Some("s2".into()), ..good() }, "node-1/gpu-1 with share id \"s2\", which is not allocated"),
    ];
    for (wrong, expected) in cases {
        *response.lock().unwrap() = wrong;
        let error = scene.kubelet.prepare_one(&bad).await.unwrap_err();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(!scene.has_files(), "{expected}: {:?}", scene.node.files());
    }
    *response.lock().unwrap() = good();
    scene.kubelet.prepare_one(&bad).await.unwrap();
    scene.kubelet.prepare_one(&next).await.unwrap_err();
    scene.kubelet.unprepare_one(&bad).await.unwrap();
    scene.kubelet.prepare_one(&next).await.unwrap();
}

/// G19: an invalid response fails only its claim.
#[tokio::test]
async fn an_invalid_driver_response_for_one_claim_does_not_affect_the_others() {
    let driver = TestDriver::preparing(|claim| match claim.reference().name.as_str() {
        "bad" => Ok(vec![device(&["gpu"], "gpu-7")]),
        _ => Ok(allocated(claim)),
    });
    let scene = Scene::new(driver).await;
    let bad = scene.own_claim("bad");
    let good = scene.own_claim("good");

    let responses = scene.kubelet.prepare(&[&bad, &good]).await;

    assert!(responses[bad.uid()].is_err());
    assert_eq!(cdi_devices(responses[good.uid()].as_ref().unwrap()).len(), 2);
}

/// G14: a panic fails only the claim for which it happened.
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
        let hot = scene.own_claim("hot");
        let stuck = scene.own_claim("stuck");
        let good = scene.own_claim("good");

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

/// A driver that panics before it returns a future.
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

/// G14: a driver's method may panic before it returns a future; that fails its claims, not the call.
#[tokio::test]
async fn a_panic_before_the_future_is_the_error_of_its_claims_too() {
    let scene = Scene::new(Hasty).await;
    let hot = scene.own_claim("hot");
    let good = scene.own_claim("good");

    let prepared = scene.kubelet.prepare(&[&hot, &good]).await;
    assert!(prepared[hot.uid()].as_ref().unwrap_err().contains("too hasty"), "{prepared:?}");
    assert!(prepared[good.uid()].is_ok());

    let unprepared = scene.kubelet.unprepare(&[&hot, &good]).await;
    assert!(unprepared[hot.uid()].as_ref().unwrap_err().contains("too hasty with all"), "{unprepared:?}");
    assert!(unprepared[good.uid()].is_err() && scene.node.metadata_file(&good, "gpu").exists());
    scene.kubelet.unprepare_one(&good).await.unwrap();
}

/// G14: a panic in the batch method fails the claims of the batch; claims that failed before keep their own errors, and the
/// server keeps running.
#[tokio::test]
async fn a_panic_for_the_whole_batch_is_the_error_of_its_claims() {
    let panics = Arc::new(AtomicBool::new(true));
    let prepare_panics = panics.clone();
    let unprepare_panics = panics.clone();
    let driver = BatchDriver {
        prepare: move |claims: &[Claim]| {
            assert!(!prepare_panics.load(Ordering::SeqCst), "all gpus are on fire");
            claims.iter().map(|claim| (claim.reference().uid.clone(), Ok(allocated(claim)))).collect()
        },
        unprepare: move |claims: &[ClaimRef]| {
            assert!(!unprepare_panics.load(Ordering::SeqCst), "all gpus are stuck");
            claims.iter().map(|claim| (claim.uid.clone(), Ok(()))).collect()
        },
    };
    let scene = Scene::new(driver).await;
    let one = scene.own_claim("one");
    let two = scene.own_claim("two");
    let unknown = TestClaim::new("unknown", "uid-of-unknown");

    let prepared = scene.kubelet.prepare(&[&one, &two, &unknown]).await;
    for claim in [&one, &two] {
        assert_eq!(prepared[claim.uid()], Err("the driver panicked: all gpus are on fire".to_owned()));
    }
    assert!(prepared[unknown.uid()].as_ref().unwrap_err().contains("does not exist"));
    assert!(!scene.has_files());
    let unprepared = scene.kubelet.unprepare(&[&one, &two]).await;
    assert!(unprepared.values().all(|response| response.as_ref().unwrap_err().contains("all gpus are stuck")));

    panics.store(false, Ordering::SeqCst);
    assert!(scene.kubelet.prepare(&[&one, &two]).await.values().all(Result::is_ok));
    assert!(scene.kubelet.unprepare(&[&one, &two]).await.values().all(Result::is_ok));
}

/// G20: devices that a driver caches are not modified.
#[tokio::test]
async fn devices_cached_by_the_driver_are_not_modified() {
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
    let claim = scene.own_claim("one");

    let first = scene.kubelet.prepare_one(&claim).await.unwrap();
    let second = scene.kubelet.prepare_one(&claim).await.unwrap();

    assert_eq!(kept.lock().unwrap()[0].cdi_device_ids, ["gpu.example.com/gpu=gpu-one"]);
    assert_eq!(cdi_devices(&first), ["gpu.example.com/gpu=gpu-one", &metadata_id(&claim, "gpu")]);
    assert_eq!(first, second);
}

/// G23: a device for all requests is in the file of each request that has devices of the driver.
#[tokio::test]
async fn a_device_for_all_requests_is_in_the_file_of_each() {
    let driver = TestDriver::preparing(|_| Ok(vec![device(&[], "gpu-0")]));
    let scene = Scene::new(driver).await;
    let foreign = json!({"request": "c", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"});
    let claim = TestClaim::new("one", "uid-1").device("a", "gpu-0").device("b/large", "gpu-0").result(foreign);
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    for (request, reference) in [("a", "a"), ("b", "b/large")] {
        let written = &scene.node.metadata(&claim, request)["requests"];
        assert_eq!(written, &json!([{"name": reference, "devices": [entry("gpu-0")]}]), "{request}");
        assert_eq!(
            cdi_devices_for(Some(request), &devices),
            ["gpu.example.com/gpu=gpu-0", &metadata_id(&claim, request)]
        );
    }
    assert!(!scene.node.metadata_file(&claim, "c").exists());
    assert_eq!(cdi_devices_for(Some("c"), &devices), ["gpu.example.com/gpu=gpu-0"]);
}

/// Returns the entry of a device without metadata in a file.
fn entry(device: &str) -> Value {
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

    let written = &scene.node.metadata(&claim, "gpu")["requests"];
    let expected = json!([
        {"name": "gpu", "devices": [entry("gpu-0"), entry("gpu-2")]},
        {"name": "gpu/large", "devices": [entry("gpu-1")]},
    ]);
    assert_eq!(written, &expected);
    assert!(devices.iter().all(|device| device.request_names == ["gpu"]), "{devices:?}");
    let metadata: Vec<&str> = cdi_devices(&devices).into_iter().filter(|id| id.contains("/metadata=")).collect();
    assert_eq!(metadata, [metadata_id(&claim, "gpu")]);
}

/// G25, D9: a container that references one of two requests that share a device gets that request's file only.
#[tokio::test]
async fn containers_of_requests_that_share_a_device_see_their_own_file_only() {
    let own = "gpu.example.com/gpu=gpu-0";
    // One device for both requests, one for all requests, and one for each.
    let both = vec![device(&["a", "b"], "gpu-0")];
    let all = vec![device(&[], "gpu-0")];
    let each = vec![device(&["a"], "gpu-0"), device(&["b"], "gpu-0")];
    let references = vec![device(&["a/x", "b"], "gpu-0")];
    for response in [both, all, each, references] {
        let returned = response.clone();
        let scene = Scene::new(TestDriver::preparing(move |_| Ok(returned.clone()))).await;
        let claim = scene.node.claim(TestClaim::new("one", "uid-1").device("a/x", "gpu-0").device("b", "gpu-0"));
        let of_a = metadata_id(&claim, "a");
        let of_b = metadata_id(&claim, "b");

        let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

        for device in &devices {
            let carries_metadata = device.cdi_device_ids.iter().any(|id| id.contains("/metadata="));
            assert!(!carries_metadata || device.request_names.len() == 1, "{response:?}: {device:?}");
            assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("node-1", "gpu-0"));
        }
        assert_eq!(cdi_devices_for(Some("a"), &devices), [own, &of_a], "{response:?}");
        assert_eq!(cdi_devices_for(Some("b"), &devices), [own, &of_b], "{response:?}");
        let mut whole = cdi_devices_for(None, &devices);
        whole.sort();
        whole.dedup();
        assert_eq!(whole, [own, &of_a, &of_b], "{response:?}");
    }
}

/// Section 2.3: the first CDI ID names the device in the pod's health status, so the framework's ID comes after the driver's, and
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

/// Section 2.3: the kubelet does not strip subrequests, so names in the response have none, and there are no duplicates.
#[tokio::test]
async fn request_names_in_the_response_have_no_subrequests_and_no_duplicates() {
    let driver = TestDriver::preparing(|_| Ok(vec![device(&["gpu/large", "gpu", "nic/fast"], "gpu-0")]));
    let scene = Scene::new(driver).await;
    let claim = TestClaim::new("one", "uid-1").device("gpu/large", "gpu-0").device("nic/fast", "gpu-0");
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    assert_eq!(devices[0].request_names, ["gpu", "nic"]);
    assert_eq!(devices[0].cdi_device_ids, ["gpu.example.com/gpu=gpu-0"]);
}

/// Returns an allocation result with a share of a device.
fn share(request: &str, device: &str, share_id: &str) -> Value {
    json!({"request": request, "driver": DRIVER, "pool": "node-1", "device": device, "shareID": share_id})
}

/// Share IDs are the driver's, or those of the allocation if the driver returned none; the kubelet's v1beta1 API has no field
/// for them.
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
    let expected: Vec<KubeletDevice> =
        devices.into_iter().map(|device| KubeletDevice { share_id: None, ..device }).collect();
    assert_eq!(older.prepare_one(&claim).await.unwrap(), expected);
    older.unprepare_one(&claim).await.unwrap();
    assert!(!scene.has_files());
}

/// Devices that the framework adds have the share IDs of the allocation.
#[tokio::test]
async fn a_device_that_the_driver_did_not_return_has_the_share_of_the_allocation() {
    let scene = Scene::new(TestDriver::preparing(|_| Ok(vec![]))).await;
    let claim = TestClaim::new("one", "uid-1").result(share("a", "gpu-0", "s0")).result(share("a", "gpu-1", "s1"));
    let claim = scene.node.claim(claim);

    let devices = scene.kubelet.prepare_one(&claim).await.unwrap();

    let returned = |device: &KubeletDevice| (device.device_name.clone(), device.share_id.clone().unwrap());
    let expected = [("gpu-0".to_owned(), "s0".to_owned()), ("gpu-1".to_owned(), "s1".to_owned())];
    assert_eq!(devices.iter().map(returned).collect::<Vec<_>>(), expected);
    assert_eq!(cdi_devices(&devices), [metadata_id(&claim, "a")]);
}

/// Errors of claims are returned in both versions of the kubelet's API.
#[tokio::test]
async fn errors_are_returned_in_v1beta1_too() {
    let scene = Scene::new(TestDriver::default()).await;
    let good = scene.own_claim("good");
    let unknown = TestClaim::new("unknown", "uid-of-unknown");

    let responses = scene.kubelet.older().prepare(&[&unknown, &good]).await;

    assert!(responses[unknown.uid()].as_ref().unwrap_err().contains("does not exist"));
    assert_eq!(responses[good.uid()].as_ref().unwrap().len(), 1);
}

/// Creates the claims `one` and `two`, to which the same device is allocated, with these fields added to the results.
fn rivals(scene: &Scene, one: &Value, two: &Value) -> (TestClaim, TestClaim) {
    let claim = |name: &str, more: &Value| {
        let mut result = json!({"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"});
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        scene.node.claim(TestClaim::new(name, &format!("uid-of-{name}")).result(result))
    };
    (claim("one", one), claim("two", two))
}

/// G21: a device that another claim holds is refused, with and without metadata, until that claim is unprepared.
#[tokio::test]
async fn a_device_of_another_claim_is_refused_until_that_claim_is_unprepared() {
    for metadata in [true, false] {
        let driver = TestDriver::default();
        let scene = Scene::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
        let (one, two) = rivals(&scene, &json!({}), &json!({}));
        scene.kubelet.prepare_one(&one).await.unwrap();

        let error = scene.kubelet.prepare_one(&two).await.unwrap_err();

        let expected = "device node-1/gpu-0 is still prepared for claim default/one (uid uid-of-one)";
        assert!(error.contains(expected) && error.contains("claim default/two (uid uid-of-two)"), "{error}");
        assert_eq!(driver.take_calls(), ["prepare one"], "the driver is not called");
        assert!(!scene.node.metadata_file(&two, "gpu").exists());
        let again = scene.kubelet.prepare_one(&one).await;
        assert!(again.is_ok(), "the same claim again: {again:?}");

        scene.kubelet.unprepare_one(&one).await.unwrap();
        scene.kubelet.prepare_one(&two).await.unwrap();
    }
}

/// The pod of a claim was deleted by force: its device is allocated to another claim before the kubelet unprepares it.
#[tokio::test]
async fn a_prepare_waits_for_a_device_that_is_about_to_be_free() {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.device_timeout(PATIENCE)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    scene.kubelet.prepare_one(&one).await.unwrap();

    let (prepared, ()) = tokio::join!(scene.kubelet.prepare_one(&two), async {
        // The first claim is fetched again when the second one has run into it.
        eventually("the second claim waits", || (scene.node.api.gets(one.name()) >= 2).then_some(())).await;
        scene.kubelet.unprepare_one(&one).await.unwrap();
    });

    assert_eq!(prepared.unwrap().len(), 1);
    assert_eq!(driver.take_calls(), ["prepare one", "unprepare one", "prepare two"]);
}

/// A waiting claim is fetched again, so changes in the meantime count.
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

/// The kubelet does not unprepare a claim before it has the response of the call, so waiting would be pointless.
#[tokio::test]
async fn claims_of_one_call_do_not_wait_for_each_other() {
    let scene = Scene::with(TestDriver::default(), |builder| builder.device_timeout(10 * PATIENCE)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    let responses = in_time(scene.kubelet.prepare(&[&one, &two])).await;
    assert!(responses[one.uid()].is_ok() != responses[two.uid()].is_ok(), "{responses:?}");
}

/// G21: two claims of one call cannot hold the same device either.
#[tokio::test]
async fn of_two_claims_of_one_call_with_the_same_device_one_is_refused() {
    let scene = Scene::new(TestDriver::default()).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));
    let other = scene.own_claim("other");

    let responses = scene.kubelet.prepare(&[&one, &two, &other]).await;

    assert!(responses[one.uid()].is_ok() != responses[two.uid()].is_ok(), "{responses:?}");
    assert!(responses[other.uid()].is_ok());
}

/// G21: admin access, and different shares of a device, are not refused.
#[tokio::test]
async fn a_device_may_be_in_two_claims_with_admin_access_or_different_shares() {
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

/// G21: a driver can turn the guard off.
#[tokio::test]
async fn without_the_guard_a_device_may_be_in_two_claims() {
    let scene = Scene::with(TestDriver::default(), |builder| builder.double_allocation_guard(false)).await;
    let (one, two) = rivals(&scene, &json!({}), &json!({}));

    let responses = scene.kubelet.prepare(&[&one, &two]).await;

    assert!(responses.values().all(Result::is_ok), "{responses:?}");
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

/// Never silent: the kubelet gets the driver's error with all its causes, each once.
#[tokio::test]
async fn the_drivers_error_is_returned_with_its_causes() {
    let driver = TestDriver::preparing(|_| {
        let error = layered(&["prepare gpu-0", "bind vfio-pci: permission denied", "permission denied"]);
        assert!(error.source().is_some());
        Err(error.into())
    });
    let driver = driver.unpreparing(|_| Err(layered(&["reset gpu-0", "timed out"]).into()));
    let scene = Scene::new(driver).await;
    let claim = scene.own_claim("one");

    let prepared = scene.kubelet.prepare_one(&claim).await;
    assert_eq!(prepared, Err("prepare gpu-0: bind vfio-pci: permission denied".to_owned()));
    assert_eq!(scene.kubelet.unprepare_one(&claim).await, Err("reset gpu-0: timed out".to_owned()));
}

/// Section 2.2: an empty text would mean success, so an error without a text gets one.
#[tokio::test]
async fn an_error_without_a_text_is_not_a_success() {
    let driver = TestDriver::preparing(|_| Err("".into())).unpreparing(|_| Err("".into()));
    let scene = Scene::new(driver).await;
    let claim = scene.own_claim("one");

    assert!(!scene.kubelet.prepare_one(&claim).await.unwrap_err().is_empty());
    assert!(!scene.kubelet.unprepare_one(&claim).await.unwrap_err().is_empty());
    assert!(!scene.has_files());
}

/// Section 2.1: the kubelet also unprepares claims that were never prepared.
#[tokio::test]
async fn unpreparing_an_unknown_claim_succeeds_and_can_be_repeated() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;
    let claim = scene.own_claim("one");
    let unknown = TestClaim::new("unknown", "uid-of-unknown");
    scene.kubelet.prepare_one(&claim).await.unwrap();
    scene.node.api.remove("default", "one");

    for _ in 0..2 {
        let responses = scene.kubelet.unprepare(&[&unknown, &claim]).await;
        assert_eq!(responses.len(), 2);
        assert!(responses.values().all(Result::is_ok), "{responses:?}");
    }
    assert!(!scene.has_files());
    assert_eq!(driver.take_calls().len(), 5, "the driver is called each time: it may have something to undo");
}

/// Section 2.2: a call without claims is valid.
#[tokio::test]
async fn a_call_without_claims_succeeds_without_calling_the_driver() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;

    assert!(scene.kubelet.prepare(&[]).await.is_empty());
    assert!(scene.kubelet.unprepare(&[]).await.is_empty());
    assert!(driver.take_calls().is_empty());
}

/// A driver that hangs while `hangs` is set.
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

/// G12: a driver that hangs is cancelled at the kubelet's deadline, even if the framework is not notified that the kubelet has
/// cancelled the call. Nothing stays locked: the claim can be prepared afterwards, and once it is unprepared another claim with
/// its device.
#[tokio::test]
async fn a_driver_that_hangs_is_cancelled_at_the_kubelets_deadline() {
    for serialize in [true, false] {
        let hangs = Arc::new(AtomicBool::new(true));
        let ongoing = Ongoing::default();
        let driver = Hanging { hangs: hangs.clone(), ongoing: ongoing.clone() };
        let scene = Scene::with(driver, |builder| builder.serialize(serialize)).await;
        let (one, two) = rivals(&scene, &json!({}), &json!({}));
        let line = Line::to(&scene.node, &scene.helper);
        let muted = Kubelet::at(&line.socket).await;
        let deadline = Duration::from_millis(500);
        let started = Instant::now();
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

/// G12: an unprepare that hangs is cancelled at the kubelet's deadline too, and the claim stays prepared.
#[tokio::test]
async fn an_unprepare_that_hangs_leaves_the_claim_prepared() {
    let hangs = Arc::new(AtomicBool::new(false));
    let ongoing = Ongoing::default();
    let driver = Hanging { hangs: hangs.clone(), ongoing: ongoing.clone() };
    let scene = Scene::new(driver).await;
    let claim = scene.own_claim("one");
    scene.kubelet.prepare_one(&claim).await.unwrap();
    hangs.store(true, Ordering::SeqCst);

    assert!(scene.kubelet.0.unprepare_with_timeout(Duration::from_millis(300), [&claim]).await.is_err());
    ongoing.wait_for(0).await;

    assert!(scene.node.metadata_file(&claim, "gpu").exists());
    hangs.store(false, Ordering::SeqCst);
    scene.kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!scene.has_files());
}

/// G19: gpu-0 is allocated for a, gpu-1 for b, and the driver swaps them.
#[tokio::test]
async fn a_device_for_the_wrong_request_is_refused() {
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
    let response = kubelet.prepare_one(&claim).await;
    assert!(response.is_err(), "each container has the other's device: {response:?}");
}

/// G19: the kubelet would pass it to containers twice, and it would be in the file twice.
#[tokio::test]
async fn a_duplicate_device_is_refused() {
    let node = Node::default();
    let driver = TestDriver::preparing(|claim| {
        let one: Vec<Device> = claim.results().map(Device::from).collect();
        Ok([one.clone(), one].concat())
    });
    let helper = node.start(&driver).await;
    let kubelet = Kubelet::of(&helper).await;
    let claim = node.claim(TestClaim::new("x", "uid-x").device("gpu", "gpu-0"));
    let response = kubelet.prepare_one(&claim).await;
    assert!(response.unwrap_err().contains("device node-1/gpu-0 twice"));
}
