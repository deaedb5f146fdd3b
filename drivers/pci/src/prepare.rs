//! Preparing the devices of a claim, and taking it back.
//!
//! [`DeviceManager`] owns what the driver changes in the kernel: drivers of functions, the number of virtual functions, mediated
//! devices, and the CDI specs that give them to containers. A claim is prepared as a whole or not at all.
//!
//! # The order of writes
//!
//! | call | order | why |
//! |---|---|---|
//! | prepare | journal, virtual functions, (journal,) mediated devices, drivers, CDI spec, journal | nothing is changed that the journal does not name; a virtual function has an address only when it exists, so the journal is written again before its driver changes; no spec names a node that does not exist |
//! | unprepare | journal, CDI spec, drivers, mediated devices, virtual functions, remove journal | no new container gets what is taken away; the journal goes when nothing is left to do |
//!
//! A prepare that fails is taken back at once; one that was interrupted, when [`DeviceManager::recover`] runs. An interrupted
//! unprepare goes on. What cannot be done because the kernel does not return from a write, or refuses it, stays in the journal
//! and is tried again with the next call for that claim, by [`DeviceManager::retry`] and at the next start. A device therefore is
//! either prepared, or as it was, or named in an error and in the journal.
//!
//! A process that is killed while the kernel has not returned from one of its writes takes that knowledge along. The next process
//! notices it where the kernel makes readers of `driver_override` wait for the device's lock, and leaves the device for later. Where
//! it does not, and the write had no effect yet, everything is found as it was, and the effect comes later.
//!
//! # Claims that share something
//!
//! A device belongs to one claim, and so does an IOMMU group as soon as one of its members is for user space. The virtual functions of
//! a device can be needed by several claims: each claim's record names them with their first state, and the last claim puts them back.
//! Calls for claims that share a group, a physical function or a parent wait for each other; others do not, so that a write that
//! hangs stops nobody else.
//!
//! # Callers
//!
//! All methods block: on the disk, and on the kernel for as long as [`Sysfs`] waits for writes and reads.

mod apply;
mod conflict;
mod error;
mod plan;
mod recover;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_cdi::QualifiedName;
use drakkar_driver_kit::cdi::{SpecSettings, Specs};
use drakkar_metadata::name::{ClaimUid, DriverName};
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{PciAddress, Sysfs};

pub use self::error::PrepareError;
pub use self::recover::{Recovery, RecoveryProblem};
use self::turns::{Key, Turns};
use crate::journal::{Journal, Phase, Record};
use crate::mode::{IommuBackend, Mode};
use crate::target::Target;
use drakkar_driver_kit::files::{Files, SystemFiles};
use drakkar_driver_kit::journal::{boot_id, boot_id_path};

/// The class of the CDI devices.
const CLASS: &str = "device";
/// The driver that hands devices to user space.
const VFIO_PCI: &str = "vfio-pci";

/// The settings of a [`DeviceManager`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerSettings {
    /// The name of the driver.
    pub driver: DriverName,
    /// The directory of the journal, which is made. Nothing else may be in it.
    pub state_directory: PathBuf,
    /// The directory of CDI specs, which is made.
    pub cdi_directory: PathBuf,
    /// The host's `/dev` as the container runtime sees it: `/dev`, except in a simulation.
    pub host_dev: PathBuf,
}

/// A device that a claim wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// What it is.
    pub target: Target,
    /// The driver that it is to have.
    pub mode: Mode,
    /// The nodes of VFIO that containers get.
    pub iommu_backend: IommuBackend,
    /// The IOMMU group that it was published with. If it is in another one now, the claim is refused. `None`: any.
    pub iommu_group: Option<u32>,
    /// The members of its IOMMU group that may be taken from their drivers for it.
    pub companions: Vec<PciAddress>,
    /// For a virtual function: how many to make if it does not exist.
    pub virtual_functions: u16,
}

impl DeviceRequest {
    /// Returns a request for a device for user space, alone in its group.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            mode: Mode::Vfio,
            iommu_backend: IommuBackend::Auto,
            iommu_group: None,
            companions: Vec::new(),
            virtual_functions: 0,
        }
    }
}

