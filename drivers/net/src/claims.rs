//! The claims of this node: what they reserve, and where their interfaces are.
//!
//! [`Claims`] owns the journal. A claim is prepared by the kubelet, its interfaces are attached when the runtime has made the pod's
//! sandbox and brought back when the sandbox stops, and the claim is unprepared by the kubelet. Each of these can be late, repeated
//! or missing; in whatever order they come, an interface is on the host as it was, in one pod, or named in the journal.
//!
//! # The order of writes
//!
//! | call | order | why |
//! |---|---|---|
//! | prepare | journal, binding of devices for user space | what is reserved is known to others before anybody uses it |
//! | attach | journal (with what the interface was), kernel, journal | nothing is changed that the journal does not name |
//! | detach | journal, kernel, journal | after a crash it goes on |
//! | unprepare | as detach, unbinding, remove journal | the journal goes when nothing is left to do |
//!
//! An attach that fails is taken back at once, with those of the same pod that had succeeded; one that was interrupted, when
//! [`Claims::recover`] runs. What cannot be taken back stays in the journal and is tried again by the next call for that claim
//! and with [`Claims::left_over_sandboxes`].
//!
//! # Callers
//!
//! All methods block: on the disk, and on the kernel. Calls for the same claim wait for each other ([`turns`]); calls of one pod take
//! all of its claims at once.

mod attach;
mod error;
mod prepare;
mod recover;
#[cfg(test)]
pub(crate) mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use drakkar_driver_kit::files::{Files, SystemFiles};
use drakkar_driver_kit::journal::boot_id;
use drakkar_metadata::name::ClaimUid;

pub(crate) use self::attach::{AttachedClaim, Patience};
pub(crate) use self::error::ClaimsError;
pub(crate) use self::prepare::{Prepared, Wanted, base};
pub(crate) use self::recover::Recovery;
use self::turns::Turns;
use crate::attacher::Attacher;
use crate::binder::Binder;
use crate::journal::{Journal, Phase, Place, Record};
use crate::plan::{HeldInterface, Holding};

/// The claims of this node.
#[derive(Debug)]
pub(crate) struct Claims {
    attacher: Arc<dyn Attacher>,
    binder: Arc<dyn Binder>,
    journal: Journal,
    /// The boot of the machine.
    boot: String,
    /// The records as they are on disk, or about to be. While the disk takes nothing, what is brought back is so here first.
    records: Mutex<BTreeMap<ClaimUid, Record>>,
    /// The claims whose records the disk did not take.
    unwritten: Mutex<BTreeSet<ClaimUid>>,
    turns: Turns,
}

/// How many devices claims have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) devices: usize,
    /// Interfaces in pods.
    pub(crate) attached: usize,
}

impl Claims {
    /// Opens the journal in a directory. `proc` is the procfs, which names the boot of the machine. Call [`Claims::recover`] before
    /// anything else.
    pub(crate) fn open(
        attacher: Arc<dyn Attacher>,
        binder: Arc<dyn Binder>,
        directory: PathBuf,
        proc: &Path,
    ) -> Result<Self, ClaimsError> {
        Self::open_with(attacher, binder, directory, Arc::new(SystemFiles), proc)
    }

    pub(crate) fn open_with(
        attacher: Arc<dyn Attacher>,
        binder: Arc<dyn Binder>,
        directory: PathBuf,
        files: Arc<dyn Files>,
        proc: &Path,
    ) -> Result<Self, ClaimsError> {
        let boot = boot_id(proc).map_err(|source| ClaimsError::Open { path: proc.to_owned(), source })?;
        let made = files.make_directory(&directory);
        made.map_err(|source| ClaimsError::Open { path: directory.clone(), source })?;
        let journal = Journal::new(files, directory);
        Ok(Self {
            attacher,
            binder,
            journal,
            boot,
            records: Mutex::default(),
            unwritten: Mutex::default(),
            turns: Turns::default(),
        })
    }

    /// Returns whether a claim of a pod has interfaces. Does not block.
    pub(crate) fn has_interfaces_for(&self, pod_uid: &str) -> bool {
        self.records().values().any(|record| record.is_for(pod_uid) && record.interfaces().next().is_some())
    }

    /// Returns whether interfaces are, or may be, in a sandbox. Does not block.
    pub(crate) fn is_in_use(&self, sandbox_id: &str) -> bool {
        self.records().values().any(|record| record.is_in(sandbox_id))
    }

    /// Returns the claims with interfaces that are, or may be, in a sandbox.
    pub(crate) fn in_sandbox(&self, sandbox_id: &str) -> Vec<Record> {
        self.records().values().filter(|record| record.is_in(sandbox_id)).cloned().collect()
    }

