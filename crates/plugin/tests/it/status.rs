//! Device status reports over HTTP, to an API server with server-side apply and authorization.

mod known_claims;

use std::time::Duration;

use drakkar_node::api::DraVersion;
use drakkar_plugin::{
    ClaimRef, Device, DeviceMetadata, DeviceStatus, Helper, MetadataUpdater, NetworkDeviceData, PluginBuilder,
    ReportError,
};
use serde_json::{Value, json};

use crate::support::{
    Cluster, Fault, Kubelet, POOL, RecordedRequest, SHARE, TIMEOUT, TestClaim, TestDriver, Times, eventually, http_get,
};

/// A driver on a node of a cluster.
struct Fixture {
    helper: Helper,
    driver: TestDriver,
    cluster: Cluster,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(configure: impl Fn(PluginBuilder) -> PluginBuilder) -> Self {
        Self::start(Cluster::new().await, TestDriver::default(), configure).await
    }

    async fn start(cluster: Cluster, driver: TestDriver, configure: impl Fn(PluginBuilder) -> PluginBuilder) -> Self {
        let helper = configure(builder(&cluster)).start(driver.clone()).await.unwrap();
        Self { helper, driver, cluster }
    }

    /// Stops the driver and starts it again on the same cluster.
    async fn restart(self) -> Self {
        let Self { helper, driver, cluster } = self;
        helper.stop().await.unwrap();
        Self::start(cluster, driver, |builder| builder).await
    }

    async fn claim(&self, name: &str) -> TestClaim {
        self.cluster.claim(name).await
    }

    async fn entries(&self, claim: &TestClaim) -> Vec<Value> {
        self.cluster.device_entries(claim).await
    }

    /// Returns the entry of a device, if it exists.
    async fn entry(&self, claim: &TestClaim, device: &str) -> Option<Value> {
        self.entries(claim).await.into_iter().find(|entry| entry["device"] == device)
    }

    /// Waits until a device has an entry that matches.
    async fn until(&self, claim: &TestClaim, device: &str, matches: impl Fn(&Value) -> bool) -> Value {
        until(&format!("the entry of {device}"), async || self.entry(claim, device).await.filter(&matches)).await
    }

    /// Waits until the driver gets a background error, and returns its text.
    async fn error(&self) -> String {
        eventually("the driver gets an error", || self.driver.errors.lock().unwrap().first().cloned()).await
    }

    /// Waits until the metrics count this many reports with an outcome.
    async fn counted(&self, outcome: &str, count: u64) {
        let address = self.helper.http_address().unwrap();
        let line = format!("drakkar_plugin_status_reports_total{{outcome=\"{outcome}\"}} {count}");
        until(&line, async || http_get(address, "/metrics").await.1.contains(&line).then_some(())).await;
    }

    fn report(&self, claim: &TestClaim, device: DeviceStatus) {
        self.helper.handles().report_device_status(&claim.reference(), [device]).unwrap();
    }

