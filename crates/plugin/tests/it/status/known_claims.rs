//! Reports for claims that the driver has prepared: one PATCH each, unless the claim has changed since.

use std::sync::{Arc, OnceLock};

use drakkar_plugin::StatusReporter;

use super::*;

impl Fixture {
    /// Creates a claim and prepares it. The requests for that are not counted.
    async fn prepared(&self, name: &str) -> TestClaim {
        let claim = self.claim(name).await;
        Kubelet::of(&self.helper).await.prepare_one(&claim).await.unwrap();
        self.cluster.proxy.take_requests();
        claim
    }

    /// Returns the verbs of the driver's requests for claims since they were last taken.
    fn take_verbs(&self) -> Vec<&'static str> {
        let requests = self.cluster.proxy.take_requests().into_iter();
        requests.filter(|request| request.is_about("resourceclaims")).map(|request| request.verb).collect()
    }

    /// Reports, waits until as many reports as this are delivered in all, and returns the verbs of the requests.
    async fn delivered(&self, claim: &TestClaim, device: DeviceStatus, count: u64) -> Vec<&'static str> {
        self.report(claim, device);
        self.counted("delivered", count).await;
        self.take_verbs()
    }

    /// Replaces the allocation of a claim, as the scheduler does after it has been deallocated.
    async fn allocate(&self, claim: &TestClaim, allocation: &Value) {
        let path = format!("/{}/status", claim.name());
        let status = json!({"status": {"allocation": allocation}});
        self.cluster.request_claims("PATCH", &path, "application/merge-patch+json", &status).await;
    }

    async fn delete(&self, claim: &TestClaim) {
        self.cluster.request_claims("DELETE", &format!("/{}", claim.name()), "application/json", &json!({})).await;
    }

    /// Returns the number of an entry's data.
    async fn number(&self, claim: &TestClaim, device: &str) -> Option<i64> {
        self.entry(claim, device).await.and_then(|entry| entry["data"]["number"].as_i64())
    }
}

/// A driver that reports gpu-0 from its prepare.
fn reporting_driver() -> (TestDriver, Arc<OnceLock<StatusReporter>>) {
    let slot = Arc::new(OnceLock::<StatusReporter>::new());
    let reporter = slot.clone();
    let driver = TestDriver::preparing(move |claim| {
        reporter.get().unwrap().report_device_status(claim.reference(), [numbered(0, 1).ready("Ok", "")])?;
        Ok(claim.results().map(Device::from).collect())
    });
    (driver, slot)
}

/// The usual pod: a GET for the prepare, a PATCH for the report that the driver makes in it.
#[tokio::test]
async fn a_pod_with_a_report_costs_two_requests() {
    let (driver, slot) = reporting_driver();
    let fixture = Fixture::start(Cluster::new().await, driver, |builder| builder).await;
    slot.set(fixture.helper.handles().status_reporter()).ok();
    let kubelet = Kubelet::of(&fixture.helper).await;
    let mut prepared = 0;
    for name in ["one", "two", "three"] {
        let claim = fixture.claim(name).await;
        fixture.cluster.proxy.take_requests();
        kubelet.prepare_one(&claim).await.unwrap();
        prepared += 1;
        fixture.counted("delivered", prepared).await;
        kubelet.unprepare_one(&claim).await.unwrap();
        assert_eq!(fixture.take_verbs(), ["get", "patch"], "{name}");
        assert_eq!(fixture.number(&claim, "gpu-0").await, Some(1));
    }
}

/// Each apply contains all earlier entries of the driver, without reading them.
#[tokio::test]
async fn each_further_report_is_one_request_and_keeps_the_earlier_ones() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 1).ready("Ok", ""), 1).await, ["patch"]);
    let ready = fixture.entry(&claim, "gpu-0").await.unwrap()["conditions"][0].clone();
    assert_eq!(fixture.delivered(&claim, numbered(1, 2), 2).await, ["patch"]);
    // Without a share ID: it is that of the allocation.
    assert_eq!(fixture.delivered(&claim, numbered(2, 3), 3).await, ["patch"]);
    assert_eq!(fixture.entry(&claim, "gpu-2").await.unwrap()["shareID"], SHARE);
    // In seconds, so a new transition time would differ from here on.
    let time = ready["lastTransitionTime"].as_str().unwrap().to_owned();
    until("the next second", async || (now() > time).then_some(())).await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 4).ready("Other", "other"), 4).await, ["patch"]);
    let entry = fixture.entry(&claim, "gpu-0").await.unwrap();
    assert_eq!(entry["data"], json!({"number": 4}));
    assert_eq!(entry["conditions"][0]["reason"], "Other");
    assert_eq!(entry["conditions"][0]["lastTransitionTime"], ready["lastTransitionTime"], "the status is the same");
    assert_eq!(fixture.number(&claim, "gpu-1").await, Some(2));
    assert_eq!(fixture.number(&claim, "gpu-2").await, Some(3));
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

