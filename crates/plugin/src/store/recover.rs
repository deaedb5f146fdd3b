//! What a start does with what it finds: finishes or removes what a crash left, and puts back what a reboot wiped.
//!
//! Nothing of a claim in use is touched: a record that is whole stands for its claim until somebody who can ask the
//! API says that the claim is gone. One bad entry is reported and left alone, and keeps nothing else from being done.

use std::collections::HashSet;
use std::io;

use drakkar_cdi::MetadataDevice;
use drakkar_client::ClaimRef;
use drakkar_metadata::decode;
use drakkar_metadata::name::{ClaimUid, RequestName};
use drakkar_metadata::path::HOST_SUBDIR;

use super::Store;
use super::directory::claim_of;
use super::documents::{generation_of, is_blank, owner_of};
use super::error::StoreError;
use super::files::{Entry, Files};
use super::patience::LockPatience;
use super::place::{Place, Step};
use super::record::{self, DeviceUse, Record, RequestRecord};
use super::write::{NEXT, Presence, temporary};

/// What a start found.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The claims that are prepared, as far as the disk knows. Whether the API still has them is to be asked.
    pub(crate) claims: Vec<RecoveredClaim>,
    /// What could not be brought in order.
    pub(crate) problems: Vec<StoreError>,
}

/// A claim that was prepared before the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoveredClaim {
    pub(crate) claim: ClaimRef,
    /// The devices that it keeps others from using. Of a claim that a driver built on the Go framework prepared, they
    /// are those that its files name: these files do not tell shares and admin access.
    pub(crate) uses: Vec<DeviceUse>,
    /// Whether its containers can still run: none outlives the boot that it was prepared in.
    pub(crate) is_of_this_boot: bool,
}

/// What an entry among the directories of claims turned out to be.
enum Found {
    /// A claim that is prepared.
    Claim(Place, Record),
    /// Rubbish, which is gone now.
    Nothing,
    /// Nothing of ours, left alone. It can be a claim's only if it is a directory.
    Foreign { is_directory: bool },
}

impl<F: Files> Store<F> {
    /// Brings everything on disk into a state between two calls. To be called before any other.
    pub(crate) fn recover(&self) -> Recovery {
        let mut recovery = Recovery::default();
        let mut knows_all = true;
        let patience = LockPatience::of_recovery();
        let path = self.root_path();
        let root = Entry::new(HOST_SUBDIR).and_then(|name| self.files.open_directory(&self.plugin, name));
        let found = root.and_then(|directory| Ok((self.files.list(&directory)?, directory)));
        let (names, root) = match found {
            Ok((names, directory)) => (names, Place { directory, path }),
            Err(source) => {
                // Without knowing which claims there are, no spec can be said to be nobody's.
                if source.kind() != io::ErrorKind::NotFound {
                    knows_all = false;
                    recovery.problems.push(StoreError::Root { path, source });
                }
                self.remove_specs_of_nobody(&mut recovery, knows_all);
                return recovery;
            }
        };
        for name in names {
            match self.find_claim(&patience, &root, &name) {
                Ok(Found::Claim(place, record)) => {
                    self.restore(Step::new(&record.claim, &patience), &place, &record, &mut recovery.problems);
                    recovery.claims.push(self.recovered(record));
                }
                Ok(Found::Nothing) => {}
                Ok(Found::Foreign { is_directory }) => {
                    knows_all &= !is_directory;
                    let text = "not the directory of a claim; left alone";
                    let source = io::Error::new(io::ErrorKind::InvalidFilename, text);
                    recovery.problems.push(StoreError::Root { path: root.path.join(&name), source });
                }
                Err(problem) => {
                    knows_all = false;
                    recovery.problems.push(problem);
                }
            }
        }
        self.remove_specs_of_nobody(&mut recovery, knows_all);
        recovery
    }

