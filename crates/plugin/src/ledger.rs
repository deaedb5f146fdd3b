//! Which claim has which device: the last line of defence against one device in two claims.
//!
//! From the first call of the driver's `prepare` for a claim until a successful `unprepare`, its devices stay with the claim,
//! whatever became of the prepare: an error, a panic, a deadline, metadata that could not be written. The kubelet unprepares
//! such a claim too. A claim goes through these states:
//!
//! | state | begins with | ends with |
//! |---|---|---|
//! | reserved | [`DeviceLedger::reserve`] | the call of the driver; or a dropped [`Reservation`], which restores what was there before |
//! | unfinished | [`Reservation::driver_is_called`] | a prepare that succeeds, or an unprepare |
//! | prepared | [`Reservation::prepared`], or a record on disk | the next prepare, or an unprepare |
//!
//! Devices with admin access are not counted, and a device that may be shared has one holder for each share. The ledger only
//! remembers: what becomes of a conflict is decided in [`crate::service`].

mod entries;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_metadata::name::ClaimUid;
use tokio::sync::watch;

use self::entries::{Entries, Holding, State};
use crate::claim::Claim;
use crate::store::{DeviceUse, RecoveredClaim};
use drakkar_client::ClaimRef;

/// What the kubelet writes into an allocation for a device that it does not unprepare.
const SKIP_UNPREPARE: [&str; 2] = ["NodeUnprepareResources", "*"];

/// Devices that other claims have.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "device {}/{} is still prepared for claim {}, which the kubelet unprepares when its pods are gone; claim {claim} can \
     have it after that",
    .first.pool, .first.device, .first.claim
)]
pub(crate) struct Conflict {
    claim: Box<ClaimRef>,
    first: Box<Holder>,
    rest: Vec<Holder>,
}

impl Conflict {
    /// The claim that cannot have them.
    pub(crate) fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    /// The claims that have one of the devices, each once.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&*self.first).chain(&self.rest)
    }
}

/// A claim that has a device which another one needs, as it was when that was noticed.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    claim: ClaimRef,
    pool: String,
    device: String,
    share_id: Option<String>,
    number: u64,
    unpreparer: Unpreparer,
    is_on_disk: bool,
}

impl Holder {
    /// The claim that has the device.
    pub(crate) fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    /// Tells this holding from earlier and later ones of the same claim.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Who unprepares the claim.
    pub(crate) fn unpreparer(&self) -> Unpreparer {
        self.unpreparer
    }

    /// Whether there is a record of it on disk, unless another instance has unprepared it.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.is_on_disk
    }

    /// Whether the device is allocated to the claim as it is now.
    pub(crate) fn is_allocated_in(&self, claim: &Claim) -> bool {
        is_allocated(&self.pool, &self.device, self.share_id.as_deref(), claim)
    }
}

/// Who unprepares a claim when its pods are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpreparer {
    /// The kubelet.
    Kubelet,
    /// Nobody: all of the claim's devices are published with `skipNodeOperations`.
    Nobody,
}

impl Unpreparer {
    fn of(claim: &Claim) -> Self {
        let is_skipped = claim.results().all(|result| {
            let skipped = result.skip_node_operations.as_deref().unwrap_or_default();
            skipped.iter().any(|operation| SKIP_UNPREPARE.contains(&operation.as_str()))
        });
        if is_skipped { Self::Nobody } else { Self::Kubelet }
    }
}

/// What a successful prepare left on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    /// Nothing.
    None,
    /// Metadata files and the claim's record.
    Written,
}

/// How many claims there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClaimCounts {
    /// Those that are prepared.
    pub(crate) prepared: usize,
    /// Those that have devices: also the ones whose prepare goes on, failed or was cut off.
    pub(crate) held: usize,
}

/// The claims that have devices, and which.
#[derive(Debug, Default)]
pub(crate) struct DeviceLedger {
    entries: Mutex<Entries>,
    /// Changes whenever a claim has fewer devices than before.
    releases: watch::Sender<()>,
}

/// Devices that a claim is about to have. Dropped before the driver is called, it restores what the claim had before.
#[derive(Debug)]
#[must_use = "the devices are not the claim's any more when the reservation is dropped"]
pub(crate) struct Reservation {
    ledger: Arc<DeviceLedger>,
    uid: ClaimUid,
    uses: Box<[DeviceUse]>,
    number: u64,
}

