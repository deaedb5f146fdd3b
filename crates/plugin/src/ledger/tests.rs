//! Unit tests of the ledger.

use serde_json::json;

use super::*;

const DRIVER: &str = "gpu.example.com";

/// Returns a claim with allocated devices, each given as `device` or `device/share`.
fn claim(name: &str, devices: &[&str]) -> Claim {
    let results = devices.iter().map(|device| {
        let (device, share) = device.split_once('/').map_or((*device, None), |(device, share)| (device, Some(share)));
        json!({"request": "gpu", "driver": DRIVER, "pool": "p", "device": device, "shareID": share})
    });
    claim_of(name, &format!("uid-{name}"), &results.collect::<Vec<_>>())
}

fn claim_of(name: &str, uid: &str, results: &[serde_json::Value]) -> Claim {
    let object = json!({
        "metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    });
    Claim::from_object(DRIVER, serde_json::from_value(object).unwrap()).unwrap()
}

fn used(device: &str) -> DeviceUse {
    let (device, share) = device.split_once('/').map_or((device, None), |(device, share)| (device, Some(share)));
    DeviceUse { pool: "p".into(), device: device.into(), share_id: share.map(str::to_owned) }
}

/// Returns a claim that was prepared with metadata and this device.
fn record(claim: &Claim, device: &str) -> RecoveredClaim {
    RecoveredClaim::with_metadata(claim.reference(), &[used(device)])
}

fn ledger() -> Arc<DeviceLedger> {
    Arc::default()
}

fn prepare(ledger: &Arc<DeviceLedger>, claim: &Claim, files: ClaimFiles) {
    let reservation = ledger.reserve(claim, true).unwrap();
    reservation.mark_driver_called();
    reservation.commit(files);
}

/// Returns the first holder that a claim conflicts with.
fn holder_for(ledger: &Arc<DeviceLedger>, claim: &Claim) -> Holder {
    ledger.reserve(claim, true).unwrap_err().holders().next().unwrap().clone()
}

fn is_free(ledger: &Arc<DeviceLedger>, device: &str) -> bool {
    ledger.reserve(&claim("probe", &[device]), true).is_ok()
}

#[test]
fn a_reservation_that_is_dropped_before_the_driver_is_called_holds_nothing() {
    let ledger = ledger();
    drop(ledger.reserve(&claim("a", &["gpu-0"]), true).unwrap());
    assert!(is_free(&ledger, "gpu-0"));
    assert!(ledger.lock().is_empty(), "entries are left over");
}

#[test]
fn a_reservation_that_is_dropped_after_the_driver_was_called_keeps_its_devices() {
    let ledger = ledger();
    let reservation = ledger.reserve(&claim("a", &["gpu-0"]), true).unwrap();
    reservation.mark_driver_called();
    drop(reservation);
    assert!(!is_free(&ledger, "gpu-0"));
    assert_eq!(ledger.counts(), ClaimCounts { prepared: 0, held: 1 });
    ledger.release(&claim("a", &[]).reference().uid);
    assert!(ledger.lock().is_empty(), "entries are left over");
}

#[test]
fn a_dropped_reservation_restores_the_previous_entry() {
    for files in [ClaimFiles::None, ClaimFiles::Record, ClaimFiles::Metadata] {
        let ledger = ledger();
        prepare(&ledger, &claim("a", &["gpu-0"]), files);
        let before = holder_for(&ledger, &claim("b", &["gpu-0"]));
        drop(ledger.reserve(&claim("a", &["gpu-0", "gpu-1"]), true).unwrap());
        assert!(ledger.still_holds(&before), "the entry is another one");
        assert!(is_free(&ledger, "gpu-1") && !is_free(&ledger, "gpu-0"));
        assert_eq!(ledger.has_metadata(&before.claim().uid), files == ClaimFiles::Metadata);
        assert_eq!(holder_for(&ledger, &claim("b", &["gpu-0"])).is_on_disk(), files != ClaimFiles::None);
        assert_eq!(ledger.has_record(&before.claim().uid), files != ClaimFiles::None);
        assert_eq!(ledger.counts(), ClaimCounts { prepared: 1, held: 1 });
    }
}

#[test]
fn a_failed_repeated_prepare_keeps_old_and_new_devices() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0"]), ClaimFiles::Metadata);
    let reservation = ledger.reserve(&claim("a", &["gpu-1"]), true).unwrap();
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "while it runs");
    reservation.mark_driver_called();
    drop(reservation);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "after it has failed");
    assert_eq!(ledger.counts(), ClaimCounts { prepared: 1, held: 1 });
    assert!(ledger.has_metadata(&claim("a", &[]).reference().uid));
    assert!(!holder_for(&ledger, &claim("b", &["gpu-1"])).is_on_disk(), "a failed prepare has no record");

    prepare(&ledger, &claim("a", &["gpu-1"]), ClaimFiles::Metadata);
    assert!(is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "after it has succeeded");
}