    /// The claims that are prepared now, in whatever process, and what could not be read. Changes nothing.
    pub(crate) fn prepared(&self) -> Result<Recovery, StoreError> {
        let path = self.root_path();
        let root = Entry::new(HOST_SUBDIR).and_then(|name| self.files.open_directory(&self.plugin, name));
        let (names, root) = match root.and_then(|directory| Ok((self.files.list(&directory)?, directory))) {
            Ok((names, directory)) => (names, Place { directory, path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovery::default()),
            Err(source) => return Err(StoreError::Root { path, source }),
        };
        let mut recovery = Recovery::default();
        let patience = LockPatience::of_call();
        for directory in names {
            let (Some((namespace, name)), Ok(uid)) = (claim_of(&directory), ClaimUid::new("unknown")) else { continue };
            let nobody = ClaimRef { namespace, name, uid };
            let step = Step::new(&nobody, &patience);
            let record = match self.open_place(step, &root, &directory) {
                Ok(Some(place)) => self.known(step, &place),
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
        RecoveredClaim { claim: record.claim, uses: record.uses, is_of_this_boot }
    }

    /// Whose directory this is. One that is nobody's is removed.
    fn find_claim(&self, patience: &LockPatience, root: &Place, directory: &str) -> Result<Found, StoreError> {
        let (Some((namespace, name)), Ok(uid)) = (claim_of(directory), ClaimUid::new("unknown")) else {
            return Ok(Found::Foreign { is_directory: self.is_directory(root, directory) });
        };
        let nobody = ClaimRef { namespace, name, uid };
        let step = Step::new(&nobody, patience);
        let Some(place) = self.open_place(step, root, directory)? else { return Ok(Found::Nothing) };
        if let Some(record) = self.take_over(step, &place)? {
            return Ok(Found::Claim(place, record));
        }
        // Half of a prepare or of an unprepare: nobody has been told of it.
        self.remove_specs(step, &place, None)?;
        self.remove_place(step, root, &place, None)?;
        Ok(Found::Nothing)
    }

    /// Whether an entry that has no claim's name is a directory, or may be one.
    fn is_directory(&self, root: &Place, name: &str) -> bool {
        let opened = Entry::new(name).and_then(|name| self.files.open_directory(&root.directory, name));
        opened.map_or_else(|error| error.kind() != io::ErrorKind::NotADirectory, |_| true)
    }

    /// What is known of a prepared claim: its record or, if a driver on the Go framework wrote it, what its files tell.
    pub(super) fn known(&self, step: Step<'_>, place: &Place) -> Result<Option<Record>, StoreError> {
        match self.read_record(step, place)? {
            None => self.adopt(step, place),
            known => Ok(known),
        }
    }

    /// The same, with a record from now on.
    pub(super) fn take_over(&self, step: Step<'_>, place: &Place) -> Result<Option<Record>, StoreError> {
        let known = self.read_record(step, place)?;
        if known.is_some() {
            return Ok(known);
        }
        let adopted = self.adopt(step, place)?;
        if let Some(record) = &adopted {
            self.write_record(step.of(&record.claim), place, record)?;
        }
        Ok(adopted)
    }

    /// Files without a record whose specs are there are those of a driver that was built on the Go framework: they
    /// are in use, and get a record.
    fn adopt(&self, step: Step<'_>, place: &Place) -> Result<Option<Record>, StoreError> {
        let mut adopted: Option<Record> = None;
        for (request, content) in self.request_files(step, place)? {
            let Ok(decoded) = decode(&content) else { return Ok(None) };
            let metadata = decoded.metadata;
            let Some(claim) = owner_of(&metadata, place) else { return Ok(None) };
            let step = step.of(&claim);
            let device = self.device(&claim, &request)?;
            let Some(cdi) = self.open_cdi(step)? else { return Ok(None) };
            let (name, path) = (device.file_name(), cdi.path.join(device.file_name()));
            if !step.on("look at", &path, self.files.exists(&cdi.directory, step.entry(&name, &path)?))? {
                return Ok(None);
            }
            let record = adopted.get_or_insert_with(|| Record {
                claim: claim.clone(),
                pod_claim: metadata.pod_claim_name.and_then(|name| name.parse().ok()),
                boot: self.settings.boot.clone(),
                requests: Default::default(),
                uses: Vec::new(),
            });
            if record.claim != claim {
                return Ok(None);
            }
            let mut devices = Vec::new();
            for reference in metadata.requests {
                for device in reference.devices {
                    let used = DeviceUse { pool: device.pool.clone(), device: device.name.clone(), share_id: None };
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

    /// Finishes updates, removes what was on its way, and writes specs that are gone.
    fn restore(&self, step: Step<'_>, place: &Place, record: &Record, problems: &mut Vec<StoreError>) {
        let is_known = |name: &String| {
            name == record::FILE || RequestName::new(name).is_ok_and(|name| record.requests.contains_key(&name))
        };
        match step.on("list", &place.path, self.files.list(&place.directory)) {
            Ok(names) => {
                let rubbish = names.iter().filter(|name| !is_known(name));
                problems.extend(rubbish.filter_map(|name| self.remove_request(step, place, name).err()));
            }
            Err(problem) => problems.push(problem),
        }
        let requests = record.requests.iter();
        problems.extend(
            requests
                .filter_map(|(request, prepared)| self.restore_request(step, place, record, request, prepared).err()),
        );
    }

    fn restore_request(
        &self,
        step: Step<'_>,
        place: &Place,
        record: &Record,
        request: &RequestName,
        prepared: &RequestRecord,
    ) -> Result<(), StoreError> {
        let device = self.device(&record.claim, request)?;
        let mut is_ready = false;
        // Without a directory the next prepare writes it; until then no container may be created with it.
        if let Some(directory) = self.open_request_directory(step, place, request)? {
            self.finish_update(step, &directory)?;
            let leftover = temporary(NEXT);
            let path = directory.path.join(&leftover);
            step.on("remove", &path, self.files.remove_file(&directory.directory, step.entry(&leftover, &path)?))?;
            let content = self.read_metadata(step, &directory)?;
            let is_whole = is_blank(&content) || generation_of(&content).is_some();
            is_ready = is_whole && !prepared.gated;
        }
        if is_ready {
            let spec = self.spec(&record.claim, record.pod_claim.as_ref(), &place.path, &device)?;
            self.write_spec(step, &self.make_cdi(step)?, &device, &spec, Presence::Likely)
        } else if let Some(cdi) = self.open_cdi(step)? {
            self.remove_spec(step, &cdi, &device)
        } else {
            Ok(())
        }
    }

    /// Removes specs of ours that were on their way and, where all claims are known, those that belong to none.
    fn remove_specs_of_nobody(&self, recovery: &mut Recovery, knows_all: bool) {
        let path = &self.settings.cdi_directory;
        let found = self.files.open_root(path).and_then(|cdi| Ok((self.files.list(&cdi)?, cdi)));
        let (names, cdi) = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(source) => return recovery.problems.push(StoreError::Root { path: path.clone(), source }),
        };
        let prepared: HashSet<&str> = recovery.claims.iter().map(|found| found.claim.uid.as_str()).collect();
        for name in names {
            let final_name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
            let Some(device) = MetadataDevice::from_file_name(final_name.unwrap_or(&name)) else { continue };
            let is_nobodys = knows_all && !prepared.contains(device.claim_uid().as_str());
            if *device.driver() == self.settings.driver && (final_name.is_some() || is_nobodys) {
                let removed = Entry::new(&name).and_then(|name| self.files.remove_file(&cdi, name));
                if let Err(source) = removed {
                    recovery.problems.push(StoreError::Root { path: path.join(&name), source });
                }
            }
        }
    }
}
