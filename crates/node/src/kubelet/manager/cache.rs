//! The kubelet's cache of claims: the pods that use them, their devices, and whether they are prepared. All but the last is
//! kept in a state file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::kubelet::checkpoint::{CheckpointError, StateFile};
use crate::kubelet::claim::{ClaimId, Device};

/// A claim that pods of a node use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedClaim {
    /// The claim.
    pub claim: ClaimId,
    /// The UIDs of the pods that use it.
    pub pods: BTreeSet<String>,
    /// The drivers that it has devices of, and the devices that each has prepared.
    pub drivers: BTreeMap<String, Vec<Device>>,
    /// Whether this kubelet has prepared it. A restarted kubelet does not rely on its predecessor.
    #[serde(skip)]
    pub prepared: bool,
    /// Whether it is being unprepared.
    #[serde(skip)]
    pub unpreparing: bool,
}

/// The namespace and name of a claim.
pub(super) type Key = (String, String);

pub(super) fn key(claim: &ClaimId) -> Key {
    (claim.namespace.clone(), claim.name.clone())
}

/// All claims, with their state file.
#[derive(Debug)]
pub(super) struct Cache {
    claims: Mutex<HashMap<Key, CachedClaim>>,
    file: StateFile,
}

/// The locked claims.
pub(super) struct Locked<'a> {
    pub(super) claims: MutexGuard<'a, HashMap<Key, CachedClaim>>,
    file: &'a StateFile,
}

impl Cache {
    pub(super) fn restore(file: StateFile) -> Result<Self, CheckpointError> {
        let claims: Vec<CachedClaim> = file.read()?.unwrap_or_default();
        let claims = claims.into_iter().map(|entry| (key(&entry.claim), entry)).collect();
        Ok(Self { claims: Mutex::new(claims), file })
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { claims: self.claims.lock().unwrap_or_else(PoisonError::into_inner), file: &self.file }
    }
}

impl Locked<'_> {
    /// Writes the file.
    pub(super) fn save(&self) -> Result<(), CheckpointError> {
        let mut claims: Vec<&CachedClaim> = self.claims.values().collect();
        claims.sort_by(|a, b| a.claim.cmp(&b.claim));
        self.file.write(&claims)
    }
}