/// A device that is ready for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// What it is.
    pub target: Target,
    /// The kind of driver that it has.
    pub mode: Mode,
    /// The CDI device that gives its nodes to a container. `None`: it has no nodes.
    pub cdi_id: Option<QualifiedName>,
    /// Its PCI address, unless it is a mediated device.
    pub address: Option<PciAddress>,
    /// Its UUID, if it is a mediated device.
    pub mdev_uuid: Option<String>,
    /// Its IOMMU group.
    pub iommu_group: Option<u32>,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// The device nodes in a container that gets it.
    pub nodes: Vec<PathBuf>,
    /// The other members of its group that were taken from their drivers for it.
    pub companions: Vec<PciAddress>,
}

/// A device that a claim holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldDevice {
    /// The claim.
    pub claim: ClaimRef,
    /// What it is.
    pub target: Target,
    /// Its PCI address, if it is known and the device is not a mediated one.
    pub address: Option<PciAddress>,
    /// Its UUID, if it is a mediated device.
    pub mdev_uuid: Option<String>,
    /// Whether it is prepared. Otherwise it is being worked on, or could not be taken back yet.
    pub is_prepared: bool,
}

/// What became of unfinished claims.
#[derive(Debug, Default)]
pub struct Retry {
    /// The claims that are taken back.
    pub taken_back: Vec<ClaimRef>,
    /// The claims that are not, and why.
    pub failed: Vec<(ClaimRef, PrepareError)>,
}

/// The devices of claims.
#[derive(Debug)]
pub struct DeviceManager {
    sysfs: Sysfs,
    journal: Journal,
    specs: Specs,
    /// The boot of the machine.
    boot: String,
    /// The records as they are on disk, or about to be.
    records: Mutex<BTreeMap<ClaimUid, Record>>,
    turns: Turns,
}

impl DeviceManager {
    /// Makes the directories and reads which boot of the machine this is. Call [`DeviceManager::recover`] before anything else.
    pub fn open(sysfs: Sysfs, settings: &ManagerSettings) -> Result<Self, PrepareError> {
        Self::open_with(sysfs, settings, Arc::new(SystemFiles))
    }

    pub(crate) fn open_with(
        sysfs: Sysfs,
        settings: &ManagerSettings,
        files: Arc<dyn Files>,
    ) -> Result<Self, PrepareError> {
        let proc = &sysfs.roots().proc;
        let boot = boot_id(proc).map_err(|source| PrepareError::Open { path: boot_id_path(proc), source })?;
        let ManagerSettings { driver, state_directory, cdi_directory, host_dev } = settings.clone();
        for path in [&state_directory, &cdi_directory] {
            let made = files.make_directory(path);
            made.map_err(|source| PrepareError::Open { path: path.clone(), source })?;
        }
        let dev = sysfs.roots().dev.clone();
        Ok(Self {
            journal: Journal::new(files.clone(), state_directory),
            specs: Specs::new(files, SpecSettings { directory: cdi_directory, driver, class: CLASS, dev, host_dev }),
            boot,
            records: Mutex::default(),
            turns: Turns::default(),
            sysfs,
        })
    }

    /// Prepares the devices of a claim. Again for the same claim, it gives the same answer and writes nothing that is as it
    /// should be. If it fails, everything is as it was before, or the error says that taking it back failed too.
    pub fn prepare(&self, claim: &ClaimRef, requests: &[DeviceRequest]) -> Result<Vec<PreparedDevice>, PrepareError> {
        let _claim_turn = self.turns.wait_for_claim(claim)?;
        let known = self.record(&claim.uid);
        let mut keys = BTreeSet::new();
        requests.iter().for_each(|request| self.add_keys(&request.target, &mut keys));
        known.iter().for_each(|record| self.add_record_keys(record, &mut keys));
        let turn = self.turns.wait(claim, keys)?;

        if let Some(mut record) = known {
            if record.phase == Phase::Prepared {
                self.require_same_devices(&record, requests)?;
                return self.confirm(&mut record);
            }
            // Of a prepare or an unprepare that failed.
            self.take_back(&record)?;
        }
        let mut record = self.plan(claim, requests)?;
        self.remember(&record);
        self.apply(&mut record, requests, &turn).map_err(|source| match self.take_back(&record) {
            Ok(()) => source,
            Err(rollback) => PrepareError::Rollback { source: Box::new(source), rollback: Box::new(rollback) },
        })
    }

    /// Takes back everything that was done for a claim. A claim that is not known is not an error.
    pub fn unprepare(&self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let Some(record) = self.record(uid) else { return self.forget_unknown(uid) };
        let _claim_turn = self.turns.wait_for_claim(&record.claim)?;
        let Some(mut record) = self.record(uid) else { return Ok(()) };
        let mut keys = BTreeSet::new();
        self.add_record_keys(&record, &mut keys);
        let _turn = self.turns.wait(&record.claim, keys)?;
        if record.phase == Phase::Prepared {
            record.phase = Phase::Unpreparing;
            self.write_journal(&record)?;
            self.remember(&record);
        }
        self.take_back(&record)
    }

