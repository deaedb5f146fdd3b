//! Who has which device: the last line of defence against one device in two claims.
//!
//! A scheduler gives a device to one claim at a time. But a claim whose pod was removed by force is free for others
//! before this node has unprepared it, so a prepare is refused here while another claim still has one of its devices.
//! Devices with admin access are not counted, and a device that may be shared has one holder for each share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_metadata::name::ClaimUid;

use crate::claim::{Claim, ClaimRef};
use crate::store::{DeviceUse, RecoveredClaim};

/// A device that another claim still has.
#[derive(Debug, thiserror::Error)]
#[error(
    "device {pool}/{device} is still prepared for claim {holder}, which the kubelet unprepares when its pods are gone; \
     claim {claim} can have it after that"
)]
pub(crate) struct Conflict {
    pool: String,
    device: String,
    holder: Box<ClaimRef>,
    claim: Box<ClaimRef>,
}

impl Conflict {
    /// The claim that has the device.
    pub(crate) fn holder(&self) -> &ClaimRef {
        &self.holder
    }
}

/// The prepared claims, and the devices that each has.
#[derive(Debug, Default)]
pub(crate) struct Holders(Mutex<Holdings>);

#[derive(Debug, Default)]
struct Holdings {
    claims: HashMap<ClaimUid, Holding>,
    /// The claims that have a device, by pool and device; nearly always one.
    devices: HashMap<(Box<str>, Box<str>), Vec<ClaimUid>>,
}

#[derive(Debug)]
struct Holding {
    claim: ClaimRef,
    uses: Box<[DeviceUse]>,
    /// Whether there are files of this claim.
    has_files: bool,
}

/// Devices that a claim is about to have. Let go of again unless it is [kept](Reservation::keep).
#[derive(Debug)]
pub(crate) struct Reservation {
    holders: Arc<Holders>,
    claim: ClaimRef,
    /// Whether the claim was there before, and stays whatever becomes of this prepare.
    was_there: bool,
    is_kept: bool,
}

/// What of a device a claim with these results uses.
pub(crate) fn uses(claim: &Claim) -> Vec<DeviceUse> {
    let mut uses: Vec<DeviceUse> = Vec::new();
    for result in claim.results().filter(|result| result.admin_access != Some(true)) {
        let (pool, device, share_id) = (result.pool.clone(), result.device.clone(), result.share_id.clone());
        let one = DeviceUse { pool, device, share_id };
        if !uses.contains(&one) {
            uses.push(one);
        }
    }
    uses
}

impl Holders {
    /// Notes that a claim is about to have these devices, unless another has one of them.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        claim: &ClaimRef,
        uses: &[DeviceUse],
        is_guarded: bool,
    ) -> Result<Reservation, Conflict> {
        let mut holdings = self.lock();
        if is_guarded && let Some((one, holder)) = uses.iter().find_map(|one| Some((one, holdings.other(claim, one)?)))
        {
            return Err(Conflict {
                pool: one.pool.clone(),
                device: one.device.clone(),
                holder: Box::new(holder.clone()),
                claim: Box::new(claim.clone()),
            });
        }
        let was_there = holdings.claims.contains_key(&claim.uid);
        let has_files = holdings.claims.get(&claim.uid).is_some_and(|holding| holding.has_files);
        holdings.insert(claim, uses, has_files);
        Ok(Reservation { holders: self.clone(), claim: claim.clone(), was_there, is_kept: false })
    }

    /// Notes a claim that was prepared by an earlier process.
    pub(crate) fn restore(&self, claim: &ClaimRef, uses: &[DeviceUse]) {
        self.lock().insert(claim, uses, true);
    }

    /// Notes which claims have files, whoever wrote them.
    pub(crate) fn learn(&self, found: &[RecoveredClaim]) {
        let mut holdings = self.lock();
        let on_disk: HashSet<&ClaimUid> = found.iter().map(|found| &found.claim.uid).collect();
        let gone = holdings.claims.iter().filter(|(uid, holding)| holding.has_files && !on_disk.contains(uid));
        for uid in gone.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            holdings.remove(&uid);
        }
        for RecoveredClaim { claim, uses, .. } in found {
            if !holdings.claims.contains_key(&claim.uid) {
                holdings.insert(claim, uses, true);
            }
        }
    }

    /// Notes what a claim that is prepared really uses.
    pub(crate) fn correct(&self, claim: &ClaimRef, uses: &[DeviceUse]) {
        let mut holdings = self.lock();
        if let Some(holding) = holdings.claims.get(&claim.uid) {
            let has_files = holding.has_files;
            holdings.insert(claim, uses, has_files);
        }
    }

    /// Notes that a claim has nothing any more.
    pub(crate) fn release(&self, uid: &ClaimUid) {
        self.lock().remove(uid);
    }

    /// Whether the claim has files of ours.
    pub(crate) fn has_files(&self, uid: &ClaimUid) -> bool {
        self.lock().claims.get(uid).is_some_and(|holding| holding.has_files)
    }

    /// How many claims are prepared.
    pub(crate) fn len(&self) -> usize {
        self.lock().claims.len()
    }

    fn lock(&self) -> MutexGuard<'_, Holdings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holdings {
    /// Another claim that has what this one wants to use.
    fn other(&self, claim: &ClaimRef, wanted: &DeviceUse) -> Option<&ClaimRef> {
        let key = (wanted.pool.as_str().into(), wanted.device.as_str().into());
        let others = self.devices.get(&key)?.iter().filter(|uid| **uid != claim.uid);
        others.filter_map(|uid| self.claims.get(uid)).find(|other| other.conflicts(wanted)).map(|other| &other.claim)
    }

    fn insert(&mut self, claim: &ClaimRef, uses: &[DeviceUse], has_files: bool) {
        self.remove(&claim.uid);
        for one in uses {
            let key = (one.pool.as_str().into(), one.device.as_str().into());
            let uids = self.devices.entry(key).or_default();
            if !uids.contains(&claim.uid) {
                uids.push(claim.uid.clone());
            }
        }
        self.claims.insert(claim.uid.clone(), Holding { claim: claim.clone(), uses: uses.into(), has_files });
    }

    fn remove(&mut self, uid: &ClaimUid) {
        let Some(holding) = self.claims.remove(uid) else { return };
        for one in holding.uses {
            let key = (one.pool.into(), one.device.into());
            if let Some(uids) = self.devices.get_mut(&key) {
                uids.retain(|other| other != uid);
                if uids.is_empty() {
                    self.devices.remove(&key);
                }
            }
        }
    }
}

impl Holding {
    /// Two claims may have one device if each has a share of its own.
    fn conflicts(&self, wanted: &DeviceUse) -> bool {
        self.uses
            .iter()
            .filter(|held| held.pool == wanted.pool && held.device == wanted.device)
            .any(|held| held.share_id.is_none() || wanted.share_id.is_none() || held.share_id == wanted.share_id)
    }
}

impl Reservation {
    /// The claim is prepared.
    pub(crate) fn keep(mut self, has_files: bool) {
        self.is_kept = true;
        if let Some(holding) = self.holders.lock().claims.get_mut(&self.claim.uid) {
            holding.has_files |= has_files;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_kept && !self.was_there {
            self.holders.release(&self.claim.uid);
        }
    }
}