#[test]
fn every_release_notifies_the_subscribers() {
    let ledger = ledger();
    let has_changed = |releases: &mut watch::Receiver<()>| {
        let has_changed = releases.has_changed().unwrap();
        releases.mark_unchanged();
        has_changed
    };
    let mut releases = ledger.releases();
    prepare(&ledger, &claim("a", &["gpu-0", "gpu-1"]), ClaimFiles::None);
    assert!(!has_changed(&mut releases));
    prepare(&ledger, &claim("a", &["gpu-0"]), ClaimFiles::None);
    assert!(has_changed(&mut releases), "it has fewer devices");
    drop(ledger.reserve(&claim("b", &["gpu-1"]), true).unwrap());
    assert!(has_changed(&mut releases), "it was undone");
    ledger.release(&claim("a", &[]).reference().uid);
    assert!(has_changed(&mut releases), "it was unprepared");
}

#[test]
fn a_claim_is_outdated_when_a_device_that_it_holds_is_not_allocated_to_it() {
    let cases: [(&[&str], &[&str], bool); 7] = [
        (&["gpu-0"], &["gpu-0"], false),
        (&["gpu-0"], &["gpu-1"], true),
        (&["gpu-0"], &["gpu-0", "gpu-1"], false),
        (&["gpu-0", "gpu-1"], &["gpu-0"], true),
        (&["gpu-0/a"], &["gpu-0/b"], true),
        (&["gpu-0"], &["gpu-0/b"], false),
        (&["gpu-0/a"], &["gpu-0"], false),
    ];
    for (held, allocated, is_outdated) in cases {
        let ledger = ledger();
        prepare(&ledger, &claim("a", held), ClaimFiles::None);
        assert_eq!(ledger.is_outdated(&claim("a", allocated)), is_outdated, "{held:?} and {allocated:?}");
        assert!(!ledger.is_outdated(&claim("b", allocated)), "another claim");
    }
}

#[test]
fn a_holder_is_stale_after_the_next_prepare_of_its_claim() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0"]), ClaimFiles::Metadata);
    let holder = holder_for(&ledger, &claim("b", &["gpu-0"]));
    assert!(ledger.still_holds(&holder));
    prepare(&ledger, &claim("a", &["gpu-0"]), ClaimFiles::Metadata);
    assert!(!ledger.still_holds(&holder));
    ledger.release_holder(&holder);
    assert!(!is_free(&ledger, "gpu-0"), "a stale holder must not release the devices of a later prepare");
}

#[test]
fn a_conflict_names_every_holder_once() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0", "gpu-1"]), ClaimFiles::None);
    prepare(&ledger, &claim("b", &["gpu-2"]), ClaimFiles::None);
    let conflict = ledger.reserve(&claim("c", &["gpu-0", "gpu-1", "gpu-2", "gpu-3"]), true).unwrap_err();
    let names: Vec<_> = conflict.holders().map(|holder| holder.claim().name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(is_free(&ledger, "gpu-3"), "a refused claim gets nothing");
}

