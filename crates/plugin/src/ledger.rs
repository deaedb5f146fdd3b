//! Records which claim holds which device: the last line of defence against one device in two claims.
//!
//! A claim holds its devices from the first call of the driver's `prepare` until a successful `unprepare`, even if the prepare
//! fails, panics, is cancelled or cannot write the metadata: the kubelet unprepares such a claim too. A claim goes through
//! these states:
//!
//! | state | begins with | ends with |
//! |---|---|---|
//! | reserved | [`DeviceLedger::reserve`] | the driver call; or a dropped [`Reservation`], which restores the previous state |
//! | unfinished | [`Reservation::mark_driver_called`] | a successful prepare, or an unprepare |
//! | prepared | [`Reservation::commit`], or a record on disk | the next prepare, or an unprepare |
//!
//! Devices with admin access are not recorded, and a shared device has one holder for each share. The ledger only records:
//! [`crate::service`] decides how a conflict is resolved.

mod entries;
mod held;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::ClaimUid;
use tokio::sync::watch;

use self::entries::{Entries, LedgerEntry, State};
use self::held::Pods;
pub(crate) use self::held::{HeldClaim, HeldState};
use crate::claim::Claim;
use crate::store::{DeviceUse, RecoveredClaim};

/// The values of `skipNodeOperations` in an allocation with which the kubelet does not unprepare the device.
const SKIP_UNPREPARE: [&str; 2] = ["NodeUnprepareResources", "*"];

/// A claim needs devices that other claims hold.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "device {}/{} is still prepared for claim {}, which the kubelet unprepares when its pods are gone; claim {claim} can \
     be prepared after that",
    .first.pool, .first.device, .first.claim
)]
pub(crate) struct Conflict {
    claim: Box<ClaimRef>,
    first: Box<Holder>,
    rest: Vec<Holder>,
}

impl Conflict {
    /// Returns the claim that needs the devices.
    pub(crate) fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    /// Returns the claims that hold one of the devices, each once.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&*self.first).chain(&self.rest)
    }
}

/// A claim that holds a device which another claim needs, as of the moment when the conflict was found.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    claim: ClaimRef,
    pool: Arc<str>,
    device: Arc<str>,
    share_id: Option<String>,
    entry_id: u64,
    unpreparer: Unpreparer,
    is_on_disk: bool,
}

impl Holder {
    /// Returns the claim that holds the device.
    pub(crate) fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    /// Returns the ID of the ledger entry, which differs between successive prepares of the same claim.
    pub(crate) fn entry_id(&self) -> u64 {
        self.entry_id
    }

    /// Returns which program unprepares the claim.
    pub(crate) fn unpreparer(&self) -> Unpreparer {
        self.unpreparer
    }

    /// Whether the claim has a record on disk. If that record is gone, another instance has unprepared the claim.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.is_on_disk
    }

    /// Whether the device is allocated to the claim in its current state.
    pub(crate) fn is_allocated_in(&self, claim: &Claim) -> bool {
        is_allocated(&self.pool, &self.device, self.share_id.as_deref(), claim)
    }
}

/// The program that unprepares a claim when its pods are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpreparer {
    /// The kubelet.
    Kubelet,
    /// None: all of the claim's devices are published with `skipNodeOperations`.
    None,
}

impl Unpreparer {
    fn of(claim: &Claim) -> Self {
        let is_skipped = claim.results().all(|result| {
            let skipped = result.skip_node_operations.as_deref().unwrap_or_default();
            skipped.iter().any(|operation| SKIP_UNPREPARE.contains(&operation.as_str()))
        });
        if is_skipped { Self::None } else { Self::Kubelet }
    }
}

/// The files that a successful prepare has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClaimFiles {
    /// None.
    None,
    /// The claim's record, for the CDI spec of its devices.
    Record,
    /// Metadata files and the claim's record.
    Metadata,
}

impl ClaimFiles {
    /// Returns the files of a claim that has a record.
    fn of_record(found: &RecoveredClaim) -> Self {
        if found.has_metadata { Self::Metadata } else { Self::Record }
    }
}

