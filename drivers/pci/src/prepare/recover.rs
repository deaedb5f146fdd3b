//! What a driver does at its start with what an earlier process has left.
//!
//! | record | what happens |
//! |---|---|
//! | of an earlier boot | it is removed with its CDI spec: the kernel has forgotten everything |
//! | interrupted prepare | taken back; the kubelet prepares again if the pod is still there |
//! | interrupted unprepare | goes on |
//! | prepared, claim exists | kept, and its CDI spec written if it is missing |
//! | prepared, claim is gone | taken back |
//! | torn, foreign, a link | reported and left alone; a new prepare of that claim replaces it, an unprepare removes it |

use std::collections::BTreeSet;
use std::fmt;

use drakkar_driver_kit::cdi::CdiError;
use drakkar_metadata::name::ClaimUid;
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{Binding, PciAddress};

use super::{DeviceManager, PrepareError, VFIO_PCI};
use crate::journal::{JournalProblem, Phase};

/// What was found at the start, and what became of it.
#[derive(Debug, Default)]
pub struct Recovery {
    /// The claims that are prepared.
    pub prepared: Vec<ClaimRef>,
    /// The claims that were taken back: interrupted ones, and those that do not exist any more.
    pub taken_back: Vec<ClaimRef>,
    /// The claims of an earlier boot, of which nothing is left.
    pub earlier_boot: Vec<ClaimRef>,
    /// What could not be done or understood.
    pub problems: Vec<RecoveryProblem>,
    /// Functions that may be bound to `vfio-pci` by a record that is damaged: their override says so and no record does.
    pub unexplained: Vec<PciAddress>,
}

/// Something that could not be done or understood at the start.
#[derive(Debug)]
pub enum RecoveryProblem {
    /// A file of the journal.
    Journal(JournalProblem),
    /// A claim whose devices could not be taken back, or whose CDI spec could not be written. It is tried again.
    Claim(PrepareError),
    /// The CDI directory.
    Cdi(CdiError),
}

impl fmt::Display for RecoveryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal(problem) => problem.fmt(f),
            Self::Claim(error) => error.fmt(f),
            Self::Cdi(error) => error.fmt(f),
        }
    }
}

impl DeviceManager {
    /// Brings everything that an earlier process has left to an end. `exists` tells which claims still exist; a claim about which
    /// nothing is known exists. To be called once, before anything else.
    pub fn recover(&self, exists: impl Fn(&ClaimRef) -> bool) -> Result<Recovery, PrepareError> {
        let (records, problems) = self
            .journal
            .read_all()
            .map_err(|source| PrepareError::Open { path: self.journal.directory().to_owned(), source })?;
        let mut recovery = Recovery::default();
        let is_damaged = !problems.is_empty();
        recovery.problems.extend(problems.into_iter().map(RecoveryProblem::Journal));
        // All of them before the first is taken back: what another claim needs stays.
        let (records, earlier): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| record.boot == self.boot);
        records.iter().for_each(|record| self.remember(record));
        for record in earlier {
            match self.forget_unknown(&record.claim.uid) {
                Ok(()) => recovery.earlier_boot.push(record.claim),
                Err(error) => recovery.problems.push(RecoveryProblem::Claim(error)),
            }
        }
        for record in records {
            let is_kept = record.phase == Phase::Prepared && exists(&record.claim);
            let outcome = if is_kept { self.write_spec(&record) } else { self.unprepare(&record.claim.uid) };
            match outcome {
                Err(error) => recovery.problems.push(RecoveryProblem::Claim(error)),
                Ok(()) if is_kept => recovery.prepared.push(record.claim),
                Ok(()) => recovery.taken_back.push(record.claim),
            }
        }
        if is_damaged {
            recovery.unexplained = self.unexplained();
        } else {
            let known: BTreeSet<ClaimUid> = self.records().keys().cloned().collect();
            recovery.problems.extend(self.specs.remove_orphans(&known).err().map(RecoveryProblem::Cdi));
        }
        Ok(recovery)
    }

    /// Returns the functions whose override is `vfio-pci` although no record says so.
    fn unexplained(&self) -> Vec<PciAddress> {
        let entries = std::fs::read_dir(self.sysfs.roots().pci_devices()).into_iter().flatten().flatten();
        let addresses = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<PciAddress>().ok());
        let records = self.records();
        let known: BTreeSet<PciAddress> =
            records.values().flat_map(|record| &record.functions).map(|function| function.address).collect();
        let mut unexplained: Vec<PciAddress> = addresses
            .filter(|address| !known.contains(address))
            .filter(|address| {
                let binding = Binding::read(&self.sysfs, *address).ok().flatten();
                binding.is_some_and(|binding| binding.driver_override.as_deref() == Some(VFIO_PCI))
            })
            .collect();
        unexplained.sort_unstable();
        unexplained
    }
}