#[test]
fn shares_that_a_record_does_not_have_are_filled_in_from_the_allocation() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0/one"]);
    ledger.restore(&record(&a, "gpu-0"));
    let holder = holder_for(&ledger, &claim("b", &["gpu-0/two"]));
    assert!(ledger.correct_shares(&holder, &a));
    assert!(ledger.still_holds(&holder), "the entry is another one");
    assert!(!ledger.correct_shares(&holder, &a), "the second correction changes nothing");
    assert!(is_free(&ledger, "gpu-0/two") && !is_free(&ledger, "gpu-0/one") && !is_free(&ledger, "gpu-0"));
}

#[test]
fn correcting_shares_keeps_a_device_that_is_no_longer_allocated() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0", "gpu-1"]), ClaimFiles::None);
    let holder = holder_for(&ledger, &claim("b", &["gpu-1"]));
    assert!(!ledger.correct_shares(&holder, &claim("a", &["gpu-1", "gpu-2"])));
    assert!(!is_free(&ledger, "gpu-0") && is_free(&ledger, "gpu-2"));
}

#[test]
fn a_device_with_admin_access_has_no_holder() {
    let ledger = ledger();
    let result = json!({"request": "gpu", "driver": DRIVER, "pool": "p", "device": "gpu-0", "adminAccess": true});
    let a = claim_of("a", "uid-a", &[result]);
    ledger.restore(&record(&a, "gpu-0"));
    let holder = holder_for(&ledger, &claim("b", &["gpu-0"]));
    assert!(ledger.correct_shares(&holder, &a));
    assert!(is_free(&ledger, "gpu-0"));
}

#[test]
fn a_claim_is_abandoned_when_the_kubelet_skips_all_of_its_devices() {
    let result = |device: &str, skipped: &[&str]| json!({"request": "gpu", "driver": DRIVER, "pool": "p", "device": device, "skipNodeOperations": skipped});
    let all: [(&[&str], &[&str], bool); 5] = [
        (&["*"], &["*"], true),
        (&["NodeUnprepareResources"], &["NodePrepareResources", "NodeUnprepareResources"], true),
        (&["*"], &[], false),
        (&[], &[], false),
        (&["NodePrepareResources"], &["*"], false),
    ];
    for (first, second, is_abandoned) in all {
        let ledger = ledger();
        prepare(&ledger, &claim_of("a", "uid-a", &[result("gpu-0", first), result("gpu-1", second)]), ClaimFiles::None);
        assert_eq!(ledger.abandoned().len(), usize::from(is_abandoned), "{first:?} and {second:?}");
    }
}

#[test]
fn a_refresh_adds_records_of_other_instances_and_trusts_those_of_locked_claims() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0"]);
    ledger.refresh(&[record(&a, "gpu-0")], &[]);
    assert!(!is_free(&ledger, "gpu-0"));
    ledger.refresh(&[record(&a, "gpu-1")], &[]);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "another instance may be working on the claim");
    ledger.refresh(&[record(&a, "gpu-1")], &[a.reference()]);
    assert!(is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"));
}

/// A prepare failed in this instance, the claim was allocated again, and another instance has prepared it.
#[test]
fn a_claim_whose_prepare_failed_here_holds_the_devices_that_another_instance_prepared() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0"]);
    ledger.reserve(&a, true).unwrap().mark_driver_called();
    let record = record(&a, "gpu-1");
    ledger.refresh(std::slice::from_ref(&record), &[]);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"));
    ledger.refresh(&[record], &[a.reference()]);
    assert!(is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "only the devices of the current prepare");
}

/// The record is older than the failed prepare and does not have the device that was added.
#[test]
fn a_record_that_is_older_than_a_failed_prepare_releases_nothing() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0"]), ClaimFiles::Metadata);
    let larger = claim("a", &["gpu-0", "gpu-1"]);
    ledger.reserve(&larger, true).unwrap().mark_driver_called();
    let record = record(&larger, "gpu-0");
    ledger.refresh(&[record], &[larger.reference()]);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"));
}