/// The numbers of claims in the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClaimCounts {
    /// The number of prepared claims.
    pub(crate) prepared: usize,
    /// The number of claims that hold devices, including those whose prepare is running, failed or was cancelled.
    pub(crate) held: usize,
}

/// The claims that hold devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceLedger {
    entries: Mutex<Entries>,
    /// Notified whenever a claim releases devices.
    releases: watch::Sender<()>,
}

/// The devices of a claim that is being prepared. If it is dropped before the driver is called, the claim's previous state is
/// restored.
#[derive(Debug)]
#[must_use = "the devices are released when the reservation is dropped before the driver is called"]
pub(crate) struct Reservation {
    ledger: Arc<DeviceLedger>,
    uid: ClaimUid,
    uses: Box<[DeviceUse]>,
    entry_id: u64,
}

/// Returns the devices, or shares of devices, that are allocated to a claim for its exclusive use.
fn uses(claim: &Claim) -> Vec<DeviceUse> {
    let held = || claim.results().filter(|result| result.admin_access != Some(true));
    let mut uses: Vec<DeviceUse> = Vec::with_capacity(held().count());
    for result in held() {
        let one = DeviceUse {
            pool: result.pool.as_str().into(),
            device: result.device.as_str().into(),
            share_id: result.share_id.clone(),
        };
        if !uses.contains(&one) {
            uses.push(one);
        }
    }
    uses
}

/// Whether a device is allocated to a claim. An unknown share ID on either side matches any share.
fn is_allocated(pool: &str, device: &str, share_id: Option<&str>, claim: &Claim) -> bool {
    claim.results().filter(|result| result.pool == pool && result.device == device).any(|result| {
        let allocated = result.share_id.as_deref();
        share_id.is_none() || allocated.is_none() || share_id == allocated
    })
}

impl DeviceLedger {
    /// Reserves the devices that are allocated to a claim, in addition to those that it holds. Fails if `is_guarded` is set and
    /// another claim holds one of them.
    pub(crate) fn reserve(self: &Arc<Self>, claim: &Claim, is_guarded: bool) -> Result<Reservation, Conflict> {
        let wanted = uses(claim);
        let reference = claim.reference();
        let mut entries = self.lock();
        let mut holders = if is_guarded { entries.holders(reference, &wanted) } else { Vec::new() }.into_iter();
        if let Some(first) = holders.next() {
            let claim = Box::new(reference.clone());
            return Err(Conflict { claim, first: Box::new(first), rest: holders.collect() });
        }
        let before = entries.remove(&reference.uid).map(Box::new);
        let mut all = wanted.clone();
        // Until the prepare succeeds, the driver may still have the devices of the previous prepare set up.
        let earlier = before.iter().flat_map(|before| before.uses.iter());
        all.extend(earlier.filter(|earlier| !wanted.contains(earlier)).cloned());
        let since = match &before {
            Some(before) if before.files().is_some() => before.since,
            _ => Some(SystemTime::now()),
        };
        let entry_id = entries.insert(reference, all, State::Reserved { before }, Unpreparer::of(claim));
        if let Some(entry) = entries.claims.get_mut(&reference.uid) {
            entry.since = since;
            entry.pods = Pods::of(claim);
        }
        Ok(Reservation { ledger: self.clone(), uid: reference.uid.clone(), uses: wanted.into(), entry_id })
    }

    /// Adds a claim that was prepared by an earlier process.
    pub(crate) fn restore(&self, found: &RecoveredClaim) {
        let state = State::Prepared(ClaimFiles::of_record(found));
        self.lock().insert(&found.claim, found.uses.clone(), state, Unpreparer::Kubelet);
    }

