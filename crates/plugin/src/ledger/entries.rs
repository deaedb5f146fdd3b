//! The entries of the ledger: what each claim holds, and an index of it by device.

use std::collections::HashMap;
use std::hash::Hash;

use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace};

use super::{Files, Holder, Unpreparer, is_allocated};
use crate::claim::Claim;
use crate::store::{DeviceUse, RecoveredClaim};
use drakkar_client::ClaimRef;

/// All holdings, by claim.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) claims: HashMap<ClaimUid, Holding>,
    /// The claims that have a device, by pool and device; nearly always one.
    devices: HashMap<(Box<str>, Box<str>), Vec<ClaimUid>>,
    /// The claims of a name, as `namespace/name`; nearly always one.
    names: HashMap<String, Vec<ClaimUid>>,
    /// How many holdings there have been.
    count: u64,
}

/// What a claim has.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) claim: ClaimRef,
    pub(super) uses: Box<[DeviceUse]>,
    pub(super) state: State,
    pub(super) unpreparer: Unpreparer,
    /// Tells it from earlier and later holdings of the same claim.
    pub(super) number: u64,
}

/// How far the prepare of a claim has come.
#[derive(Debug)]
pub(super) enum State {
    /// The driver has not been called yet. If it never is, what was there before comes back.
    Reserved { before: Option<Box<Holding>> },
    /// The driver was called, and that has not succeeded: it goes on, failed, or was cut off. What an earlier prepare left, if
    /// one succeeded, is still there.
    Unfinished { earlier: Option<Files> },
    /// The last prepare has succeeded.
    Prepared(Files),
}

impl Holding {
    /// What the last prepare that succeeded has left, if there was one.
    pub(super) fn files(&self) -> Option<Files> {
        match &self.state {
            State::Reserved { before } => before.as_ref().and_then(|before| before.files()),
            State::Unfinished { earlier } => *earlier,
            State::Prepared(files) => Some(*files),
        }
    }

    /// Whether it has a device that is not allocated to the claim any more.
    pub(super) fn is_outdated(&self, claim: &Claim) -> bool {
        self.uses.iter().any(|held| !is_allocated(&held.pool, &held.device, held.share_id.as_deref(), claim))
    }

    /// Whether its record is gone from the disk if, and only if, another instance has unprepared it.
    pub(super) fn is_on_disk(&self) -> bool {
        matches!(self.state, State::Prepared(Files::Written))
    }

    /// This as a holder of a device.
    pub(super) fn as_holder(&self, held: Option<&DeviceUse>) -> Holder {
        Holder {
            claim: self.claim.clone(),
            pool: held.map(|held| held.pool.clone()).unwrap_or_default(),
            device: held.map(|held| held.device.clone()).unwrap_or_default(),
            share_id: held.and_then(|held| held.share_id.clone()),
            number: self.number,
            unpreparer: self.unpreparer,
            is_on_disk: self.is_on_disk(),
        }
    }

    /// The use of it that keeps others from what they want. Two claims may have one device if each has a share of its own.
    fn conflicting(&self, wanted: &DeviceUse) -> Option<&DeviceUse> {
        self.uses
            .iter()
            .filter(|held| held.pool == wanted.pool && held.device == wanted.device)
            .find(|held| held.share_id.is_none() || wanted.share_id.is_none() || held.share_id == wanted.share_id)
    }
}

impl Entries {
    /// The other claims that have what a claim wants, each once.
    pub(super) fn holders(&self, claim: &ClaimRef, wanted: &[DeviceUse]) -> Vec<Holder> {
        let mut holders: Vec<Holder> = Vec::new();
        for one in wanted {
            let Some(uids) = self.devices.get(&key(one)) else { continue };
            for other in uids.iter().filter(|uid| **uid != claim.uid).filter_map(|uid| self.claims.get(uid)) {
                let is_known = holders.iter().any(|holder| holder.number == other.number);
                if let Some(held) = other.conflicting(one).filter(|_| !is_known) {
                    holders.push(other.as_holder(Some(held)));
                }
            }
        }
        holders
    }