/// What of a device a claim with these results uses.
fn uses(claim: &Claim) -> Vec<DeviceUse> {
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

/// Whether a device is among those that are allocated to a claim. A share that one side does not know may be any.
fn is_allocated(pool: &str, device: &str, share_id: Option<&str>, claim: &Claim) -> bool {
    claim.results().filter(|result| result.pool == pool && result.device == device).any(|result| {
        let allocated = result.share_id.as_deref();
        share_id.is_none() || allocated.is_none() || share_id == allocated
    })
}

impl DeviceLedger {
    /// Gives a claim the devices that are allocated to it, beside those that it has, unless another claim has one of them.
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
        // Until the prepare has succeeded, the driver may still have what it was prepared with before.
        let earlier = before.iter().flat_map(|before| before.uses.iter());
        all.extend(earlier.filter(|earlier| !wanted.contains(earlier)).cloned());
        let number = entries.insert(reference, all, State::Reserved { before }, Unpreparer::of(claim));
        Ok(Reservation { ledger: self.clone(), uid: reference.uid.clone(), uses: wanted.into(), number })
    }

    /// Notes a claim that was prepared by an earlier process.
    pub(crate) fn restore(&self, claim: &ClaimRef, uses: &[DeviceUse]) {
        self.lock().insert(claim, uses.to_vec(), State::Prepared(Files::Written), Unpreparer::Kubelet);
    }

    /// Notes which claims have records on disk, whoever wrote them.
    ///
    /// What is known of a locked claim, on which nobody else works, is replaced by its record, unless the record is older than a
    /// prepare that has not succeeded here. Any other claim may be in the hands of another instance: it has what is known
    /// and what its record says.
    pub(crate) fn learn(&self, found: &[RecoveredClaim], locked: &[&ClaimRef]) {
        let mut entries = self.lock();
        entries.forget_replaced(found);
        for RecoveredClaim { claim, uses, .. } in found {
            let is_locked = locked.iter().any(|locked| locked.uid == claim.uid);
            let is_replaced = match entries.claims.get(&claim.uid) {
                None => true,
                // All of it is this instance's, and its record is of before.
                Some(Holding { state: State::Reserved { .. }, .. }) => continue,
                Some(Holding { state: State::Unfinished { earlier }, .. }) => {
                    is_locked && *earlier != Some(Files::Written)
                }
                Some(Holding { state: State::Prepared(files), uses: known, .. }) => {
                    is_locked && (*files == Files::None || **known != **uses)
                }
            };
            if is_replaced {
                entries.insert(claim, uses.clone(), State::Prepared(Files::Written), Unpreparer::Kubelet);
            } else {
                entries.add_uses(&claim.uid, uses);
            }
        }
    }

    /// What has to be unprepared before a claim is prepared: the claim itself, if it has a device that is not allocated to it any
    /// more, and earlier claims of its name, which the kubelet has forgotten when it prepares another one.
    pub(crate) fn outdated(&self, claim: &Claim) -> Vec<ClaimRef> {
        let entries = self.lock();
        let is_outdated = |holding: &&Holding| holding.claim.uid != claim.reference().uid || holding.is_outdated(claim);
        entries.of_name(claim.reference()).filter(is_outdated).map(|holding| holding.claim.clone()).collect()
    }

    /// Whether a claim has a device here that is not allocated to it any more.
    pub(crate) fn is_outdated(&self, claim: &Claim) -> bool {
        self.lock().claims.get(&claim.reference().uid).is_some_and(|holding| holding.is_outdated(claim))
    }

    /// A claim as a holder, if it is one.
    pub(crate) fn holder(&self, uid: &ClaimUid) -> Option<Holder> {
        let entries = self.lock();
        let holding = entries.claims.get(uid)?;
        Some(holding.as_holder(holding.uses.first()))
    }

    /// Notes the shares of a holder's devices, which a record may not tell, as its allocation has them. Says whether that was
    /// news.
    pub(crate) fn correct(&self, holder: &Holder, fetched: &Claim) -> bool {
        let mut entries = self.lock();
        let Some(holding) = entries.same(holder).filter(|holding| matches!(holding.state, State::Prepared(_))) else {
            return false;
        };
        let allocated = uses(fetched);
        let mut known = Vec::with_capacity(holding.uses.len());
        for held in &holding.uses {
            // What is not allocated to it any more it has until it is unprepared.
            if held.share_id.is_some() || !is_allocated(&held.pool, &held.device, None, fetched) {
                known.push(held.clone());
            } else {
                let same = |one: &&DeviceUse| one.pool == held.pool && one.device == held.device;
                known.extend(allocated.iter().filter(same).cloned());
            }
        }
        if known[..] == holding.uses[..] {
            return false;
        }
        entries.replace_uses(&holder.claim.uid, known.into());
        drop(entries);
        self.releases.send_replace(());
        true
    }

    /// Notes that a claim is unprepared.
    pub(crate) fn release(&self, uid: &ClaimUid) {
        self.lock().remove(uid);
        self.releases.send_replace(());
    }

    /// Notes that a holder is unprepared, as the disk says; unless it has been prepared again since.
    pub(crate) fn release_holder(&self, holder: &Holder) {
        let mut entries = self.lock();
        if entries.same(holder).is_some_and(Holding::is_on_disk) {
            entries.remove(&holder.claim.uid);
            drop(entries);
            self.releases.send_replace(());
        }
    }

    /// Tells of claims that have fewer devices from now on.
    pub(crate) fn releases(&self) -> watch::Receiver<()> {
        self.releases.subscribe()
    }

    /// Whether a holder still has what it had.
    pub(crate) fn still_holds(&self, holder: &Holder) -> bool {
        self.lock().same(holder).is_some()
    }

    /// Whether the claim has files of ours.
    pub(crate) fn has_files(&self, uid: &ClaimUid) -> bool {
        self.lock().claims.get(uid).is_some_and(|holding| holding.files() == Some(Files::Written))
    }

    /// Whether the claim has a record on disk, unless another instance has unprepared it.
    pub(crate) fn is_on_disk(&self, uid: &ClaimUid) -> bool {
        self.lock().claims.get(uid).is_some_and(Holding::is_on_disk)
    }

    /// The claims that no kubelet unprepares.
    pub(crate) fn abandoned(&self) -> Vec<ClaimRef> {
        let entries = self.lock();
        let abandoned = entries.claims.values().filter(|holding| holding.unpreparer == Unpreparer::Nobody);
        abandoned.map(|holding| holding.claim.clone()).collect()
    }

    /// How many claims are prepared, and how many have devices.
    pub(crate) fn counts(&self) -> ClaimCounts {
        let entries = self.lock();
        let prepared = entries.claims.values().filter(|holding| holding.files().is_some()).count();
        ClaimCounts { prepared, held: entries.claims.len() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Nothing panics while it is locked.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// The devices, or shares of them, that are the claim's.
    pub(crate) fn uses(&self) -> &[DeviceUse] {
        &self.uses
    }

    /// Notes that the driver is called: from now on the devices are the claim's until it is unprepared.
    pub(crate) fn driver_is_called(&self) {
        let mut entries = self.ledger.lock();
        if let Some(holding) = entries.claims.get_mut(&self.uid).filter(|holding| holding.number == self.number) {
            holding.state = State::Unfinished { earlier: holding.files() };
        }
    }

    /// Notes that the prepare has succeeded, and what it has written.
    pub(crate) fn prepared(self, files: Files) {
        let mut entries = self.ledger.lock();
        let Some(holding) = entries.claims.get_mut(&self.uid).filter(|holding| holding.number == self.number) else {
            return;
        };
        let is_written = files == Files::Written || holding.files() == Some(Files::Written);
        holding.state = State::Prepared(if is_written { Files::Written } else { Files::None });
        let has_fewer = holding.uses.len() > self.uses.len();
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
        let is_ours =
            |holding: &Holding| holding.number == self.number && matches!(holding.state, State::Reserved { .. });
        if !entries.claims.get(&self.uid).is_some_and(is_ours) {
            return;
        }
        if let Some(Holding { state: State::Reserved { before: Some(before) }, .. }) = entries.remove(&self.uid) {
            entries.put_back(*before);
        }
        drop(entries);
        self.ledger.releases.send_replace(());
    }
}