    /// Updates the ledger from the records on disk, which another instance may have written.
    ///
    /// The record of a locked claim, which no other instance can be working on, replaces the claim's entry, unless the record is
    /// older than an unfinished prepare of this instance. Any other claim may be changing in another instance: it holds both
    /// the devices of its entry and those of its record.
    pub(crate) fn refresh(&self, found: &[RecoveredClaim], locked: &[&ClaimRef]) {
        let mut entries = self.lock();
        entries.mark_replaced_records(found);
        for record in found {
            let RecoveredClaim { claim, uses, .. } = record;
            let on_disk = ClaimFiles::of_record(record);
            let is_locked = locked.iter().any(|locked| locked.uid == claim.uid);
            let is_replaced = match entries.claims.get(&claim.uid) {
                None => true,
                // This instance is preparing the claim, and the record is older than that.
                Some(LedgerEntry { state: State::Reserved { .. }, .. }) => continue,
                Some(LedgerEntry { state: State::Unfinished { earlier }, .. }) => {
                    is_locked && earlier.is_none_or(|earlier| earlier == ClaimFiles::None)
                }
                Some(LedgerEntry { state: State::Prepared(files), uses: known, .. }) => {
                    is_locked && (*files != on_disk || **known != **uses)
                }
            };
            if is_replaced {
                entries.insert(claim, uses.clone(), State::Prepared(on_disk), Unpreparer::Kubelet);
            } else {
                entries.add_uses(&claim.uid, uses);
            }
        }
    }

    /// Returns what must be unprepared before a claim is prepared: the claim itself, if it holds a device that is no longer
    /// allocated to it, and earlier claims with the same name, which the kubelet has forgotten when it prepares a new one.
    pub(crate) fn outdated(&self, claim: &Claim) -> Vec<ClaimRef> {
        let entries = self.lock();
        let is_outdated = |entry: &&LedgerEntry| entry.claim.uid != claim.reference().uid || entry.is_outdated(claim);
        entries.with_name(claim.reference()).filter(is_outdated).map(|entry| entry.claim.clone()).collect()
    }

    /// Whether a claim holds a device that is no longer allocated to it.
    pub(crate) fn is_outdated(&self, claim: &Claim) -> bool {
        self.lock().claims.get(&claim.reference().uid).is_some_and(|entry| entry.is_outdated(claim))
    }

    /// Whether a claim is in the ledger: its prepare has begun, and it has not been unprepared since.
    pub(crate) fn contains(&self, uid: &ClaimUid) -> bool {
        self.lock().claims.contains_key(uid)
    }

    /// Returns a claim as a holder, if it is in the ledger.
    pub(crate) fn holder(&self, uid: &ClaimUid) -> Option<Holder> {
        let entries = self.lock();
        let entry = entries.claims.get(uid)?;
        Some(entry.as_holder(entry.uses.first()))
    }