    /// Returns the paths of the driver's write requests.
    fn writes(&self) -> Vec<String> {
        let writes = self.cluster.proxy.requests().into_iter().filter(RecordedRequest::is_write);
        writes.map(|request| request.path).collect()
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

async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_report_becomes_an_entry_of_the_claim() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    let network = NetworkDeviceData {
        interface_name: "eth1".into(),
        ips: vec!["10.0.0.5/24".into(), "2001:db8::1/64".into()],
        hardware_address: "00:11:22:33:44:55".into(),
    };
    let status = gpu(0).ready("Attached", "all is well").data(json!({"mtu": 9000})).network_data(network);
    fixture.report(&claim, status);
    let mut entry = fixture.until(&claim, "gpu-0", |_| true).await;
    let time = entry["conditions"][0]["lastTransitionTime"].take();
    assert!(time.as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')), "{time}");
    let condition = json!({"type": "Ready", "status": "True", "reason": "Attached", "message": "all is well",
                           "lastTransitionTime": null});
    assert_eq!(
        entry,
        json!({
            "driver": fixture.cluster.names.driver, "pool": POOL, "device": "gpu-0", "conditions": [condition], "data": {"mtu": 9000},
            "networkData": {"interfaceName": "eth1", "ips": ["10.0.0.5/24", "2001:db8::1/64"],
                            "hardwareAddress": "00:11:22:33:44:55"},
        })
    );
    fixture.counted("delivered", 1).await;
    fixture.helper.stop().await.unwrap();
}

#[tokio::test]
async fn entries_and_fields_of_others_are_kept() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("shared").await;
    let foreign = json!([{"driver": "net.example.com", "pool": POOL, "device": "eth-0", "data": {"theirs": true}}]);
    fixture.cluster.apply_status(&claim, "net.example.com", foreign).await;
    fixture.report(&claim, numbered(0, 1).ready("Ok", ""));
    fixture.until(&claim, "gpu-0", |_| true).await;
    let bound = json!({"type": "Bound", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let on_ours =
        json!([{"driver": fixture.cluster.names.driver, "pool": POOL, "device": "gpu-0", "conditions": [bound]}]);
    fixture.cluster.apply_status(&claim, "a-controller", on_ours).await;
    fixture.report(&claim, numbered(1, 2));
    fixture.until(&claim, "gpu-1", |_| true).await;
    // The share ID is taken from the allocation.
    fixture.report(&claim, numbered(2, 3));
    let share = fixture.until(&claim, "gpu-2", |_| true).await;
    assert_eq!(share["shareID"], SHARE);
    fixture.report(&claim, numbered(0, 4));
    let first = fixture.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 4).await;
    assert_eq!(first["conditions"], json!([bound]), "ours is replaced, theirs stays");
    assert_eq!(fixture.entry(&claim, "gpu-1").await.unwrap()["data"], json!({"number": 2}));
    assert_eq!(fixture.entry(&claim, "gpu-2").await.unwrap()["data"], json!({"number": 3}));
    assert_eq!(fixture.entry(&claim, "eth-0").await.unwrap()["data"], json!({"theirs": true}));
}

#[tokio::test]
async fn a_restart_loses_nothing_and_a_transition_time_changes_only_with_the_status() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    let ready = json!({"type": "Ready", "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let before = json!([{"driver": fixture.cluster.names.driver, "pool": POOL, "device": "gpu-0", "conditions": [ready], "data": {"a": {"b": [1]}}}]);
    let manager = format!("{}-kubelet-plugin", fixture.cluster.names.driver);
    fixture.cluster.apply_status(&claim, &manager, before.clone()).await;
    let fixture = fixture.restart().await;
    fixture.report(&claim, numbered(1, 1));
    fixture.until(&claim, "gpu-1", |_| true).await;
    assert_eq!(fixture.entry(&claim, "gpu-0").await.unwrap(), before[0]);
    fixture.report(&claim, numbered(0, 2).ready("Other", "other"));
    let entry = fixture.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 2).await;
    assert_eq!(entry["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    fixture.report(&claim, numbered(0, 3).not_ready("Broken", "it is broken"));
    let entry = fixture.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 3).await;
    assert_ne!(entry["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    assert_eq!(entry["conditions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn after_an_outage_the_last_report_is_delivered() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    fixture.cluster.proxy.stop().await;
    for number in 0..50 {
        fixture.report(&claim, numbered(0, number));
        fixture.report(&claim, numbered(1, number));
        tokio::task::yield_now().await;
    }
    fixture.counted("superseded", 98).await;
    fixture.cluster.proxy.take_requests();
    fixture.cluster.proxy.resume();
    fixture.until(&claim, "gpu-0", |entry| entry["data"]["number"] == 49).await;
    fixture.until(&claim, "gpu-1", |entry| entry["data"]["number"] == 49).await;
    assert_eq!(fixture.writes().len(), 1, "{:?}", fixture.writes());
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn transient_errors_are_retried() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    let proxy = &fixture.cluster.proxy;
    proxy.fail("get", "resourceclaims", Fault::TooManyRequests(1), Times::Next(1));
    proxy.fail("patch", "resourceclaims", Fault::Unavailable, Times::Next(1));
    proxy.fail("patch", "resourceclaims", Fault::LostResponse, Times::Next(1));
    fixture.report(&claim, numbered(0, 1));
    fixture.counted("delivered", 1).await;
    assert_eq!(fixture.entry(&claim, "gpu-0").await.unwrap()["data"], json!({"number": 1}));
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

/// Reports of other claims wait too: an overloaded server is overloaded for all of them.
#[tokio::test]
async fn retry_after_is_respected_for_all_claims() {
    let fixture = Fixture::new().await;
    let claims = [fixture.claim("one").await, fixture.claim("two").await];
    let proxy = &fixture.cluster.proxy;
    proxy.fail("get", "resourceclaims", Fault::TooManyRequests(2), Times::Next(1));
    proxy.take_requests();
    claims.iter().for_each(|claim| fixture.report(claim, numbered(0, 1)));
    fixture.counted("delivered", 2).await;
    let requests: Vec<_> =
        proxy.take_requests().into_iter().filter(|request| request.is_about("resourceclaims")).collect();
    let verbs: Vec<_> = requests.iter().map(|request| request.verb).collect();
    assert_eq!(verbs, ["get", "get", "patch", "get", "patch"]);
    let pause = requests[1].time - requests[0].time;
    assert!(pause >= Duration::from_secs(2), "{pause:?}");
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_report_that_takes_too_long_is_dropped_with_an_error() {
    let fixture = Fixture::with(|builder| builder.status_timeout(Duration::from_millis(300))).await;
    let claim = fixture.claim("one").await;
    fixture.cluster.proxy.stop().await;
    fixture.report(&claim, numbered(0, 1));
    let error = fixture.error().await;
    let claim = format!("report device status: claim {}/one", claim.namespace());
    for part in [claim.as_str(), "device pool-1/gpu-0", "gave up after", " attempts: "] {
        assert!(error.contains(part), "{error}");
    }
    fixture.counted("failed", 1).await;
}

#[tokio::test]
async fn reports_of_a_deleted_or_replaced_claim_are_dropped() {
    let fixture = Fixture::new().await;
    let old = fixture.claim("one").await;
    fixture.cluster.request_claims("DELETE", "/one", "application/json", &json!({})).await;
    fixture.report(&old, numbered(0, 1));
    fixture.counted("dropped", 1).await;
    let new = fixture.claim("one").await;
    fixture.report(&old, numbered(0, 2));
    fixture.counted("dropped", 2).await;
    assert!(fixture.entries(&new).await.is_empty());
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_device_that_is_not_allocated_is_an_error_and_does_not_delay_others() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    fixture.helper.handles().report_device_status(&reference(&claim), [gpu(9), numbered(0, 1)]).unwrap();
    fixture.until(&claim, "gpu-0", |_| true).await;
    let error = fixture.error().await;
    assert!(error.contains("device pool-1/gpu-9: it is not allocated to the claim"), "{error}");
    fixture.counted("refused", 1).await;
}

#[tokio::test]
async fn invalid_values_are_refused_before_anything_is_sent() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    let error =
        fixture.helper.handles().report_device_status(&reference(&claim), [gpu(0).data(json!([]))]).unwrap_err();
    assert!(matches!(error, ReportError::Invalid { .. }));
    assert!(error.to_string().contains("device pool-1/gpu-0: data: must be a JSON object"), "{error}");
    assert!(fixture.writes().is_empty());
}

#[rstest::rstest]
#[case("resourceclaims", r#"resources: ["resourceclaims"], verbs: ["get"]}"#)]
#[case("resourceclaims/status", r#"resources: ["resourceclaims/status"], verbs: ["patch"]}"#)]
#[case(
    "resourceclaims/driver",
    r#"resources: ["resourceclaims/driver"], resourceNames: ["DRIVER"], verbs: ["associated-node:patch"]}"#
)]
#[tokio::test]
async fn the_error_of_a_missing_permission_has_the_rule_to_add(#[case] resource: &str, #[case] rule: &str) {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    fixture.cluster.grant_all_except(Some(resource)).await;
    fixture.report(&claim, numbered(0, 1));
    let error = fixture.error().await;
    let rule = rule.replace("DRIVER", &fixture.cluster.names.driver);
    let rule = format!(r#"add this rule to the driver's ClusterRole: - {{apiGroups: ["resource.k8s.io"], {rule}"#);
    assert!(error.contains(&rule), "{error}");
    // Once the rule is added the report is delivered: here by the last attempt of a stop.
    fixture.cluster.grant_all_except(None).await;
    let fixture = fixture.restart().await;
    assert_eq!(fixture.entry(&claim, "gpu-0").await.unwrap()["data"], json!({"number": 1}));
    assert_eq!(fixture.driver.errors.lock().unwrap().len(), 1, "one error");
}

#[tokio::test]
async fn the_error_for_a_driver_without_a_node_has_the_other_verb() {
    let cluster = Cluster::new().await;
    let elsewhere = cluster.account_without_node().await;
    let fixture = Fixture::start(cluster, TestDriver::default(), |builder| builder.client(elsewhere.clone())).await;
    let claim = fixture.claim("one").await;
    fixture.report(&claim, numbered(0, 1));
    let error = fixture.error().await;
    let rule =
        format!(r#"resourceNames: ["{}"], verbs: ["arbitrary-node:patch"]}}; or, where"#, fixture.cluster.names.driver);
    assert!(error.contains(&rule), "{error}");
}

#[tokio::test]
async fn a_server_that_drops_the_status_is_an_error() {
    let Some(cluster) = Cluster::with_gates(&[("DRAResourceClaimDeviceStatus", false)]).await else { return };
    let fixture = Fixture::start(cluster, TestDriver::default(), |builder| builder).await;
    let claim = fixture.claim("one").await;
    fixture.report(&claim, numbered(0, 1));
    let error = fixture.error().await;
    assert!(error.contains("enable its feature gate DRAResourceClaimDeviceStatus"), "{error}");
    fixture.counted("failed", 1).await;
}

#[rstest::rstest]
#[case(DraVersion::V1beta1)]
#[case(DraVersion::V1beta2)]
#[tokio::test]
async fn older_versions_of_the_api_are_supported(#[case] version: DraVersion) {
    let Some(cluster) = Cluster::with_version(version).await else { return };
    let fixture = Fixture::start(cluster, TestDriver::default(), |builder| builder).await;
    let claim = fixture.claim("one").await;
    fixture.report(&claim, numbered(0, 1));
    fixture.until(&claim, "gpu-0", |_| true).await;
}

#[tokio::test]
async fn two_instances_keep_each_others_entries() {
    let set = |uid: &'static str| move |builder: PluginBuilder| builder.rolling_update(uid);
    let old = Fixture::with(set("uid-1")).await;
    let new = set("uid-2")(builder(&old.cluster)).start(old.driver.clone()).await.unwrap();
    let claim = old.claim("one").await;
    for number in 0..20 {
        old.report(&claim, numbered(0, number));
        new.handles().report_device_status(&reference(&claim), [numbered(1, number)]).unwrap();
        old.until(&claim, "gpu-0", |entry| entry["data"]["number"] == number).await;
        old.until(&claim, "gpu-1", |entry| entry["data"]["number"] == number).await;
        assert_eq!(old.entries(&claim).await.len(), 2);
    }
    new.stop().await.unwrap();
}

#[tokio::test]
async fn an_unprepare_drops_pending_reports_but_not_its_own() {
    let slot = std::sync::Arc::new(std::sync::OnceLock::<drakkar_plugin::StatusReporter>::new());
    let reporter = slot.clone();
    let driver = TestDriver::default().unpreparing(move |claim| {
        let gone = gpu(0).not_ready("Unprepared", "the pod is gone");
        Ok(reporter.get().unwrap().report_device_status(claim, [gone])?)
    });
    let fixture = Fixture::start(Cluster::new().await, driver, |builder| builder).await;
    slot.set(fixture.helper.handles().status_reporter()).ok();
    let kubelet = Kubelet::of(&fixture.helper).await;
    let claim = fixture.claim("one").await;
    kubelet.prepare_one(&claim).await.unwrap();
    fixture.cluster.proxy.stop().await;
    fixture.report(&claim, numbered(1, 1).ready("Ok", ""));
    kubelet.unprepare_one(&claim).await.unwrap();
    fixture.counted("dropped", 1).await;
    fixture.cluster.proxy.resume();
    let entry = fixture.until(&claim, "gpu-0", |_| true).await;
    assert_eq!(entry["conditions"][0]["reason"], "Unprepared");
    assert_eq!(fixture.entries(&claim).await.len(), 1);
}

/// Whether the API server refuses connections or does not respond, a stop takes a few seconds and reports what is lost.
#[rstest::rstest]
#[case::refused(false)]
#[case::hanging(true)]
#[tokio::test]
async fn a_stop_does_not_wait_for_an_unavailable_api_server(#[case] is_hanging: bool) {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    if is_hanging {
        fixture.cluster.proxy.stop_responding();
    } else {
        fixture.cluster.proxy.stop().await;
    }
    fixture.report(&claim, numbered(0, 1));
    let reporter = fixture.helper.handles().status_reporter();
    let began = std::time::Instant::now();
    fixture.helper.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let errors = fixture.driver.errors.lock().unwrap().clone();
    assert!(
        errors.len() == 1
            && errors[0].contains(&format!("claim {}", claim.reference()))
            && errors[0].contains("gave up"),
        "{errors:?}"
    );
    let late = reporter.report_device_status(&reference(&claim), [gpu(0)]);
    assert!(matches!(late, Err(ReportError::Stopped { .. })), "{late:?}");
}

#[tokio::test]
async fn after_a_driver_is_dropped_reports_are_refused() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    let reporter = fixture.helper.handles().status_reporter();
    drop(fixture.helper);
    let refused = async || reporter.report_device_status(&reference(&claim), [gpu(0)]).err();
    let error = until("an error", refused).await;
    assert!(matches!(error, ReportError::Stopped { .. }), "{error}");
}

/// Returns an update of the metadata of gpu-0.
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
async fn an_update_with_a_report_writes_the_file_and_the_claim() {
    let fixture = Fixture::new().await;
    let kubelet = Kubelet::of(&fixture.helper).await;
    let claim = fixture.claim("one").await;
    kubelet.prepare_one(&claim).await.unwrap();
    let in_file = || fixture.cluster.metadata(&claim, "gpu");
    let claim_ref = reference(&claim);

    let generation =
        fixture.helper.handles().update_request_metadata(&claim_ref, "gpu", update("10.0.0.5/24")).and_report().await;
    assert_eq!(generation.unwrap(), 2);
    let entry = fixture.until(&claim, "gpu-0", |_| true).await;
    let device = &in_file()["requests"][0]["devices"][0];
    assert_eq!(entry["networkData"], device["networkData"]);
    assert_eq!(entry["data"]["attributes"], device["attributes"]);
    assert_eq!(entry["conditions"][0]["type"], "Ready");
    assert_eq!(entry["conditions"][0]["status"], "True");
    assert_eq!(entry["conditions"][0]["reason"], "Configured");

    // Values that the API server would reject are not written to the file either.
    let bad =
        fixture.helper.handles().update_request_metadata(&claim_ref, "gpu", update("10.0.0.5")).and_report().await;
    assert!(bad.unwrap_err().to_string().contains("networkData.ips[0]"));
    assert_eq!(in_file()["metadata"]["generation"], 2);

    // Through the trait, as a hook would, and with a condition of the driver's own.
    let updater: std::sync::Arc<dyn MetadataUpdater> = fixture.helper.handles().metadata_updater();
    let update = updater.update_request_metadata(&claim_ref, "gpu", update("10.0.0.6/24"));
    update.and_report_with(|status| status.not_ready("LinkDown", "no carrier")).await.unwrap();
    let entry = fixture.until(&claim, "gpu-0", |entry| entry["networkData"]["ips"] == json!(["10.0.0.6/24"])).await;
    assert_eq!(entry["conditions"][0]["reason"], "LinkDown");

    // Nothing is reported for a claim that is not prepared.
    kubelet.unprepare_one(&claim).await.unwrap();
    let gone = fixture
        .helper
        .handles()
        .update_request_metadata(&claim_ref, "gpu", self::update("10.0.0.7/24"))
        .and_report()
        .await;
    assert!(gone.unwrap_err().is_not_prepared());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_concurrent_updates_the_file_and_the_claim_agree() {
    let fixture = Fixture::new().await;
    let kubelet = Kubelet::of(&fixture.helper).await;
    let claim = fixture.claim("one").await;
    kubelet.prepare_one(&claim).await.unwrap();
    let mut updates = tokio::task::JoinSet::new();
    for number in 0..32 {
        let updater = fixture.helper.handles().metadata_updater();
        let claim = reference(&claim);
        updates.spawn(async move {
            let update = update(&format!("10.0.0.{number}/24"));
            updater.update_request_metadata(&claim, "gpu", update).and_report().await.unwrap()
        });
    }
    let generations = updates.join_all().await;
    assert_eq!(generations.iter().max(), Some(&33));
    let file = fixture.cluster.metadata(&claim, "gpu");
    let ips = &file["requests"][0]["devices"][0]["networkData"]["ips"];
    fixture.until(&claim, "gpu-0", |entry| entry["networkData"]["ips"] == *ips).await;
    let none_pending = "drakkar_plugin_status_reports_waiting 0";
    let address = fixture.helper.http_address().unwrap();
    until(none_pending, async || http_get(address, "/metrics").await.1.contains(none_pending).then_some(())).await;
    assert_eq!(fixture.entry(&claim, "gpu-0").await.unwrap()["networkData"]["ips"], *ips);
}