/// Returns the current time in the API's format.
fn now() -> String {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    drakkar_metadata::Time::from_unix_seconds(i64::try_from(since_1970.as_secs()).unwrap()).unwrap().to_string()
}

/// What is known of a claim is that of a UID, not of a name.
#[tokio::test]
async fn a_claim_that_has_replaced_a_prepared_one_gets_no_entry() {
    let fixture = Fixture::new().await;
    let old = fixture.prepared("one").await;
    fixture.delete(&old).await;
    fixture.report(&old, numbered(0, 1));
    fixture.counted("dropped", 1).await;

    let old = fixture.prepared("two").await;
    fixture.delete(&old).await;
    let new = fixture.claim("two").await;
    fixture.report(&old, numbered(0, 2));
    fixture.counted("dropped", 2).await;
    assert!(fixture.entries(&new).await.is_empty());
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_claim_that_was_deallocated_since_its_prepare_gets_no_entry() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    fixture.allocate(&claim, &Value::Null).await;
    fixture.report(&claim, numbered(0, 1));
    fixture.counted("dropped", 1).await;
    assert!(fixture.entries(&claim).await.is_empty());
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

/// Only devices of the new allocation get entries, whatever was allocated at the prepare.
#[tokio::test]
async fn after_a_new_allocation_its_devices_count() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch"]);
    let mut allocation = claim.object["status"]["allocation"].clone();
    allocation["devices"]["results"][0]["device"] = "gpu-7".into();
    fixture.allocate(&claim, &Value::Null).await;
    fixture.allocate(&claim, &allocation).await;
    let handles = fixture.helper.handles();
    handles.report_device_status(&claim.reference(), [numbered(0, 2), numbered(1, 3)]).unwrap();
    fixture.counted("delivered", 2).await;
    fixture.counted("refused", 1).await;
    let error = fixture.error().await;
    assert!(error.contains("device pool-1/gpu-0: it is not allocated to the claim"), "{error}");
    assert_eq!(fixture.entries(&claim).await.len(), 1);
    assert_eq!(fixture.number(&claim, "gpu-1").await, Some(3));
    // Not known from the prepare, but from the claim as it was read.
    assert_eq!(fixture.delivered(&claim, DeviceStatus::new(POOL, "gpu-7"), 3).await.last(), Some(&"patch"));
    assert_eq!(fixture.entries(&claim).await.len(), 2);
}

#[tokio::test]
async fn entries_that_others_add_after_the_prepare_are_kept() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    let foreign = json!([{"driver": "net.example.com", "pool": POOL, "device": "eth-0", "data": {"number": 9}}]);
    fixture.cluster.apply_status(&claim, "net.example.com", foreign).await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch", "get", "patch"]);
    assert_eq!(fixture.number(&claim, "eth-0").await, Some(9));
    assert_eq!(fixture.number(&claim, "gpu-0").await, Some(1));
}

/// An instance of a rolling update, or of another node that uses the claim: it has the same field manager.
#[tokio::test]
async fn entries_that_another_instance_adds_after_the_prepare_are_kept() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    let driver = &fixture.cluster.names.driver;
    let manager = format!("{driver}-kubelet-plugin");
    let other = json!([{"driver": driver, "pool": POOL, "device": "gpu-1", "data": {"number": 9}}]);
    fixture.cluster.apply_status(&claim, &manager, other).await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch", "get", "patch"]);
    assert_eq!(fixture.number(&claim, "gpu-1").await, Some(9));
    assert_eq!(fixture.number(&claim, "gpu-0").await, Some(1));
}

