//! Telling the API server of devices, over HTTP, with an API server that has server-side apply and authorization.

use std::time::Duration;

use drakkar_node::api::DraVersion;
use drakkar_plugin::{
    ClaimRef, Device, DeviceMetadata, DeviceStatus, Helper, MetadataUpdater, NetworkDeviceData, PluginBuilder,
    ReportError,
};
use serde_json::{Value, json};

use crate::support::{
    Asked, Cluster, Kubelet, PATIENCE, POOL, SHARE, TestClaim, TestDriver, Times, Trouble, eventually, http_get,
};

/// A driver on the node of a cluster.
struct Scene {
    helper: Helper,
    driver: TestDriver,
    cluster: Cluster,
}

impl Scene {
    async fn new() -> Self {
        Self::set(|builder| builder).await
    }

    async fn set(set: impl Fn(PluginBuilder) -> PluginBuilder) -> Self {
        Self::of(Cluster::new().await, TestDriver::default(), set).await
    }

    async fn of(cluster: Cluster, driver: TestDriver, set: impl Fn(PluginBuilder) -> PluginBuilder) -> Self {
        let helper = set(builder(&cluster)).start(driver.clone()).await.unwrap();
        Self { helper, driver, cluster }
    }

    /// The same with another process of the driver.
    async fn restart(self) -> Self {
        let Self { helper, driver, cluster } = self;
        helper.stop().await.unwrap();
        Self::of(cluster, driver, |builder| builder).await
    }

    async fn claim(&self, name: &str) -> TestClaim {
        self.cluster.claim(name).await
    }

    async fn entries(&self, claim: &TestClaim) -> Vec<Value> {
        self.cluster.device_entries(claim).await
    }

    /// The entry of a device, if there is one.
    async fn entry(&self, claim: &TestClaim, device: &str) -> Option<Value> {
        self.entries(claim).await.into_iter().find(|entry| entry["device"] == device)
    }

    /// Waits until the entry of a device is as it should be.
    async fn until(&self, claim: &TestClaim, device: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        until(&format!("the entry of {device}"), async || self.entry(claim, device).await.filter(&is_it)).await
    }

    /// Waits until the driver is told of trouble, and gives what it is told.
    async fn told(&self) -> String {
        eventually("the driver is told", || self.driver.errors.lock().unwrap().first().cloned()).await
    }

    /// Waits until so many reports have come to that.
    async fn counted(&self, outcome: &str, count: u64) {
        let address = self.helper.http_address().unwrap();
        let line = format!("drakkar_plugin_status_reports_total{{outcome=\"{outcome}\"}} {count}");
        until(&line, async || http_get(address, "/metrics").await.1.contains(&line).then_some(())).await;
    }

    fn report(&self, claim: &TestClaim, device: DeviceStatus) {
        self.helper.report_device_status(&claim.reference(), [device]).unwrap();
    }

    /// Paths of requests of the driver that wrote.
    fn writes(&self) -> Vec<String> {
        let lines = self.cluster.wire.asked().into_iter().filter(Asked::is_write);
        lines.map(|asked| asked.path).collect()
    }
}

fn builder(cluster: &Cluster) -> PluginBuilder {
    cluster.builder().http_endpoint("127.0.0.1:0".parse().unwrap()).device_metadata(true)
}

fn reference(claim: &TestClaim) -> ClaimRef {
    claim.reference()
}

fn gpu(number: u8) -> DeviceStatus {
    DeviceStatus::new(POOL, format!("gpu-{number}"))
}

