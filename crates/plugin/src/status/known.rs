//! What is known of prepared claims, so that the usual report is one PATCH.
//!
//! For each claim the part of it that a [merge](super::merge) uses is kept, as of one resource version: first that of the
//! prepare's own GET, then that of the response to each apply. An apply names this version, and the API server rejects it if
//! anybody has changed the claim since: another driver, another instance of this one, the scheduler, or a user who has
//! replaced the claim. So this is never wrong, only outdated, and then the claim is read.
//!
//! A claim is not known after a restart, nor if it already had entries of this driver when it was prepared: which fields of
//! them are ours is in the managed fields, which a prepare does not decode. It is dropped when it is unprepared.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use drakkar_metadata::name::ClaimUid;
use serde::Serialize;
use serde_json::Value;
use smallvec::SmallVec;

use super::merge::{is_own_manager, resource_version};
use crate::claim::Claim;

/// The maximum number of known claims. A node has a few hundred pods.
const MAX_CLAIMS: usize = 4096;
/// The maximum size of all known claims in bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// The maximum size of one known claim in bytes. An entry may have 10 KiB of data; the usual ones have a few hundred bytes.
const MAX_CLAIM_BYTES: usize = 64 * 1024;
/// The size of a claim with one device and without entries, rounded up.
const USUAL_BYTES: usize = 256;

/// A claim as it was known to be.
#[derive(Debug, PartialEq)]
pub(super) struct KnownClaim {
    /// The part of the claim that a merge uses.
    pub(super) claim: Value,
    /// Whether others have changed the claim since it was known: it is read before the next apply.
    pub(super) is_contended: bool,
}

/// The known claims.
pub(super) struct KnownClaims {
    state: Mutex<State>,
    /// Whether a claim is prepared. Other claims are not kept: nobody would drop them.
    is_prepared: Box<dyn Fn(&ClaimUid) -> bool + Send + Sync>,
}

#[derive(Default)]
struct State {
    claims: HashMap<ClaimUid, StoredClaim>,
    bytes: usize,
    /// The number of the last change.
    last_number: u64,
}

struct StoredClaim {
    /// The part of the claim as JSON, which takes less memory than a tree of values.
    json: Box<[u8]>,
    is_contended: bool,
    /// The number of the last change: claims with small numbers are dropped first.
    number: u64,
}

impl KnownClaims {
    pub(super) fn new(is_prepared: impl Fn(&ClaimUid) -> bool + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), is_prepared: Box::new(is_prepared) }
    }

    /// Keeps a claim that is about to be prepared.
    pub(super) fn insert_prepared(&self, claim: &Claim) {
        let uid = &claim.reference().uid;
        let version = claim.summary().resource_version.as_str();
        if !is_precondition(version) {
            return self.remove(uid);
        }
        if claim.has_reported_devices() {
            let is_current = self.get(uid).is_some_and(|known| resource_version(&known.claim) == version);
            if !is_current {
                self.remove(uid);
            }
            return;
        }
        self.lock().insert(uid, Part::of_unreported(claim, version).json(), false);
    }

    /// Keeps a claim as the API server returned it for an apply, unless it is no longer prepared.
    pub(super) fn insert_applied(
        &self,
        uid: &ClaimUid,
        claim: &Value,
        driver: &str,
        manager: &str,
        is_contended: bool,
    ) {
        let part = Part::of_applied(claim, driver, manager);
        if !is_precondition(part.metadata.resource_version) {
            return self.remove(uid);
        }
        let json = part.json();
        self.lock().insert(uid, json, is_contended);
        // Checked afterwards: an unprepare releases the claim before it removes it here, so one of the two removes it.
        if !(self.is_prepared)(uid) {
            self.remove(uid);
        }
    }

    /// Returns a claim, if it is known.
    pub(super) fn get(&self, uid: &ClaimUid) -> Option<KnownClaim> {
        let state = self.lock();
        let stored = state.claims.get(uid)?;
        let claim = serde_json::from_slice(&stored.json).ok()?;
        Some(KnownClaim { claim, is_contended: stored.is_contended })
    }

    /// Records that others have changed a claim.
    pub(super) fn mark_contended(&self, uid: &ClaimUid) {
        if let Some(stored) = self.lock().claims.get_mut(uid) {
            stored.is_contended = true;
        }
    }

    /// Drops a claim.
    pub(super) fn remove(&self, uid: &ClaimUid) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KnownClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownClaims").field("claims", &self.lock().claims.len()).finish_non_exhaustive()
    }
}

