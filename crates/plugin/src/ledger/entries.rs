//! The entries of the ledger: the devices of each claim, with indexes by device and by claim name.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::SystemTime;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace};
use smallvec::SmallVec;

use super::held::Pods;
use super::{ClaimFiles, Holder, Unpreparer, is_allocated};
use crate::claim::Claim;
use crate::store::{DeviceUse, RecoveredClaim};

/// The claims with one device or name: nearly always one claim.
type Uids = SmallVec<[ClaimUid; 1]>;

/// All entries of the ledger.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) claims: HashMap<ClaimUid, LedgerEntry>,
    /// The claims that hold a device, by pool and device.
    devices: HashMap<(Arc<str>, Arc<str>), Uids>,
    /// The claims with a name.
    names: HashMap<(Namespace, ClaimName), Uids>,
    last_id: u64,
}

/// The devices that a claim holds.
#[derive(Debug)]
pub(super) struct LedgerEntry {
    pub(super) claim: ClaimRef,
    pub(super) uses: Box<[DeviceUse]>,
    pub(super) state: State,
    pub(super) unpreparer: Unpreparer,
    /// Differs between successive prepares of the same claim, and grows.
    pub(super) id: u64,
    /// The time since which the claim is prepared, or else holds its devices; `None` for a claim that another process prepared.
    pub(super) since: Option<SystemTime>,
    /// The pods that the claim is reserved for.
    pub(super) pods: Pods,
}

/// The state of a claim's prepare.
#[derive(Debug)]
pub(super) enum State {
    /// The driver has not been called yet. If it never is, the previous entry is restored.
    Reserved { before: Option<Box<LedgerEntry>> },
    /// The driver has been called without success so far: the prepare is running, failed, or was cancelled. The files of an
    /// earlier successful prepare are still there.
    Unfinished { earlier: Option<ClaimFiles> },
    /// The last prepare succeeded.
    Prepared(ClaimFiles),
}

impl LedgerEntry {
    /// Returns the files of the last successful prepare, if there was one.
    pub(super) fn files(&self) -> Option<ClaimFiles> {
        match &self.state {
            State::Reserved { before } => before.as_ref().and_then(|before| before.files()),
            State::Unfinished { earlier } => *earlier,
            State::Prepared(files) => Some(*files),
        }
    }

    /// Whether the claim holds a device that is no longer allocated to it.
    pub(super) fn is_outdated(&self, claim: &Claim) -> bool {
        self.uses.iter().any(|held| !is_allocated(&held.pool, &held.device, held.share_id.as_deref(), claim))
    }

    /// Whether the record is missing on disk if, and only if, another instance has unprepared the claim.
    pub(super) fn is_on_disk(&self) -> bool {
        matches!(self.state, State::Prepared(ClaimFiles::Record | ClaimFiles::Metadata))
    }

    /// Returns the claim as the holder of a device.
    pub(super) fn as_holder(&self, held: Option<&DeviceUse>) -> Holder {
        Holder {
            claim: self.claim.clone(),
            pool: held.map(|held| held.pool.clone()).unwrap_or_default(),
            device: held.map(|held| held.device.clone()).unwrap_or_default(),
            share_id: held.and_then(|held| held.share_id.clone()),
            entry_id: self.id,
            unpreparer: self.unpreparer,
            is_on_disk: self.is_on_disk(),
        }
    }

    /// Returns the use that conflicts with a wanted one. Two claims may use the same device if their shares differ.
    fn conflicting(&self, wanted: &DeviceUse) -> Option<&DeviceUse> {
        self.uses
            .iter()
            .filter(|held| held.pool == wanted.pool && held.device == wanted.device)
            .find(|held| held.share_id.is_none() || wanted.share_id.is_none() || held.share_id == wanted.share_id)
    }
}

impl Entries {
    /// Returns the other claims that hold the wanted devices, each once.
    pub(super) fn holders(&self, claim: &ClaimRef, wanted: &[DeviceUse]) -> Vec<Holder> {
        let mut holders: Vec<Holder> = Vec::new();
        for one in wanted {
            let Some(uids) = self.devices.get(&key(one)) else { continue };
            for other in uids.iter().filter(|uid| **uid != claim.uid).filter_map(|uid| self.claims.get(uid)) {
                let is_known = holders.iter().any(|holder| holder.entry_id == other.id);
                if let Some(held) = other.conflicting(one).filter(|_| !is_known) {
                    holders.push(other.as_holder(Some(held)));
                }
            }
        }
        holders
    }