fn numbered(device: u8, number: i64) -> DeviceStatus {
    gpu(device).data(json!({"number": number}))
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_report_becomes_an_entry_of_the_claim() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    let network = NetworkDeviceData {
        interface_name: "eth1".into(),
        ips: vec!["10.0.0.5/24".into(), "2001:db8::1/64".into()],
        hardware_address: "00:11:22:33:44:55".into(),
    };
    let status = gpu(0).ready("Attached", "all is well").data(json!({"mtu": 9000})).network_data(network);
    scene.report(&claim, status);
    let mut entry = scene.until(&claim, "gpu-0", |_| true).await;
    let time = entry["conditions"][0]["lastTransitionTime"].take();
    assert!(time.as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')), "{time}");
    let condition = json!({"type": "Ready", "status": "True", "reason": "Attached", "message": "all is well",
                           "lastTransitionTime": null});
    assert_eq!(
        entry,
        json!({
            "driver": scene.cluster.names.driver, "pool": POOL, "device": "gpu-0", "conditions": [condition], "data": {"mtu": 9000},
            "networkData": {"interfaceName": "eth1", "ips": ["10.0.0.5/24", "2001:db8::1/64"],
                            "hardwareAddress": "00:11:22:33:44:55"},
        })
    );
    scene.counted("delivered", 1).await;
    scene.helper.stop().await.unwrap();
}

#[tokio::test]
async fn nobody_loses_what_another_said() {
    let scene = Scene::new().await;
    let claim = scene.claim("shared").await;
    let foreign = json!([{"driver": "net.example.com", "pool": POOL, "device": "eth-0", "data": {"theirs": true}}]);
    scene.cluster.apply_status(&claim, "net.example.com", foreign).await;
    scene.report(&claim, numbered(0, 1).ready("Ok", ""));
    scene.until(&claim, "gpu-0", |_| true).await;
    let bound = json!({"type": "Bound", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let on_ours =
        json!([{"driver": scene.cluster.names.driver, "pool": POOL, "device": "gpu-0", "conditions": [bound]}]);
    scene.cluster.apply_status(&claim, "a-controller", on_ours).await;
    scene.report(&claim, numbered(1, 2));
    scene.until(&claim, "gpu-1", |_| true).await;
    // The share is filled in from the allocation.
    scene.report(&claim, numbered(2, 3));
    let share = scene.until(&claim, "gpu-2", |_| true).await;
    assert_eq!(share["shareID"], SHARE);
    scene.report(&claim, numbered(0, 4));
    let first = scene.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 4).await;
    assert_eq!(first["conditions"], json!([bound]), "ours is replaced, theirs stays");
    assert_eq!(scene.entry(&claim, "gpu-1").await.unwrap()["data"], json!({"number": 2}));
    assert_eq!(scene.entry(&claim, "gpu-2").await.unwrap()["data"], json!({"number": 3}));
    assert_eq!(scene.entry(&claim, "eth-0").await.unwrap()["data"], json!({"theirs": true}));
}

#[tokio::test]
async fn a_restart_loses_nothing_and_a_transition_time_changes_with_the_status_only() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    let ready = json!({"type": "Ready", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let before = json!([{"driver": scene.cluster.names.driver, "pool": POOL, "device": "gpu-0", "conditions": [ready], "data": {"a": {"b": [1]}}}]);
    let manager = format!("{}-kubelet-plugin", scene.cluster.names.driver);
    scene.cluster.apply_status(&claim, &manager, before.clone()).await;
    let scene = scene.restart().await;
    scene.report(&claim, numbered(1, 1));
    scene.until(&claim, "gpu-1", |_| true).await;
    assert_eq!(scene.entry(&claim, "gpu-0").await.unwrap(), before[0]);
    scene.report(&claim, numbered(0, 2).ready("Other", "other"));
    let entry = scene.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 2).await;
    assert_eq!(entry["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    scene.report(&claim, numbered(0, 3).not_ready("Broken", "it is broken"));
    let entry = scene.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 3).await;
    assert_ne!(entry["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    assert_eq!(entry["conditions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_outage_is_waited_out_and_the_last_state_wins() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    scene.cluster.wire.stop().await;
    for number in 0..50 {
        scene.report(&claim, numbered(0, number));
        scene.report(&claim, numbered(1, number));
        tokio::task::yield_now().await;
    }
    scene.counted("superseded", 98).await;
    scene.cluster.wire.take_asked();
    scene.cluster.wire.resume();
    scene.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 49).await;
    scene.until(&claim, "gpu-1", |entry| entry["data"]["number"] == 49).await;
    assert_eq!(scene.writes().len(), 1, "{:?}", scene.writes());
    assert!(scene.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn trouble_that_passes_is_tried_again() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    let wire = &scene.cluster.wire;
    wire.fail("get", "resourceclaims", Trouble::TooManyRequests(1), Times::Next(1));
    wire.fail("patch", "resourceclaims", Trouble::Unavailable, Times::Next(1));
    wire.fail("patch", "resourceclaims", Trouble::LostAnswer, Times::Next(1));
    scene.report(&claim, numbered(0, 1));
    scene.counted("delivered", 1).await;
    assert_eq!(scene.entry(&claim, "gpu-0").await.unwrap()["data"], json!({"number": 1}));
    assert!(scene.driver.errors.lock().unwrap().is_empty());
}

/// Those of other claims too: a server that has too much to do has it for all.
#[tokio::test]
async fn a_server_is_not_asked_again_before_it_wants_to_be() {
    let scene = Scene::new().await;
    let claims = [scene.claim("one").await, scene.claim("two").await];
    let wire = &scene.cluster.wire;
    wire.fail("get", "resourceclaims", Trouble::TooManyRequests(2), Times::Next(1));
    wire.take_asked();
    claims.iter().for_each(|claim| scene.report(claim, numbered(0, 1)));
    scene.counted("delivered", 2).await;
    let requests: Vec<_> = wire.take_asked().into_iter().filter(|asked| asked.is_about("resourceclaims")).collect();
    let asked: Vec<_> = requests.iter().map(|asked| asked.verb).collect();
    assert_eq!(asked, ["get", "get", "patch", "get", "patch"]);
    let pause = requests[1].time - requests[0].time;
    assert!(pause >= Duration::from_secs(2), "{pause:?}");
    assert!(scene.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_takes_too_long_is_given_up_and_told() {
    let scene = Scene::set(|builder| builder.status_timeout(Duration::from_millis(300))).await;
    let claim = scene.claim("one").await;
    scene.cluster.wire.stop().await;
    scene.report(&claim, numbered(0, 1));
    let told = scene.told().await;
    let claim = format!("report the status of devices: claim {}/one", claim.namespace());
    for part in [claim.as_str(), "device pool-1/gpu-0", "given up after", "in try "] {
        assert!(told.contains(part), "{told}");
    }
    scene.counted("failed", 1).await;
}

#[tokio::test]
async fn reports_of_a_claim_that_is_gone_or_replaced_are_dropped() {
    let scene = Scene::new().await;
    let old = scene.claim("one").await;
    scene.cluster.ask_claims("DELETE", "/one", "application/json", &json!({})).await;
    scene.report(&old, numbered(0, 1));
    scene.counted("dropped", 1).await;
    let new = scene.claim("one").await;
    scene.report(&old, numbered(0, 2));
    scene.counted("dropped", 2).await;
    assert!(scene.entries(&new).await.is_empty());
    assert!(scene.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_device_that_is_not_the_claims_is_told_and_does_not_hold_up_others() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    scene.helper.report_device_status(&reference(&claim), [gpu(9), numbered(0, 1)]).unwrap();
    scene.until(&claim, "gpu-0", |_| true).await;
    let told = scene.told().await;
    assert!(told.contains("device pool-1/gpu-9: it is not allocated to the claim"), "{told}");
    scene.counted("refused", 1).await;
}

#[tokio::test]
async fn values_that_cannot_be_are_refused_before_anything_is_sent() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    let error = scene.helper.report_device_status(&reference(&claim), [gpu(0).data(json!([]))]).unwrap_err();
    assert!(matches!(error, ReportError::Invalid { .. }));
    assert!(error.to_string().contains("device pool-1/gpu-0: data: must be a JSON object"), "{error}");
    assert!(scene.writes().is_empty());
}

#[rstest::rstest]
#[case("resourceclaims", r#"resources: ["resourceclaims"], verbs: ["get"]}"#)]
#[case("resourceclaims/status", r#"resources: ["resourceclaims/status"], verbs: ["patch"]}"#)]
#[case(
    "resourceclaims/driver",
    r#"resources: ["resourceclaims/driver"], resourceNames: ["DRIVER"], verbs: ["associated-node:patch"]}"#
)]
#[tokio::test]
async fn a_permission_that_is_missing_is_told_with_its_rule(#[case] resource: &str, #[case] rule: &str) {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    scene.cluster.withhold(Some(resource)).await;
    scene.report(&claim, numbered(0, 1));
    let told = scene.told().await;
    let rule = rule.replace("DRIVER", &scene.cluster.names.driver);
    let rule = format!(r#"add this rule to the driver's ClusterRole: - {{apiGroups: ["resource.k8s.io"], {rule}"#);
    assert!(told.contains(&rule), "{told}");
    // When somebody adds it, the report comes through: here at the last chance that a stop gives it.
    scene.cluster.withhold(None).await;
    let scene = scene.restart().await;
    assert_eq!(scene.entry(&claim, "gpu-0").await.unwrap()["data"], json!({"number": 1}));
    assert_eq!(scene.driver.errors.lock().unwrap().len(), 1, "told once");
}

#[tokio::test]
async fn a_driver_without_a_node_is_told_of_the_other_verb() {
    let cluster = Cluster::new().await;
    let elsewhere = cluster.account_without_node().await;
    let scene = Scene::of(cluster, TestDriver::default(), |builder| builder.client(elsewhere.clone())).await;
    let claim = scene.claim("one").await;
    scene.report(&claim, numbered(0, 1));
    let told = scene.told().await;
    let rule =
        format!(r#"resourceNames: ["{}"], verbs: ["arbitrary-node:patch"]}}; or, where"#, scene.cluster.names.driver);
    assert!(told.contains(&rule), "{told}");
}

#[tokio::test]
async fn a_server_that_does_not_keep_the_status_is_told_of() {
    let Some(cluster) = Cluster::with_gates(&[("DRAResourceClaimDeviceStatus", false)]).await else { return };
    let scene = Scene::of(cluster, TestDriver::default(), |builder| builder).await;
    let claim = scene.claim("one").await;
    scene.report(&claim, numbered(0, 1));
    let told = scene.told().await;
    assert!(told.contains("turn on its feature gate DRAResourceClaimDeviceStatus"), "{told}");
    scene.counted("failed", 1).await;
}

#[rstest::rstest]
#[case(DraVersion::V1beta1)]
#[case(DraVersion::V1beta2)]
#[tokio::test]
async fn older_versions_of_the_api_do_as_well(#[case] version: DraVersion) {
    let Some(cluster) = Cluster::with_version(version).await else { return };
    let scene = Scene::of(cluster, TestDriver::default(), |builder| builder).await;
    let claim = scene.claim("one").await;
    scene.report(&claim, numbered(0, 1));
    scene.until(&claim, "gpu-0", |_| true).await;
}

#[tokio::test]
async fn two_instances_keep_each_others_entries() {
    let set = |uid: &'static str| move |builder: PluginBuilder| builder.rolling_update(uid);
    let old = Scene::set(set("uid-1")).await;
    let new = set("uid-2")(builder(&old.cluster)).start(old.driver.clone()).await.unwrap();
    let claim = old.claim("one").await;
    for number in 0..20 {
        old.report(&claim, numbered(0, number));
        new.report_device_status(&reference(&claim), [numbered(1, number)]).unwrap();
        old.until(&claim, "gpu-0", |entry| entry["data"]["number"] == number).await;
        old.until(&claim, "gpu-1", |entry| entry["data"]["number"] == number).await;
        assert_eq!(old.entries(&claim).await.len(), 2);
    }
    new.stop().await.unwrap();
}

#[tokio::test]
async fn an_unprepare_drops_what_waits_but_not_what_it_reports_itself() {
    let slot = std::sync::Arc::new(std::sync::OnceLock::<drakkar_plugin::StatusReporter>::new());
    let reporter = slot.clone();
    let driver = TestDriver::default().unpreparing(move |claim| {
        let gone = gpu(0).not_ready("Unprepared", "the pod is gone");
        Ok(reporter.get().unwrap().report_device_status(claim, [gone])?)
    });
    let scene = Scene::of(Cluster::new().await, driver, |builder| builder).await;
    slot.set(scene.helper.handles().status_reporter()).ok();
    let kubelet = Kubelet::of(&scene.helper).await;
    let claim = scene.claim("one").await;
    kubelet.prepare_one(&claim).await.unwrap();
    scene.cluster.wire.stop().await;
    scene.report(&claim, numbered(1, 1).ready("Ok", ""));
    kubelet.unprepare_one(&claim).await.unwrap();
    scene.counted("dropped", 1).await;
    scene.cluster.wire.resume();
    let entry = scene.until(&claim, "gpu-0", |_| true).await;
    assert_eq!(entry["conditions"][0]["reason"], "Unprepared");
    assert_eq!(scene.entries(&claim).await.len(), 1);
}

/// Whether the API server refuses connections or does not answer, a stop takes a few seconds at most and says what is lost.
#[rstest::rstest]
#[case::refused(false)]
#[case::silent(true)]
#[tokio::test]
async fn a_stop_does_not_wait_for_an_api_server_that_is_away(#[case] is_silent: bool) {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    match is_silent {
        true => scene.cluster.wire.fall_silent(),
        false => scene.cluster.wire.stop().await,
    }
    scene.report(&claim, numbered(0, 1));
    let reporter = scene.helper.handles().status_reporter();
    let began = std::time::Instant::now();
    scene.helper.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let told = scene.driver.errors.lock().unwrap().clone();
    assert!(
        told.len() == 1 && told[0].contains(&format!("claim {}", claim.reference())) && told[0].contains("given up"),
        "{told:?}"
    );
    let late = reporter.report_device_status(&reference(&claim), [gpu(0)]);
    assert!(matches!(late, Err(ReportError::Stopped { .. })), "{late:?}");
}

#[tokio::test]
async fn a_driver_that_is_dropped_takes_no_more_reports() {
    let scene = Scene::new().await;
    let claim = scene.claim("one").await;
    let reporter = scene.helper.handles().status_reporter();
    drop(scene.helper);
    let refused = async || reporter.report_device_status(&reference(&claim), [gpu(0)]).err();
    let error = until("a refusal", refused).await;
    assert!(matches!(error, ReportError::Stopped { .. }), "{error}");
}

/// What an update tells of gpu-0.
fn update(ip: &str) -> Vec<Device> {
    let network =
        NetworkDeviceData { interface_name: "eth1".into(), ips: vec![ip.into()], ..NetworkDeviceData::default() };
    let metadata = DeviceMetadata { network_data: Some(network), ..DeviceMetadata::default() };
    vec![Device {
        pool_name: POOL.into(),
        device_name: "gpu-0".into(),
        metadata: Some(metadata.attribute("model", "m1")),
        ..Device::default()
    }]
}

#[tokio::test]
async fn an_update_that_reports_goes_both_ways() {
    let scene = Scene::new().await;
    let kubelet = Kubelet::of(&scene.helper).await;
    let claim = scene.claim("one").await;
    kubelet.prepare_one(&claim).await.unwrap();
    let in_file = || scene.cluster.metadata(&claim, "gpu");
    let claim_ref = reference(&claim);

    let generation = scene.helper.update_request_metadata(&claim_ref, "gpu", update("10.0.0.5/24")).and_report().await;
    assert_eq!(generation.unwrap(), 2);
    let entry = scene.until(&claim, "gpu-0", |_| true).await;
    let device = &in_file()["requests"][0]["devices"][0];
    assert_eq!(entry["networkData"], device["networkData"]);
    assert_eq!(entry["data"]["attributes"], device["attributes"]);
    assert_eq!(entry["conditions"][0]["type"], "Ready");
    assert_eq!(entry["conditions"][0]["status"], "True");
    assert_eq!(entry["conditions"][0]["reason"], "Configured");

    // What the API server would refuse does not reach the file either.
    let bad = scene.helper.update_request_metadata(&claim_ref, "gpu", update("10.0.0.5")).and_report().await;
    assert!(bad.unwrap_err().to_string().contains("networkData.ips[0]"));
    assert_eq!(in_file()["metadata"]["generation"], 2);

    // From where a hook has only the trait, and with a word of the driver's own.
    let updater: std::sync::Arc<dyn MetadataUpdater> = scene.helper.handles().metadata_updater();
    let update = updater.update_request_metadata(&claim_ref, "gpu", update("10.0.0.6/24"));
    update.and_report_with(|status| status.not_ready("LinkDown", "no carrier")).await.unwrap();
    let entry = scene.until(&claim, "gpu-0", |entry| entry["networkData"]["ips"] == json!(["10.0.0.6/24"])).await;
    assert_eq!(entry["conditions"][0]["reason"], "LinkDown");

    // Nothing is reported of what is not prepared.
    kubelet.unprepare_one(&claim).await.unwrap();
    let gone = scene.helper.update_request_metadata(&claim_ref, "gpu", self::update("10.0.0.7/24")).and_report().await;
    assert!(gone.unwrap_err().is_not_prepared());
}

/// However many updates there are at once, the file and the claim agree in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_pod_and_the_api_server_agree() {
    let scene = Scene::new().await;
    let kubelet = Kubelet::of(&scene.helper).await;
    let claim = scene.claim("one").await;
    kubelet.prepare_one(&claim).await.unwrap();
    let mut updates = tokio::task::JoinSet::new();
    for number in 0..32 {
        let (updater, claim) = (scene.helper.handles().metadata_updater(), reference(&claim));
        updates.spawn(async move {
            let update = update(&format!("10.0.0.{number}/24"));
            updater.update_request_metadata(&claim, "gpu", update).and_report().await.unwrap()
        });
    }
    let generations = updates.join_all().await;
    assert_eq!(generations.iter().max(), Some(&33));
    let file = scene.cluster.metadata(&claim, "gpu");
    let ips = &file["requests"][0]["devices"][0]["networkData"]["ips"];
    scene.until(&claim, "gpu-0", |entry| entry["networkData"]["ips"] == *ips).await;
    let waits = "drakkar_plugin_status_reports_waiting 0";
    let address = scene.helper.http_address().unwrap();
    until(waits, async || http_get(address, "/metrics").await.1.contains(waits).then_some(())).await;
    assert_eq!(scene.entry(&claim, "gpu-0").await.unwrap()["networkData"]["ips"], *ips);
}
