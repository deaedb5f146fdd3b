//! Who has which device: the last line of defence against one device in two claims.
//!
//! A scheduler gives a device to one claim at a time. But a claim whose pod was removed by force is free for others
//! before this node has unprepared it, so a prepare waits for a moment, and is refused if another claim then still has one of
//! its devices.
//! Devices with admin access are not counted, and a device that may be shared has one holder for each share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_metadata::name::ClaimUid;
use tokio::sync::watch;

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
    /// Which holding of the holder it is.
    number: u64,
    /// Whether what is on disk can tell that the holder has let go: it was prepared with files, and is not being now.
    may_be_gone: bool,
}

impl Conflict {
    /// Whether to look on disk if the claim that has the device still is prepared.
    pub(crate) fn may_be_gone(&self) -> bool {
        self.may_be_gone
    }

    /// The claim that has the device.
    pub(crate) fn holder(&self) -> &ClaimRef {
        &self.holder
    }
}

/// The prepared claims, and the devices that each has.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    holdings: Mutex<Holdings>,
    /// Changes whenever a claim lets go.
    releases: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Holdings {
    claims: HashMap<ClaimUid, Holding>,
    /// The claims that have a device, by pool and device; nearly always one.
    devices: HashMap<(Box<str>, Box<str>), Vec<ClaimUid>>,
    /// How many holdings there have been: a claim that lets go and comes back has another one.
    count: u64,
}

#[derive(Debug)]
struct Holding {
    claim: ClaimRef,
    uses: Box<[DeviceUse]>,
    /// Whether there are files of this claim.
    has_files: bool,
    /// Tells it from earlier and later holdings of the same claim.
    number: u64,
    /// Whether the claim is being prepared: then what is on disk says nothing yet.
    is_pending: bool,
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
                holder: Box::new(holder.claim.clone()),
                claim: Box::new(claim.clone()),
                number: holder.number,
                may_be_gone: holder.has_files && !holder.is_pending,
            });
        }
        let was_there = holdings.claims.contains_key(&claim.uid);
        let has_files = holdings.claims.get(&claim.uid).is_some_and(|holding| holding.has_files);
        holdings.insert(claim, uses, has_files, true);
        Ok(Reservation { holders: self.clone(), claim: claim.clone(), was_there, is_kept: false })
    }

    /// Notes a claim that was prepared by an earlier process.
    pub(crate) fn restore(&self, claim: &ClaimRef, uses: &[DeviceUse]) {
        self.lock().insert(claim, uses, true, false);
    }

    /// Notes which claims have files, whoever wrote them. Those that have none any more are found out when it matters.
    pub(crate) fn learn(&self, found: &[RecoveredClaim]) {
        let mut holdings = self.lock();
        for RecoveredClaim { claim, uses, .. } in found {
            if !holdings.claims.contains_key(&claim.uid) {
                holdings.insert(claim, uses, true, false);
            }
        }
    }

    /// Whether all that a claim holds here is still allocated to it.
    pub(crate) fn is_still(&self, claim: &ClaimRef, fetched: &Claim) -> bool {
        let is_allocated =
            |held: &DeviceUse| fetched.results().any(|result| result.pool == held.pool && result.device == held.device);
        self.lock().claims.get(&claim.uid).is_some_and(|holding| holding.uses.iter().all(is_allocated))
    }

    /// Notes what a claim that is prepared really uses.
    pub(crate) fn correct(&self, claim: &ClaimRef, uses: &[DeviceUse]) {
        let mut holdings = self.lock();
        if let Some(holding) = holdings.claims.get(&claim.uid) {
            let (has_files, is_pending, number) = (holding.has_files, holding.is_pending, holding.number);
            holdings.insert(claim, uses, has_files, is_pending);
            // It is the same holding, of which more is known.
            if let Some(holding) = holdings.claims.get_mut(&claim.uid) {
                holding.number = number;
            }
        }
    }

    /// Notes that a claim has nothing any more.
    pub(crate) fn release(&self, uid: &ClaimUid) {
        self.lock().remove(uid);
        self.releases.send_replace(());
    }

    /// Tells of claims that let go from now on.
    pub(crate) fn releases(&self) -> watch::Receiver<()> {
        self.releases.subscribe()
    }

    /// Whether the holder of a conflict still has what it had.
    pub(crate) fn still_holds(&self, conflict: &Conflict) -> bool {
        let holdings = self.lock();
        holdings.claims.get(&conflict.holder.uid).is_some_and(|holding| holding.number == conflict.number)
    }

    /// Notes that the holder of a conflict has nothing any more, as the disk says; unless it has been prepared again since.
    pub(crate) fn release_holder(&self, conflict: &Conflict) {
        let mut holdings = self.lock();
        let uid = &conflict.holder.uid;
        if holdings.claims.get(uid).is_some_and(|holding| holding.number == conflict.number && !holding.is_pending) {
            holdings.remove(uid);
            self.releases.send_replace(());
        }
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
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holdings {
    /// Another claim that has what this one wants to use.
    fn other(&self, claim: &ClaimRef, wanted: &DeviceUse) -> Option<&Holding> {
        let key = (wanted.pool.as_str().into(), wanted.device.as_str().into());
        let others = self.devices.get(&key)?.iter().filter(|uid| **uid != claim.uid);
        others.filter_map(|uid| self.claims.get(uid)).find(|other| other.conflicts(wanted))
    }

    fn insert(&mut self, claim: &ClaimRef, uses: &[DeviceUse], has_files: bool, is_pending: bool) {
        self.remove(&claim.uid);
        self.count += 1;
        for one in uses {
            let key = (one.pool.as_str().into(), one.device.as_str().into());
            let uids = self.devices.entry(key).or_default();
            if !uids.contains(&claim.uid) {
                uids.push(claim.uid.clone());
            }
        }
        let (claim, uses, number) = (claim.clone(), uses.into(), self.count);
        self.claims.insert(claim.uid.clone(), Holding { claim, uses, has_files, number, is_pending });
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
            holding.is_pending = false;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if !self.was_there {
            self.holders.release(&self.claim.uid);
        } else if let Some(holding) = self.holders.lock().claims.get_mut(&self.claim.uid) {
            holding.is_pending = false;
        }
    }
}
