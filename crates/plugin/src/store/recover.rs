//! Recovers the store at start: completes or removes what a crash has left, and restores CDI specs that a reboot has deleted.
//!
//! Files of a claim in use are not touched: a valid record means that the claim is prepared, until a caller that can ask the API
//! server finds that it is gone. An entry that cannot be handled is reported and left alone, and does not stop the recovery.

use std::collections::HashSet;
use std::io;

use drakkar_cdi::{ClaimDevices, MetadataDevice};
use drakkar_client::ClaimRef;
use drakkar_metadata::decode;
use drakkar_metadata::name::{ClaimUid, RequestName};
use drakkar_metadata::path::HOST_SUBDIR;

use super::Store;
use super::directory_name::claim_from_directory;
use super::documents::{generation_of, is_blank, owner_of};
use super::error::StoreError;
use super::files::{Entry, Files};
use super::lock_budget::LockBudget;
use super::open_directory::{OpenDirectory, StoreCall};
use super::record::{self, DeviceUse, Record, RequestRecord};
use super::write::{Presence, WRITE_AHEAD_FILE, temporary_name};

/// The result of a recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The claims that are prepared according to the disk. They may no longer exist in the API server.
    pub(crate) claims: Vec<RecoveredClaim>,
    /// What could not be read or recovered.
    pub(crate) problems: Vec<StoreError>,
}

/// A claim that was prepared before the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoveredClaim {
    pub(crate) claim: ClaimRef,
    /// The devices that it uses exclusively. If a driver built with the Go framework prepared the claim, these are the devices
    /// that its files name, without shares and regardless of admin access.
    pub(crate) uses: Vec<DeviceUse>,
    /// Whether it was prepared during this boot, so that its containers may still run.
    pub(crate) is_of_this_boot: bool,
    /// Whether it has metadata files. Without them it has a record, for the CDI spec of its devices.
    pub(crate) has_metadata: bool,
    /// Whether it has a CDI spec for its devices.
    pub(crate) has_claim_spec: bool,
}

#[cfg(test)]
impl RecoveredClaim {
    /// Returns a claim that was prepared during this boot, with metadata and without edits.
    pub(crate) fn with_metadata(claim: &ClaimRef, uses: &[DeviceUse]) -> Self {
        let claim = claim.clone();
        Self { claim, uses: uses.to_vec(), is_of_this_boot: true, has_metadata: true, has_claim_spec: false }
    }
}

/// An entry among the directories of claims.
enum DirectoryKind {
    /// The directory of a prepared claim.
    Claim(OpenDirectory, Box<Record>),
    /// A leftover, which has been removed.
    Removed,
    /// An unknown entry, left alone. It can belong to a claim only if it is a directory.
    Foreign { is_directory: bool },
}

impl<F: Files> Store<F> {
    /// Restores a consistent state on disk. Must be called before any other method.
    pub(crate) fn recover(&self) -> Recovery {
        let mut recovery = Recovery::default();
        let mut all_claims_known = true;
        let lock_budget = LockBudget::for_recovery();
        let path = self.root_path().clone();
        let root = Entry::new(HOST_SUBDIR).and_then(|name| self.files.open_directory(&self.plugin, name));
        let found = root.and_then(|handle| Ok((self.files.list(&handle)?, handle)));
        let (names, root) = match found {
            Ok((names, handle)) => (names, OpenDirectory { handle, path }),
            Err(source) => {
                // Without a list of all claims, no spec is known to be orphaned.
                if source.kind() != io::ErrorKind::NotFound {
                    all_claims_known = false;
                    recovery.problems.push(StoreError::Root { path, source });
                }
                self.remove_orphaned_specs(&mut recovery, all_claims_known);
                return recovery;
            }
        };
        for name in names {
            match self.find_claim(&lock_budget, &root, &name) {
                Ok(DirectoryKind::Claim(claim_dir, record)) => {
                    self.restore(
                        StoreCall::new(&record.claim, &lock_budget),
                        &claim_dir,
                        &record,
                        &mut recovery.problems,
                    );
                    recovery.claims.push(self.recovered(*record));
                }
                Ok(DirectoryKind::Removed) => {}
                Ok(DirectoryKind::Foreign { is_directory }) => {
                    all_claims_known &= !is_directory;
                    let text = "not the directory of a claim; left alone";
                    let source = io::Error::new(io::ErrorKind::InvalidFilename, text);
                    recovery.problems.push(StoreError::Root { path: root.path.join(&name), source });
                }
                Err(problem) => {
                    all_claims_known = false;
                    recovery.problems.push(problem);
                }
            }
        }
        self.remove_orphaned_specs(&mut recovery, all_claims_known);
        recovery
    }