#[test]
fn a_record_replaced_by_another_claim_of_the_same_name_does_not_mean_unprepared() {
    let ledger = ledger();
    let older = claim("a", &["gpu-0"]);
    ledger.restore(&record(&older, "gpu-0"));
    let newer = claim_of("a", "uid-of-another", &[]);
    let found = record(&newer, "gpu-1");
    ledger.refresh(&[found], &[]);
    let holder = holder_for(&ledger, &claim("b", &["gpu-0"]));
    assert!(!holder.is_on_disk());
    ledger.release_holder(&holder);
    assert!(!is_free(&ledger, "gpu-0"));
}

/// The flag for metadata was off at the first prepare, and the devices had edits.
#[test]
fn a_claim_with_a_record_alone_has_no_metadata_until_a_prepare_writes_it() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0"]);
    ledger.restore(&RecoveredClaim { has_metadata: false, ..record(&a, "gpu-0") });
    assert!(ledger.has_record(&a.reference().uid) && !ledger.has_metadata(&a.reference().uid));
    prepare(&ledger, &a, ClaimFiles::Metadata);
    assert!(ledger.has_metadata(&a.reference().uid));
    prepare(&ledger, &a, ClaimFiles::Record);
    assert!(ledger.has_metadata(&a.reference().uid), "files that were written are there until the unprepare");
}

/// What the page of a driver says of claims.
#[test]
fn held_claims_are_listed_with_their_pods_and_times_the_last_first() {
    let ledger = ledger();
    let start = SystemTime::now();
    ledger.restore(&record(&claim("recovered", &["gpu-9"]), "gpu-9"));
    let object = json!({
        "metadata": {"namespace": "default", "name": "train", "uid": "uid-train"}, "spec": {},
        "status": {
            "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "p", "device": "gpu-0"}]}},
            "reservedFor": (0..6).map(|index| json!({"resource": "pods", "name": format!("pod-{index}"), "uid": "u"}))
                .chain([json!({"apiGroup": "example.com", "resource": "workers", "name": "other", "uid": "u"})])
                .collect::<Vec<_>>(),
        },
    });
    let train = Claim::from_object(DRIVER, serde_json::from_value(object).unwrap()).unwrap();
    prepare(&ledger, &train, ClaimFiles::None);
    let running = ledger.reserve(&claim("running", &["gpu-1"]), true).unwrap();
    running.mark_driver_called();

    let (held, total) = ledger.held_claims(10);
    assert_eq!(total, 3);
    let short: Vec<_> = held.iter().map(|held| (held.claim.name.as_str(), held.state, held.devices.to_vec())).collect();
    let expected = [
        ("running", HeldState::Unfinished, vec![used("gpu-1")]),
        ("train", HeldState::Prepared, vec![used("gpu-0")]),
        ("recovered", HeldState::Prepared, vec![used("gpu-9")]),
    ];
    assert_eq!(short, expected);
    let pods = ["pod-0", "pod-1", "pod-2", "pod-3"].map(str::to_owned);
    assert_eq!(held[1].pods, Pods { names: pods.into(), more: 2 });
    let since = held[1].since.unwrap();
    assert!(since >= start);
    assert_eq!(held[2].since, None, "another process prepared it");

    // A kubelet that restarts prepares again: the claim is prepared since the first time.
    prepare(&ledger, &train, ClaimFiles::None);
    prepare(&ledger, &claim("recovered", &["gpu-9"]), ClaimFiles::None);
    let (held, total) = ledger.held_claims(2);
    let short: Vec<_> = held.iter().map(|held| (held.claim.name.as_str(), held.since)).collect();
    assert_eq!((short, total), (vec![("recovered", None), ("train", Some(since))], 3));
}
