//! Tests of what is known of claims: it is limited, and dropped with the claim.

use super::super::known::KnownClaims;
use super::super::merge::resource_version;
use super::*;
use crate::claim::Claim;

/// Returns a claim with gpu-0 and a share of gpu-1, and with entries.
fn claim(number: usize, version: &str, entries: &Value) -> Claim {
    let result = |device: &str| json!({"request": device, "driver": DRIVER, "pool": "node-1", "device": device});
    let mut share = result("gpu-1");
    share["shareID"] = SHARE.into();
    let foreign = json!({"request": "net", "driver": "net.example.com", "pool": "node-1", "device": "eth-0"});
    let object = json!({
        "metadata": {"namespace": "default", "name": format!("claim-{number}"), "uid": format!("uid-{number}"),
                     "resourceVersion": version},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result("gpu-0"), share, foreign]}}, "devices": entries},
    });
    Claim::from_object(DRIVER, serde_json::from_value(object).unwrap()).unwrap()
}

/// Returns a claim as the API server returns it for an apply, with data of this size.
fn applied(version: &str, size: usize) -> Value {
    json!({"metadata": {"resourceVersion": version}, "status": {"devices": [entry("gpu-0", &json!({"data": {"a": "x".repeat(size)}}))]}})
}

fn known() -> KnownClaims {
    KnownClaims::new(|_| true)
}

fn insert_applied(known: &KnownClaims, number: usize, claim: &Value) {
    known.insert_applied(&claim_ref(number).uid, claim, DRIVER, MANAGER, false);
}

/// Returns the version in which a claim is known.
fn version(known: &KnownClaims, number: usize) -> Option<String> {
    known.get(&claim_ref(number).uid).map(|known| resource_version(&known.claim).to_owned())
}

#[test]
fn of_a_prepared_claim_the_devices_of_the_driver_are_known() {
    let known = known();
    known.insert_prepared(&claim(1, "7", &json!([{"driver": "net.example.com", "pool": "node-1", "device": "eth-0"}])));
    let found = known.get(&claim_ref(1).uid).unwrap();
    assert!(!found.is_contended);
    let share = entry("gpu-1", &json!({"shareID": SHARE}));
    assert_eq!(
        found.claim,
        json!({
            "metadata": {"resourceVersion": "7", "managedFields": []},
            "status": {"allocation": {"devices": {"results": [entry("gpu-0", &json!({})), share]}}, "devices": []},
        })
    );
    assert_eq!(version(&known, 2), None);
}

/// Without a version the apply would be unconditional, and version 0 means any.
#[test]
fn a_claim_without_a_version_is_not_known() {
    for unusable in ["", "0"] {
        let known = known();
        known.insert_prepared(&claim(1, "7", &json!([])));
        known.insert_prepared(&claim(1, unusable, &json!([])));
        assert_eq!(version(&known, 1), None, "{unusable:?}");
        insert_applied(&known, 1, &applied("8", 1));
        insert_applied(&known, 1, &applied(unusable, 1));
        assert_eq!(version(&known, 1), None, "{unusable:?}");
    }
}

#[test]
fn a_prepare_of_a_claim_with_entries_keeps_only_what_is_current() {
    let known = known();
    let entries = json!([entry("gpu-0", &json!({}))]);
    known.insert_prepared(&claim(1, "7", &entries));
    assert_eq!(version(&known, 1), None);
    insert_applied(&known, 1, &applied("8", 1));
    known.insert_prepared(&claim(1, "8", &entries));
    assert_eq!(version(&known, 1).as_deref(), Some("8"));
    assert_eq!(known.get(&claim_ref(1).uid).unwrap().claim["status"]["devices"][0]["data"], json!({"a": "x"}));
    known.insert_prepared(&claim(1, "9", &entries));
    assert_eq!(version(&known, 1), None);
}

#[test]
fn a_claim_that_is_not_prepared_is_not_kept() {
    let known = KnownClaims::new(|uid| *uid == claim_ref(1).uid);
    insert_applied(&known, 1, &applied("8", 1));
    insert_applied(&known, 2, &applied("8", 1));
    assert_eq!(version(&known, 1).as_deref(), Some("8"));
    assert_eq!(version(&known, 2), None);
    known.remove(&claim_ref(1).uid);
    assert_eq!(version(&known, 1), None);
}

#[test]
fn a_contended_claim_is_so_until_the_next_change() {
    let known = known();
    let is_contended = || known.get(&claim_ref(1).uid).unwrap().is_contended;
    known.insert_prepared(&claim(1, "7", &json!([])));
    known.mark_contended(&claim_ref(1).uid);
    known.mark_contended(&claim_ref(2).uid);
    assert!(is_contended());
    insert_applied(&known, 1, &applied("8", 1));
    assert!(!is_contended());
}

/// The claims that have not changed for longest are dropped: their next reports read them.
#[test]
fn the_number_of_claims_and_of_bytes_is_limited() {
    let known = known();
    for number in 0..5000 {
        known.insert_prepared(&claim(number, "7", &json!([])));
        // Changed again and again, so it is never the oldest.
        insert_applied(&known, 0, &applied("8", 1));
    }
    let kept = (0..5000).filter(|number| version(&known, *number).is_some()).count();
    assert_eq!(kept, 4096);
    assert!(version(&known, 0).is_some() && version(&known, 1).is_none() && version(&known, 4999).is_some());

    let known = self::known();
    for number in 0..500 {
        insert_applied(&known, number, &applied("8", 60_000));
    }
    let kept = (0..500).filter(|number| version(&known, *number).is_some()).count();
    assert_eq!(kept, 4 * 1024 * 1024 / (60_000 + 200), "{kept}");
    // Dropped claims free their space.
    (0..500).for_each(|number| known.remove(&claim_ref(number).uid));
    insert_applied(&known, 1, &applied("8", 60_000));
    assert!(version(&known, 1).is_some());

    insert_applied(&known, 1, &applied("9", 70_000));
    assert_eq!(version(&known, 1), None, "too large");
}