    /// Returns whether there is anything for [`DeviceManager::retry`].
    pub fn has_unfinished(&self) -> bool {
        self.records().values().any(|record| record.phase != Phase::Prepared)
    }

    /// Tries again to take back what could not be taken back before. For a timer: a write that hung may have returned. Claims that
    /// another call works on are left to it.
    pub fn retry(&self) -> Retry {
        let unfinished = |record: &&Record| record.phase != Phase::Prepared;
        let claims: Vec<ClaimRef> =
            self.records().values().filter(unfinished).map(|record| record.claim.clone()).collect();
        let mut retry = Retry::default();
        for claim in claims {
            match self.retry_claim(&claim) {
                Ok(true) => retry.taken_back.push(claim),
                Ok(false) | Err(PrepareError::Busy { .. }) => {}
                Err(error) => retry.failed.push((claim, error)),
            }
        }
        retry
    }

    /// Takes back an unfinished claim. Returns whether it was one.
    fn retry_claim(&self, claim: &ClaimRef) -> Result<bool, PrepareError> {
        let _claim_turn = self.turns.take_now(claim, BTreeSet::from([Key::Claim(claim.uid.to_string())]))?;
        // A prepare that was going on is finished now.
        let Some(record) = self.record(&claim.uid).filter(|record| record.phase != Phase::Prepared) else {
            return Ok(false);
        };
        let mut keys = BTreeSet::new();
        self.add_record_keys(&record, &mut keys);
        let _turn = self.turns.take_now(claim, keys)?;
        self.take_back(&record).map(|()| true)
    }

    /// Returns the devices that claims hold.
    pub fn held(&self) -> Vec<HeldDevice> {
        let records = self.records();
        let devices = records.values().flat_map(|record| record.devices.iter().map(move |device| (record, device)));
        devices
            .map(|(record, device)| HeldDevice {
                claim: record.claim.clone(),
                target: device.target.clone(),
                address: device.address,
                mdev_uuid: device.uuid.clone(),
                is_prepared: record.phase == Phase::Prepared,
            })
            .collect()
    }

    /// Returns the drivers that functions had before they were changed for claims.
    pub fn former_drivers(&self) -> BTreeMap<PciAddress, Option<String>> {
        let records = self.records();
        let functions = records.values().flat_map(|record| &record.functions);
        functions.map(|function| (function.address, function.former_driver.clone())).collect()
    }

    /// Returns the devices of a prepared claim.
    pub fn prepared(&self, uid: &ClaimUid) -> Option<Vec<PreparedDevice>> {
        let record = self.record(uid).filter(|record| record.phase == Phase::Prepared)?;
        self.answer(&record).ok()
    }

    fn require_same_devices(&self, record: &Record, requests: &[DeviceRequest]) -> Result<(), PrepareError> {
        let known: BTreeSet<&Target> = record.devices.iter().map(|device| &device.target).collect();
        let wanted: BTreeSet<&Target> = requests.iter().map(|request| &request.target).collect();
        if known == wanted {
            return Ok(());
        }
        let prepared = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(PrepareError::Differs { claim: Box::new(record.claim.clone()), prepared })
    }

    /// Removes the files of a claim without a valid record.
    fn forget_unknown(&self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let path = self.journal.path(uid);
        self.journal.remove(uid).map_err(|source| PrepareError::Open { path: path.clone(), source })?;
        self.specs.remove(uid).map_err(|error| PrepareError::Open { path, source: std::io::Error::other(error) })
    }

    fn write_journal(&self, record: &Record) -> Result<(), PrepareError> {
        let path = || self.journal.path(&record.claim.uid);
        let claim = || Box::new(record.claim.clone());
        self.journal.write(record).map_err(|source| PrepareError::Journal { claim: claim(), path: path(), source })
    }

    fn record(&self, uid: &ClaimUid) -> Option<Record> {
        self.records().get(uid).cloned()
    }

    /// Keeps a record for other claims to see.
    fn remember(&self, record: &Record) {
        self.records().insert(record.claim.uid.clone(), record.clone());
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<ClaimUid, Record>> {
        // The map is whole after every operation on it, also if a thread panicked.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