    /// Returns the claims that are prepared now, by any process, and what could not be read. Changes nothing.
    pub(crate) fn prepared_claims(&self) -> Result<Recovery, StoreError> {
        let path = self.root_path().clone();
        let root = Entry::new(HOST_SUBDIR).and_then(|name| self.files.open_directory(&self.plugin, name));
        let (names, root) = match root.and_then(|handle| Ok((self.files.list(&handle)?, handle))) {
            Ok((names, handle)) => (names, OpenDirectory { handle, path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovery::default()),
            Err(source) => return Err(StoreError::Root { path, source }),
        };
        let mut recovery = Recovery::default();
        let lock_budget = LockBudget::for_call();
        for directory in names {
            let Some(unidentified) = unidentified_claim(&directory) else { continue };
            let call = StoreCall::new(&unidentified, &lock_budget);
            let record = match self.open_claim_directory(call, &root, &directory) {
                Ok(Some(claim_dir)) => self.find_record(call, &claim_dir),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            match record {
                Ok(Some(record)) => recovery.claims.push(self.recovered(record)),
                Ok(None) => {}
                Err(problem) => recovery.problems.push(problem),
            }
        }
        Ok(recovery)
    }

    fn recovered(&self, record: Record) -> RecoveredClaim {
        let is_of_this_boot = record.boot == self.settings.boot;
        RecoveredClaim {
            has_metadata: !record.requests.is_empty(),
            has_claim_spec: !record.devices.is_empty(),
            claim: record.claim,
            uses: record.uses,
            is_of_this_boot,
        }
    }

    /// Finds the claim of a directory. A leftover directory without a claim is removed.
    fn find_claim(
        &self,
        lock_budget: &LockBudget,
        root: &OpenDirectory,
        directory: &str,
    ) -> Result<DirectoryKind, StoreError> {
        let Some(unidentified) = unidentified_claim(directory) else {
            return Ok(DirectoryKind::Foreign { is_directory: self.is_directory(root, directory) });
        };
        let call = StoreCall::new(&unidentified, lock_budget);
        let Some(claim_dir) = self.open_claim_directory(call, root, directory)? else {
            return Ok(DirectoryKind::Removed);
        };
        if let Some(record) = self.find_or_adopt_record(call, &claim_dir)? {
            return Ok(DirectoryKind::Claim(claim_dir, Box::new(record)));
        }
        // An interrupted prepare or unprepare, which was never reported as successful.
        self.remove_specs(call, &claim_dir, None)?;
        self.remove_claim_directory(call, root, &claim_dir, None)?;
        Ok(DirectoryKind::Removed)
    }

    /// Whether an unknown entry is a directory, or may be one.
    fn is_directory(&self, root: &OpenDirectory, name: &str) -> bool {
        let opened = Entry::new(name).and_then(|name| self.files.open_directory(&root.handle, name));
        opened.map_or_else(|error| error.kind() != io::ErrorKind::NotADirectory, |_| true)
    }

    /// Returns the record of a claim or, if a driver built with the Go framework wrote the files, a record made from them.
    pub(super) fn find_record(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
    ) -> Result<Option<Record>, StoreError> {
        match self.read_record(call, claim_dir)? {
            None => self.adopt_go_files(call, claim_dir),
            known => Ok(known),
        }
    }

    /// Like [`Self::find_record`], but also writes a record that was made from files of the Go framework.
    pub(super) fn find_or_adopt_record(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
    ) -> Result<Option<Record>, StoreError> {
        let known = self.read_record(call, claim_dir)?;
        if known.is_some() {
            return Ok(known);
        }
        let adopted = self.adopt_go_files(call, claim_dir)?;
        if let Some(record) = &adopted {
            self.write_record(call.for_claim(&record.claim), claim_dir, record)?;
        }
        Ok(adopted)
    }

    /// Makes a record from the files of a driver built with the Go framework: files without a record, but with specs. They are
    /// in use.
    fn adopt_go_files(&self, call: StoreCall<'_>, claim_dir: &OpenDirectory) -> Result<Option<Record>, StoreError> {
        let mut adopted: Option<Record> = None;
        for (request, content) in self.request_files(call, claim_dir)? {
            let Ok(decoded) = decode(&content) else { return Ok(None) };
            let metadata = decoded.metadata;
            let Some(claim) = owner_of(&metadata, claim_dir) else { return Ok(None) };
            let call = call.for_claim(&claim);
            let device = self.metadata_device(&claim, &request)?;
            let cdi = self.cdi();
            let name = device.file_name();
            let path = (cdi, name);
            if !call.io("stat", path, self.files.exists(&cdi.handle, call.entry(name, path)?))? {
                return Ok(None);
            }
            let record = adopted.get_or_insert_with(|| Record {
                claim: claim.clone(),
                pod_claim: metadata.pod_claim_name.and_then(|name| name.parse().ok()),
                boot: self.settings.boot.clone(),
                requests: Default::default(),
                uses: Vec::new(),
                devices: Vec::new(),
            });
            if record.claim != claim {
                return Ok(None);
            }
            let mut devices = Vec::new();
            for reference in metadata.requests {
                for device in reference.devices {
                    let used = DeviceUse {
                        pool: device.pool.as_str().into(),
                        device: device.name.as_str().into(),
                        share_id: None,
                    };
                    if !record.uses.contains(&used) {
                        record.uses.push(used);
                    }
                    devices.push((reference.name.clone(), device.pool, device.name));
                }
            }
            record.requests.insert(request, RequestRecord { devices, gated: false });
        }
        Ok(adopted)
    }

    /// Completes updates, removes leftovers, and writes missing specs.
    fn restore(&self, call: StoreCall<'_>, claim_dir: &OpenDirectory, record: &Record, problems: &mut Vec<StoreError>) {
        let is_known = |name: &String| {
            name == record::FILE || RequestName::new(name).is_ok_and(|name| record.requests.contains_key(&name))
        };
        match call.io("list", &claim_dir.path, self.files.list(&claim_dir.handle)) {
            Ok(names) => {
                let leftovers = names.iter().filter(|name| !is_known(name));
                problems.extend(leftovers.filter_map(|name| self.remove_request(call, claim_dir, name).err()));
            }
            Err(problem) => problems.push(problem),
        }
        // A spec that is the same is not written again: runtimes would reload all specs.
        problems.extend(self.write_claim_spec(call, record, Presence::Likely).err());
        let requests = record.requests.iter();
        problems.extend(
            requests.filter_map(|(request, prepared)| {
                self.restore_request(call, claim_dir, record, request, prepared).err()
            }),
        );
    }

    fn restore_request(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        record: &Record,
        request: &RequestName,
        prepared: &RequestRecord,
    ) -> Result<(), StoreError> {
        let device = self.metadata_device(&record.claim, request)?;
        let mut is_ready = false;
        // A missing directory is written by the next prepare. Until then the spec is removed, so that no container is created
        // with it.
        if let Some(request_dir) = self.open_request_directory(call, claim_dir, request)? {
            self.finish_update(call, &request_dir)?;
            let leftover = temporary_name(WRITE_AHEAD_FILE);
            let path = (&request_dir, leftover.as_str());
            call.io("remove", path, self.files.remove_file(&request_dir.handle, call.entry(&leftover, path)?))?;
            let content = self.read_metadata(call, &request_dir)?;
            let generation = generation_of(&content);
            self.known.read(&record.claim.uid, request, generation);
            let is_complete = is_blank(&content) || generation.is_some();
            is_ready = is_complete && !prepared.gated;
        }
        if is_ready {
            let spec = self.cdi_spec(&record.claim, record.pod_claim.as_ref(), &claim_dir.path, &device)?;
            self.write_spec(call, self.cdi(), device.file_name(), &spec, Presence::Likely)
        } else {
            self.remove_spec(call, self.cdi(), device.file_name())
        }
    }

    /// Removes temporary files of our specs and, if all claims are known, the specs that belong to none of them.
    fn remove_orphaned_specs(&self, recovery: &mut Recovery, all_claims_known: bool) {
        let path = &self.settings.cdi_directory;
        let found = self.files.open_root(path).and_then(|cdi| Ok((self.files.list(&cdi)?, cdi)));
        let (names, cdi) = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(source) => return recovery.problems.push(StoreError::Root { path: path.clone(), source }),
        };
        let uid = |found: &RecoveredClaim| found.claim.uid.clone();
        let with_metadata: HashSet<ClaimUid> = recovery.claims.iter().map(uid).collect();
        let with_spec: HashSet<ClaimUid> =
            recovery.claims.iter().filter(|found| found.has_claim_spec).map(uid).collect();
        for name in names {
            let final_name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
            let file_name = final_name.unwrap_or(&name);
            let (driver, is_expected) = if let Some(device) = MetadataDevice::from_file_name(file_name) {
                (device.driver().clone(), with_metadata.contains(device.claim_uid()))
            } else if let Some(devices) = ClaimDevices::from_file_name(file_name) {
                (devices.driver().clone(), with_spec.contains(devices.claim_uid()))
            } else {
                continue;
            };
            let is_orphaned = all_claims_known && !is_expected;
            if driver == self.settings.driver && (final_name.is_some() || is_orphaned) {
                let removed = Entry::new(&name).and_then(|name| self.files.remove_file(&cdi, name));
                if let Err(source) = removed {
                    recovery.problems.push(StoreError::Root { path: path.join(&name), source });
                }
            }
        }
    }
}

/// Returns the claim of a directory whose record has not been read yet, with a placeholder for its UID, for error messages.
fn unidentified_claim(directory: &str) -> Option<ClaimRef> {
    let (namespace, name) = claim_from_directory(directory)?;
    Some(ClaimRef { namespace, name, uid: ClaimUid::new("unknown").ok()? })
}
