//! The ledger by itself.

use serde_json::json;

use super::*;

const DRIVER: &str = "gpu.example.com";

/// A claim that was allocated devices, as `device` or `device/share`.
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

fn ledger() -> Arc<DeviceLedger> {
    Arc::default()
}

fn prepare(ledger: &Arc<DeviceLedger>, claim: &Claim, files: Files) {
    let reservation = ledger.reserve(claim, true).unwrap();
    reservation.driver_is_called();
    reservation.prepared(files);
}

/// The holder that keeps a claim from its devices.
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
    assert!(ledger.lock().is_empty(), "something is left");
}

#[test]
fn a_reservation_that_is_dropped_after_the_driver_was_called_holds_all() {
    let ledger = ledger();
    let reservation = ledger.reserve(&claim("a", &["gpu-0"]), true).unwrap();
    reservation.driver_is_called();
    drop(reservation);
    assert!(!is_free(&ledger, "gpu-0"));
    assert_eq!(ledger.counts(), ClaimCounts { prepared: 0, held: 1 });
    ledger.release(&claim("a", &[]).reference().uid);
    assert!(ledger.lock().is_empty(), "something is left");
}

#[test]
fn a_dropped_reservation_restores_exactly_what_was_there_before() {
    for files in [Files::None, Files::Written] {
        let ledger = ledger();
        prepare(&ledger, &claim("a", &["gpu-0"]), files);
        let before = holder_for(&ledger, &claim("b", &["gpu-0"]));
        drop(ledger.reserve(&claim("a", &["gpu-0", "gpu-1"]), true).unwrap());
        assert!(ledger.still_holds(&before), "it is another holding");
        assert!(is_free(&ledger, "gpu-1") && !is_free(&ledger, "gpu-0"));
        assert_eq!(ledger.has_files(&before.claim().uid), files == Files::Written);
        assert_eq!(holder_for(&ledger, &claim("b", &["gpu-0"])).is_on_disk(), files == Files::Written);
        assert_eq!(ledger.counts(), ClaimCounts { prepared: 1, held: 1 });
    }
}

#[test]
fn a_prepare_again_that_fails_forgets_nothing() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0"]), Files::Written);
    let reservation = ledger.reserve(&claim("a", &["gpu-1"]), true).unwrap();
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "while it goes on");
    reservation.driver_is_called();
    drop(reservation);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "after it has failed");
    assert_eq!(ledger.counts(), ClaimCounts { prepared: 1, held: 1 });
    assert!(ledger.has_files(&claim("a", &[]).reference().uid));
    assert!(!holder_for(&ledger, &claim("b", &["gpu-1"])).is_on_disk(), "the disk does not tell of a failed prepare");

    prepare(&ledger, &claim("a", &["gpu-1"]), Files::Written);
    assert!(is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "after it has succeeded");
}

#[test]
fn who_waits_is_told_of_every_device_that_becomes_free() {
    let ledger = ledger();
    let has_changed = |releases: &mut watch::Receiver<()>| {
        let has_changed = releases.has_changed().unwrap();
        releases.mark_unchanged();
        has_changed
    };
    let mut releases = ledger.releases();
    prepare(&ledger, &claim("a", &["gpu-0", "gpu-1"]), Files::None);
    assert!(!has_changed(&mut releases));
    prepare(&ledger, &claim("a", &["gpu-0"]), Files::None);
    assert!(has_changed(&mut releases), "it has fewer devices");
    drop(ledger.reserve(&claim("b", &["gpu-1"]), true).unwrap());
    assert!(has_changed(&mut releases), "it was undone");
    ledger.release(&claim("a", &[]).reference().uid);
    assert!(has_changed(&mut releases), "it was unprepared");
}

#[test]
fn a_claim_is_outdated_when_something_that_it_has_is_not_allocated_to_it() {
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
        prepare(&ledger, &claim("a", held), Files::None);
        assert_eq!(ledger.is_outdated(&claim("a", allocated)), is_outdated, "{held:?} and {allocated:?}");
        assert!(!ledger.is_outdated(&claim("b", allocated)), "another claim");
    }
}

#[test]
fn a_holder_is_another_one_after_the_next_prepare() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0"]), Files::Written);
    let holder = holder_for(&ledger, &claim("b", &["gpu-0"]));
    assert!(ledger.still_holds(&holder));
    prepare(&ledger, &claim("a", &["gpu-0"]), Files::Written);
    assert!(!ledger.still_holds(&holder));
    ledger.release_holder(&holder);
    assert!(!is_free(&ledger, "gpu-0"), "what was seen of an earlier holding frees no later one");
}