    /// Fills in the share IDs of a holder's devices from its allocation, because a record may not have them. Returns whether
    /// the entry changed.
    pub(crate) fn correct_shares(&self, holder: &Holder, fetched: &Claim) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.entry_of(holder).filter(|entry| matches!(entry.state, State::Prepared(_))) else {
            return false;
        };
        let allocated = uses(fetched);
        let mut known = Vec::with_capacity(entry.uses.len());
        for held in &entry.uses {
            // A device that is no longer allocated is held until the claim is unprepared.
            if held.share_id.is_some() || !is_allocated(&held.pool, &held.device, None, fetched) {
                known.push(held.clone());
            } else {
                let same = |one: &&DeviceUse| one.pool == held.pool && one.device == held.device;
                known.extend(allocated.iter().filter(same).cloned());
            }
        }
        if known[..] == entry.uses[..] {
            return false;
        }
        entries.replace_uses(&holder.claim.uid, known.into());
        drop(entries);
        self.releases.send_replace(());
        true
    }

    /// Removes a claim that has been unprepared.
    pub(crate) fn release(&self, uid: &ClaimUid) {
        self.lock().remove(uid);
        self.releases.send_replace(());
    }

    /// Removes a holder whose record is gone from disk, unless it has been prepared again since.
    pub(crate) fn release_holder(&self, holder: &Holder) {
        let mut entries = self.lock();
        if entries.entry_of(holder).is_some_and(LedgerEntry::is_on_disk) {
            entries.remove(&holder.claim.uid);
            drop(entries);
            self.releases.send_replace(());
        }
    }

    /// Subscribes to releases of devices from now on.
    pub(crate) fn releases(&self) -> watch::Receiver<()> {
        self.releases.subscribe()
    }

    /// Whether the ledger entry of a holder still exists.
    pub(crate) fn still_holds(&self, holder: &Holder) -> bool {
        self.lock().entry_of(holder).is_some()
    }

    /// Whether the claim has metadata files on disk.
    pub(crate) fn has_metadata(&self, uid: &ClaimUid) -> bool {
        self.files(uid) == Some(ClaimFiles::Metadata)
    }

    /// Whether the last successful prepare of the claim has written a record.
    pub(crate) fn has_record(&self, uid: &ClaimUid) -> bool {
        self.files(uid).is_some_and(|files| files != ClaimFiles::None)
    }

    fn files(&self, uid: &ClaimUid) -> Option<ClaimFiles> {
        self.lock().claims.get(uid).and_then(LedgerEntry::files)
    }

    /// Whether the claim has a record on disk. If that record is gone, another instance has unprepared the claim.
    pub(crate) fn is_on_disk(&self, uid: &ClaimUid) -> bool {
        self.lock().claims.get(uid).is_some_and(LedgerEntry::is_on_disk)
    }

    /// Returns the claims that the kubelet never unprepares.
    pub(crate) fn abandoned(&self) -> Vec<ClaimRef> {
        let entries = self.lock();
        let abandoned = entries.claims.values().filter(|entry| entry.unpreparer == Unpreparer::None);
        abandoned.map(|entry| entry.claim.clone()).collect()
    }

    /// Counts the claims that are prepared, and those that hold devices.
    pub(crate) fn counts(&self) -> ClaimCounts {
        let entries = self.lock();
        let prepared = entries.claims.values().filter(|entry| entry.files().is_some()).count();
        ClaimCounts { prepared, held: entries.claims.len() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Ignores poisoning: nothing panics while it is locked.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Returns the devices, or shares of devices, that are allocated to the claim.
    pub(crate) fn uses(&self) -> &[DeviceUse] {
        &self.uses
    }

    /// Records that the driver is being called: from now on the claim holds the devices until it is unprepared.
    pub(crate) fn mark_driver_called(&self) {
        let mut entries = self.ledger.lock();
        if let Some(entry) = entries.claims.get_mut(&self.uid).filter(|entry| entry.id == self.entry_id) {
            entry.state = State::Unfinished { earlier: entry.files() };
        }
    }

    /// Records that the prepare has succeeded, and which files it has written.
    pub(crate) fn commit(self, files: ClaimFiles) {
        let mut entries = self.ledger.lock();
        let Some(entry) = entries.claims.get_mut(&self.uid).filter(|entry| entry.id == self.entry_id) else {
            return;
        };
        if entry.files().is_none() {
            entry.since = Some(SystemTime::now());
        }
        let earlier = entry.files().unwrap_or(ClaimFiles::None);
        entry.state = State::Prepared(files.max(earlier));
        let has_fewer = entry.uses.len() > self.uses.len();
        if has_fewer {
            entries.replace_uses(&self.uid, self.uses.clone());
        }
        drop(entries);
        if has_fewer {
            self.ledger.releases.send_replace(());
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut entries = self.ledger.lock();
        let is_ours = |entry: &LedgerEntry| entry.id == self.entry_id && matches!(entry.state, State::Reserved { .. });
        if !entries.claims.get(&self.uid).is_some_and(is_ours) {
            return;
        }
        if let Some(LedgerEntry { state: State::Reserved { before: Some(before) }, .. }) = entries.remove(&self.uid) {
            entries.insert_entry(*before);
        }
        drop(entries);
        self.ledger.releases.send_replace(());
    }
}