    /// Returns the claims that hold a device.
    pub(super) fn claims_with(&self, pool: &str, device: &str) -> impl Iterator<Item = &ClaimRef> {
        let uids = self.devices.get(&(pool.into(), device.into()));
        uids.into_iter().flatten().filter_map(|uid| self.claims.get(uid)).map(|entry| &entry.claim)
    }

    /// Returns the entries of all claims with the same namespace and name, whatever their UID.
    pub(super) fn with_name(&self, claim: &ClaimRef) -> impl Iterator<Item = &LedgerEntry> {
        self.names.get(&name(claim)).into_iter().flatten().filter_map(|uid| self.claims.get(uid))
    }

    /// Returns the entry of a holder, if it still exists.
    pub(super) fn entry_of(&self, holder: &Holder) -> Option<&LedgerEntry> {
        self.claims.get(&holder.claim.uid).filter(|entry| entry.id == holder.entry_id)
    }

    /// Replaces the entry of a claim with a new one, and returns its ID.
    pub(super) fn insert(
        &mut self,
        claim: &ClaimRef,
        uses: Vec<DeviceUse>,
        state: State,
        unpreparer: Unpreparer,
    ) -> u64 {
        self.remove(&claim.uid);
        self.last_id += 1;
        let id = self.last_id;
        let pods = Pods::default();
        let uses = uses.into();
        self.insert_entry(LedgerEntry { claim: claim.clone(), uses, state, unpreparer, id, since: None, pods });
        id
    }

    /// Adds an entry and keeps its ID.
    pub(super) fn insert_entry(&mut self, entry: LedgerEntry) {
        let uid = &entry.claim.uid;
        for one in &entry.uses {
            add(self.devices.entry(key(one)).or_default(), uid);
        }
        add(self.names.entry(name(&entry.claim)).or_default(), uid);
        self.claims.insert(entry.claim.uid.clone(), entry);
    }

    /// Removes and returns the entry of a claim.
    pub(super) fn remove(&mut self, uid: &ClaimUid) -> Option<LedgerEntry> {
        let entry = self.claims.remove(uid)?;
        for one in &entry.uses {
            remove_from(&mut self.devices, &key(one), uid);
        }
        remove_from(&mut self.names, &name(&entry.claim), uid);
        Some(entry)
    }

    /// Replaces the devices of a claim and keeps the ID of its entry.
    pub(super) fn replace_uses(&mut self, uid: &ClaimUid, uses: Box<[DeviceUse]>) {
        if let Some(entry) = self.remove(uid) {
            self.insert_entry(LedgerEntry { uses, ..entry });
        }
    }

    /// Adds devices to those of a claim.
    pub(super) fn add_uses(&mut self, uid: &ClaimUid, uses: &[DeviceUse]) {
        let Some(entry) = self.claims.get(uid) else { return };
        let added: Vec<DeviceUse> = uses.iter().filter(|one| !entry.uses.contains(one)).cloned().collect();
        if !added.is_empty() {
            let all = entry.uses.iter().cloned().chain(added).collect();
            self.replace_uses(uid, all);
        }
    }

    /// Marks claims whose record was replaced by one of another claim with the same name. The missing record does not mean that
    /// they have been unprepared.
    pub(super) fn mark_replaced_records(&mut self, found: &[RecoveredClaim]) {
        let by_name: HashMap<(&Namespace, &ClaimName), &ClaimUid> =
            found.iter().map(|found| ((&found.claim.namespace, &found.claim.name), &found.claim.uid)).collect();
        for entry in self.claims.values_mut().filter(|entry| entry.is_on_disk()) {
            let named = by_name.get(&(&entry.claim.namespace, &entry.claim.name));
            if named.is_some_and(|uid| **uid != entry.claim.uid) {
                entry.state = State::Prepared(ClaimFiles::None);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.devices.is_empty() && self.names.is_empty()
    }
}

fn name(claim: &ClaimRef) -> (Namespace, ClaimName) {
    (claim.namespace.clone(), claim.name.clone())
}

fn add(uids: &mut Uids, uid: &ClaimUid) {
    if !uids.contains(uid) {
        uids.push(uid.clone());
    }
}

fn remove_from<K: Hash + Eq>(index: &mut HashMap<K, Uids>, key: &K, uid: &ClaimUid) {
    if let Some(uids) = index.get_mut(key) {
        uids.retain(|other| other != uid);
        if uids.is_empty() {
            index.remove(key);
        }
    }
}

fn key(used: &DeviceUse) -> (Arc<str>, Arc<str>) {
    (used.pool.clone(), used.device.clone())
}