#[test]
fn all_holders_that_are_in_the_way_are_named_once() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0", "gpu-1"]), Files::None);
    prepare(&ledger, &claim("b", &["gpu-2"]), Files::None);
    let conflict = ledger.reserve(&claim("c", &["gpu-0", "gpu-1", "gpu-2", "gpu-3"]), true).unwrap_err();
    let names: Vec<_> = conflict.holders().map(|holder| holder.claim().name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(is_free(&ledger, "gpu-3"), "a refused claim gets nothing");
}

#[test]
fn the_shares_of_a_record_that_tells_none_are_learned_from_the_allocation() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0/one"]);
    ledger.restore(a.reference(), &[used("gpu-0")]);
    let holder = holder_for(&ledger, &claim("b", &["gpu-0/two"]));
    assert!(ledger.correct(&holder, &a));
    assert!(ledger.still_holds(&holder), "it is the same holding");
    assert!(!ledger.correct(&holder, &a), "it is no news any more");
    assert!(is_free(&ledger, "gpu-0/two") && !is_free(&ledger, "gpu-0/one") && !is_free(&ledger, "gpu-0"));
}

#[test]
fn a_device_that_is_not_allocated_any_more_is_not_forgotten_when_shares_are_learned() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0", "gpu-1"]), Files::None);
    let holder = holder_for(&ledger, &claim("b", &["gpu-1"]));
    assert!(!ledger.correct(&holder, &claim("a", &["gpu-1", "gpu-2"])));
    assert!(!is_free(&ledger, "gpu-0") && is_free(&ledger, "gpu-2"));
}

#[test]
fn a_device_that_a_claim_only_looks_at_is_nobodys() {
    let ledger = ledger();
    let result = json!({"request": "gpu", "driver": DRIVER, "pool": "p", "device": "gpu-0", "adminAccess": true});
    let a = claim_of("a", "uid-a", &[result]);
    ledger.restore(a.reference(), &[used("gpu-0")]);
    let holder = holder_for(&ledger, &claim("b", &["gpu-0"]));
    assert!(ledger.correct(&holder, &a));
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
        prepare(&ledger, &claim_of("a", "uid-a", &[result("gpu-0", first), result("gpu-1", second)]), Files::None);
        assert_eq!(ledger.abandoned().len(), usize::from(is_abandoned), "{first:?} and {second:?}");
    }
}

#[test]
fn records_of_other_instances_are_learned_and_those_of_locked_claims_believed() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0"]);
    let record = |claim: &Claim, device: &str| RecoveredClaim {
        claim: claim.reference().clone(),
        uses: vec![used(device)],
        is_of_this_boot: true,
    };
    ledger.learn(&[record(&a, "gpu-0")], &[]);
    assert!(!is_free(&ledger, "gpu-0"));
    ledger.learn(&[record(&a, "gpu-1")], &[]);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "somebody may be working on the claim");
    ledger.learn(&[record(&a, "gpu-1")], &[a.reference()]);
    assert!(is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"));
}

/// A prepare failed here, the claim was allocated anew, and another instance has prepared it.
#[test]
fn a_claim_whose_prepare_failed_here_has_what_another_instance_prepared_it_with() {
    let ledger = ledger();
    let a = claim("a", &["gpu-0"]);
    ledger.reserve(&a, true).unwrap().driver_is_called();
    let record = RecoveredClaim { claim: a.reference().clone(), uses: vec![used("gpu-1")], is_of_this_boot: true };
    ledger.learn(std::slice::from_ref(&record), &[]);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"));
    ledger.learn(&[record], &[a.reference()]);
    assert!(is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"), "the claim as it is prepared now");
}

/// The record is of before the prepare that failed: it does not know the device that was added.
#[test]
fn a_record_that_is_older_than_a_prepare_that_failed_takes_nothing_away() {
    let ledger = ledger();
    prepare(&ledger, &claim("a", &["gpu-0"]), Files::Written);
    let larger = claim("a", &["gpu-0", "gpu-1"]);
    ledger.reserve(&larger, true).unwrap().driver_is_called();
    let record = RecoveredClaim { claim: larger.reference().clone(), uses: vec![used("gpu-0")], is_of_this_boot: true };
    ledger.learn(&[record], &[larger.reference()]);
    assert!(!is_free(&ledger, "gpu-0") && !is_free(&ledger, "gpu-1"));
}

#[test]
fn a_record_that_another_claim_of_the_name_has_replaced_does_not_say_that_the_first_is_unprepared() {
    let ledger = ledger();
    let older = claim("a", &["gpu-0"]);
    ledger.restore(older.reference(), &[used("gpu-0")]);
    let newer = claim_of("a", "uid-of-another", &[]);
    let found = RecoveredClaim { claim: newer.reference().clone(), uses: vec![used("gpu-1")], is_of_this_boot: true };
    ledger.learn(&[found], &[]);
    let holder = holder_for(&ledger, &claim("b", &["gpu-0"]));
    assert!(!holder.is_on_disk());
    ledger.release_holder(&holder);
    assert!(!is_free(&ledger, "gpu-0"));
}