    /// Returns the record of a claim.
    pub(crate) fn find(&self, uid: &ClaimUid) -> Option<Record> {
        self.record(uid)
    }

    /// Returns the record of a claim by its name. Does not block.
    pub(crate) fn find_by_name(&self, namespace: &str, name: &str) -> Option<Record> {
        let records = self.records();
        let is_it =
            |record: &&Record| record.claim.name.as_str() == name && record.claim.namespace.as_str() == namespace;
        records.values().find(is_it).cloned()
    }

    /// Returns the UIDs of all claims.
    pub(crate) fn uids(&self) -> BTreeSet<ClaimUid> {
        self.claims(|_| true)
    }

    /// Returns the records of a pod's claims.
    pub(crate) fn of_pod(&self, pod_uid: &str) -> Vec<Record> {
        self.records().values().filter(|record| record.is_for(pod_uid)).cloned().collect()
    }

    /// Returns the devices that claims have, for those who publish them.
    pub(crate) fn held(&self) -> Vec<HeldInterface> {
        let records = self.records();
        let devices = records.values().flat_map(|record| &record.devices);
        let held = devices.map(|device| HeldInterface {
            device: device.device.clone(),
            identity: device.identity.clone(),
            holding: match device.interface() {
                None => Holding::Dpdk,
                Some(_) if device.is_shared => Holding::Shared,
                Some(_) => Holding::Moved,
            },
            facts: Some(device.facts.clone()),
            is_gone: device.interface().is_some_and(|interface| interface.is_lost),
        });
        held.collect()
    }

    /// Returns where the interfaces of claims are that are in pods, each with the name of its device. Those on top of a shared interface
    /// are not among them.
    pub(crate) fn places(&self) -> Vec<(String, Place)> {
        let records = self.records();
        let devices = records.values().flat_map(|record| &record.devices).filter(|device| !device.is_shared);
        let places = devices.filter_map(|device| match &device.interface()?.phase {
            Phase::Attached { place, .. } => Some((device.device.clone(), place.clone())),
            _ => None,
        });
        places.collect()
    }

    /// Returns how many devices claims have, and how many of them are interfaces in pods.
    pub(crate) fn count(&self) -> Count {
        let records = self.records();
        let interfaces = records.values().flat_map(Record::interfaces);
        let attached = interfaces.filter(|interface| matches!(interface.phase, Phase::Attached { .. })).count();
        Count { devices: records.values().map(|record| record.devices.len()).sum(), attached }
    }

    fn write(&self, record: &Record) -> Result<(), ClaimsError> {
        let written = self.journal.write(record);
        let path = || self.journal.path(&record.claim.uid);
        written.map_err(|source| ClaimsError::Journal {
            claim: Box::new(record.claim.clone()),
            path: path(),
            source,
        })?;
        self.remember(record);
        self.unwritten().remove(&record.claim.uid);
        Ok(())
    }

    /// Writes the records that the disk did not take, except those of claims that a call works on.
    pub(crate) fn write_unwritten(&self) {
        let unwritten = self.unwritten().clone();
        for uid in unwritten {
            let Some(_turn) = self.turns.wait([uid.clone()].into(), Instant::now()) else { continue };
            // It may be written, or unprepared, by now.
            let Some(record) = self.record(&uid).filter(|_| self.unwritten().contains(&uid)) else { continue };
            if let Err(error) = self.write(&record) {
                tracing::warn!(%error, "journal not written, trying again");
            }
        }
    }

    fn record(&self, uid: &ClaimUid) -> Option<Record> {
        self.records().get(uid).cloned()
    }

    /// Keeps a record for other calls to see.
    fn remember(&self, record: &Record) {
        self.records().insert(record.claim.uid.clone(), record.clone());
    }

    /// Keeps a record that the disk does not take for other calls to see, and for [`Self::write_unwritten`].
    fn remember_unwritten(&self, record: &Record) {
        self.remember(record);
        self.unwritten().insert(record.claim.uid.clone());
    }

    fn forget(&self, uid: &ClaimUid) {
        self.records().remove(uid);
        self.unwritten().remove(uid);
    }

    /// Returns the claims that satisfy a condition.
    fn claims(&self, is_wanted: impl Fn(&Record) -> bool) -> BTreeSet<ClaimUid> {
        let records = self.records();
        records.values().filter(|record| is_wanted(record)).map(|record| record.claim.uid.clone()).collect()
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<ClaimUid, Record>> {
        // The map is whole after every operation on it, also if a thread panicked.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwritten(&self) -> MutexGuard<'_, BTreeSet<ClaimUid>> {
        // As with records.
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