impl State {
    /// Replaces a claim, and drops those that have not changed for longest if there are too many.
    fn insert(&mut self, uid: &ClaimUid, json: Box<[u8]>, is_contended: bool) {
        self.remove(uid);
        if json.len() > MAX_CLAIM_BYTES {
            return;
        }
        while self.claims.len() >= MAX_CLAIMS || self.bytes + json.len() > MAX_BYTES {
            let oldest = self.claims.iter().min_by_key(|(_, stored)| stored.number).map(|(uid, _)| uid.clone());
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
        self.last_number += 1;
        self.bytes += json.len();
        let stored = StoredClaim { json, is_contended, number: self.last_number };
        self.claims.insert(uid.clone(), stored);
    }

    fn remove(&mut self, uid: &ClaimUid) {
        if let Some(stored) = self.claims.remove(uid) {
            self.bytes -= stored.json.len();
        }
    }
}

/// Whether an apply with this resource version fails if the claim has another one. Without a version it would not.
fn is_precondition(resource_version: &str) -> bool {
    !matches!(resource_version, "" | "0")
}

/// The part of a claim that a merge uses: what concerns this driver. Serializes in the form of a claim.
#[derive(Serialize)]
struct Part<'a> {
    metadata: Metadata<'a>,
    status: Status<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    resource_version: &'a str,
    managed_fields: Vec<&'a Value>,
}

#[derive(Serialize)]
struct Status<'a> {
    allocation: Allocation<'a>,
    devices: Vec<&'a Value>,
}

#[derive(Serialize)]
struct Allocation<'a> {
    devices: Devices<'a>,
}

#[derive(Serialize)]
struct Devices<'a> {
    results: SmallVec<[AllocatedDevice<'a>; 1]>,
}

#[derive(Serialize)]
struct AllocatedDevice<'a> {
    driver: &'a str,
    pool: &'a str,
    device: &'a str,
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    share_id: Option<&'a str>,
}

impl<'a> Part<'a> {
    /// Returns the part of a claim without entries of this driver.
    fn of_unreported(claim: &'a Claim, resource_version: &'a str) -> Self {
        let results = claim.results().map(|result| AllocatedDevice {
            driver: &result.driver,
            pool: &result.pool,
            device: &result.device,
            share_id: result.share_id.as_deref(),
        });
        Self::new(resource_version, Vec::new(), results.collect(), Vec::new())
    }

    /// Returns the part of a claim that the API server returned.
    fn of_applied(claim: &'a Value, driver: &str, manager: &str) -> Self {
        let list = |path: &str| claim.pointer(path).and_then(Value::as_array).into_iter().flatten();
        let is_of_driver = |value: &&Value| value["driver"] == driver;
        let managed_fields = list("/metadata/managedFields").filter(|entry| is_own_manager(entry, manager));
        let results = list("/status/allocation/devices/results").filter(is_of_driver).map(|result| {
            let text = |name: &str| result.get(name).and_then(Value::as_str);
            AllocatedDevice {
                driver: text("driver").unwrap_or_default(),
                pool: text("pool").unwrap_or_default(),
                device: text("device").unwrap_or_default(),
                share_id: text("shareID"),
            }
        });
        let devices = list("/status/devices").filter(is_of_driver);
        Self::new(resource_version(claim), managed_fields.collect(), results.collect(), devices.collect())
    }

    fn new(
        resource_version: &'a str,
        managed_fields: Vec<&'a Value>,
        results: SmallVec<[AllocatedDevice<'a>; 1]>,
        devices: Vec<&'a Value>,
    ) -> Self {
        Self {
            metadata: Metadata { resource_version, managed_fields },
            status: Status { allocation: Allocation { devices: Devices { results } }, devices },
        }
    }

    /// Returns the part as JSON.
    fn json(&self) -> Box<[u8]> {
        let mut json: SmallVec<[u8; USUAL_BYTES]> = SmallVec::new();
        // Texts and values have no keys or numbers that JSON cannot express.
        serde_json::to_writer(&mut json, self).ok().map(|()| Box::from(&json[..])).unwrap_or_default()
    }
}