    /// The holdings of all claims of that name, whatever their UID.
    pub(super) fn of_name(&self, claim: &ClaimRef) -> impl Iterator<Item = &Holding> {
        self.names.get(&name(claim)).into_iter().flatten().filter_map(|uid| self.claims.get(uid))
    }

    /// The holding that a holder was found with, if it is still there.
    pub(super) fn same(&self, holder: &Holder) -> Option<&Holding> {
        self.claims.get(&holder.claim.uid).filter(|holding| holding.number == holder.number)
    }

    /// Makes these a claim's devices, as a holding of its own, and gives its number.
    pub(super) fn insert(
        &mut self,
        claim: &ClaimRef,
        uses: Vec<DeviceUse>,
        state: State,
        unpreparer: Unpreparer,
    ) -> u64 {
        self.remove(&claim.uid);
        self.count += 1;
        let number = self.count;
        self.put_back(Holding { claim: claim.clone(), uses: uses.into(), state, unpreparer, number });
        number
    }

    /// Adds a holding as it is.
    pub(super) fn put_back(&mut self, holding: Holding) {
        let uid = &holding.claim.uid;
        for one in &holding.uses {
            add(self.devices.entry(key(one)).or_default(), uid);
        }
        add(self.names.entry(name(&holding.claim)).or_default(), uid);
        self.claims.insert(holding.claim.uid.clone(), holding);
    }

    /// Removes what a claim has, and gives it.
    pub(super) fn remove(&mut self, uid: &ClaimUid) -> Option<Holding> {
        let holding = self.claims.remove(uid)?;
        for one in &holding.uses {
            drop_from(&mut self.devices, &key(one), uid);
        }
        drop_from(&mut self.names, &name(&holding.claim), uid);
        Some(holding)
    }

    /// Changes what a claim has: it is the same holding, of which more is known.
    pub(super) fn replace_uses(&mut self, uid: &ClaimUid, uses: Box<[DeviceUse]>) {
        if let Some(holding) = self.remove(uid) {
            self.put_back(Holding { uses, ..holding });
        }
    }

    /// Adds devices to those that a claim has.
    pub(super) fn add_uses(&mut self, uid: &ClaimUid, uses: &[DeviceUse]) {
        let Some(holding) = self.claims.get(uid) else { return };
        let news: Vec<DeviceUse> = uses.iter().filter(|one| !holding.uses.contains(one)).cloned().collect();
        if !news.is_empty() {
            let all = holding.uses.iter().cloned().chain(news).collect();
            self.replace_uses(uid, all);
        }
    }

    /// Notes that the records of claims are gone because another claim of their name has one now: nobody has unprepared them.
    pub(super) fn forget_replaced(&mut self, found: &[RecoveredClaim]) {
        let by_name: HashMap<(&Namespace, &ClaimName), &ClaimUid> =
            found.iter().map(|found| ((&found.claim.namespace, &found.claim.name), &found.claim.uid)).collect();
        for holding in self.claims.values_mut().filter(|holding| holding.is_on_disk()) {
            let named = by_name.get(&(&holding.claim.namespace, &holding.claim.name));
            if named.is_some_and(|uid| **uid != holding.claim.uid) {
                holding.state = State::Prepared(Files::None);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.devices.is_empty() && self.names.is_empty()
    }
}

fn name(claim: &ClaimRef) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}

fn add(uids: &mut Vec<ClaimUid>, uid: &ClaimUid) {
    if !uids.contains(uid) {
        uids.push(uid.clone());
    }
}

fn drop_from<K: Hash + Eq>(index: &mut HashMap<K, Vec<ClaimUid>>, key: &K, uid: &ClaimUid) {
    if let Some(uids) = index.get_mut(key) {
        uids.retain(|other| other != uid);
        if uids.is_empty() {
            index.remove(key);
        }
    }
}

fn key(used: &DeviceUse) -> (Box<str>, Box<str>) {
    (used.pool.as_str().into(), used.device.as_str().into())
}