/// The entries may be of an earlier process, so they are read: a prepare does not know which fields are ours.
#[tokio::test]
async fn a_claim_with_entries_at_its_prepare_is_read_first() {
    let fixture = Fixture::new().await;
    let claim = fixture.claim("one").await;
    let driver = &fixture.cluster.names.driver;
    let manager = format!("{driver}-kubelet-plugin");
    let earlier = json!([{"driver": driver, "pool": POOL, "device": "gpu-1", "data": {"number": 9}}]);
    fixture.cluster.apply_status(&claim, &manager, earlier).await;
    let kubelet = Kubelet::of(&fixture.helper).await;
    kubelet.prepare_one(&claim).await.unwrap();
    fixture.cluster.proxy.take_requests();
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["get", "patch"]);
    assert_eq!(fixture.number(&claim, "gpu-1").await, Some(9));
    assert_eq!(fixture.delivered(&claim, numbered(0, 2), 2).await, ["patch"]);
    // Prepared again while nothing has changed: what is known stays.
    kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(fixture.delivered(&claim, numbered(0, 3), 3).await, ["get", "patch"], "the GET is that of the prepare");
    assert_eq!(fixture.number(&claim, "gpu-1").await, Some(9));
}

#[tokio::test]
async fn after_a_restart_the_first_report_of_a_claim_reads_it() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch"]);
    let fixture = fixture.restart().await;
    fixture.cluster.proxy.take_requests();
    assert_eq!(fixture.delivered(&claim, numbered(1, 2), 1).await, ["get", "patch"]);
    assert_eq!(fixture.delivered(&claim, numbered(2, 3), 2).await, ["patch"]);
    for (device, number) in [("gpu-0", 1), ("gpu-1", 2), ("gpu-2", 3)] {
        assert_eq!(fixture.number(&claim, device).await, Some(number), "{device}");
    }
}

/// A report after the unprepare is delivered, but nothing of the claim is kept: nobody would drop it.
#[tokio::test]
async fn an_unprepared_claim_is_no_longer_known() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    Kubelet::of(&fixture.helper).await.unprepare_one(&claim).await.unwrap();
    for number in 1..=2 {
        assert_eq!(fixture.delivered(&claim, numbered(0, number), number.cast_unsigned()).await, ["get", "patch"]);
    }
}

/// Where others keep changing a claim, an apply without a GET would cost one request more, not one less.
#[tokio::test]
async fn a_claim_that_others_change_is_read_until_they_stop() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    let change = async |number: i64| {
        let foreign =
            json!([{"driver": "net.example.com", "pool": POOL, "device": "eth-0", "data": {"number": number}}]);
        fixture.cluster.apply_status(&claim, "net.example.com", foreign).await;
    };
    change(1).await;
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch", "get", "patch"]);
    for number in 2..=4 {
        change(number).await;
        assert_eq!(
            fixture.delivered(&claim, numbered(0, number), number.cast_unsigned()).await,
            ["get", "patch"],
            "{number}"
        );
    }
    assert_eq!(fixture.delivered(&claim, numbered(0, 5), 5).await, ["get", "patch"]);
    assert_eq!(fixture.delivered(&claim, numbered(0, 6), 6).await, ["patch"]);
    assert_eq!(fixture.number(&claim, "eth-0").await, Some(4));
}

/// The apply was done, but the driver does not know.
#[tokio::test]
async fn after_a_lost_response_the_claim_is_read() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    fixture.cluster.proxy.fail("patch", "resourceclaims", Fault::LostResponse, Times::Next(1));
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch", "patch", "get", "patch"]);
    assert_eq!(fixture.number(&claim, "gpu-0").await, Some(1));
    assert_eq!(fixture.entries(&claim).await.len(), 1);
    assert!(fixture.driver.errors.lock().unwrap().is_empty());
}

/// After an outage of the API server each node sends one request for a report, not two.
#[tokio::test]
async fn an_unavailable_server_does_not_make_a_claim_unknown() {
    let fixture = Fixture::new().await;
    let claim = fixture.prepared("one").await;
    fixture.cluster.proxy.fail("patch", "resourceclaims", Fault::Unavailable, Times::Next(1));
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch", "patch"]);
}

/// A server that was restored from a backup is behind what the driver knows of the claim.
#[tokio::test]
async fn after_a_restore_from_a_backup_the_claim_is_read() {
    let Some(cluster) = Cluster::embedded().await else { return };
    let fixture = Fixture::start(cluster, TestDriver::default(), |builder| builder).await;
    let claim = fixture.prepared("one").await;
    let backup = fixture.cluster.snapshot();
    assert_eq!(fixture.delivered(&claim, numbered(0, 1), 1).await, ["patch"]);
    fixture.cluster.restore(&backup);
    assert!(fixture.entries(&claim).await.is_empty());
    assert_eq!(fixture.delivered(&claim, numbered(1, 2), 2).await, ["patch", "get", "patch"]);
    assert_eq!(fixture.number(&claim, "gpu-1").await, Some(2));
}
