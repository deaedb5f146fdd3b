//! What a start does with what it finds: finishes or removes what a crash left, and puts back what a reboot wiped.
//!
//! Nothing of a claim in use is touched: a record that is whole stands for its claim until somebody who can ask the
//! API says that the claim is gone. One bad entry is reported and left alone, and keeps nothing else from being done.

use std::collections::HashSet;
use std::io;

use drakkar_cdi::MetadataDevice;
use drakkar_metadata::decode;
use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace, RequestName};
use drakkar_metadata::path::HOST_SUBDIR;

use super::Store;
use super::documents::generation_of;
use super::error::StoreError;
use super::files::{Entry, Files};
use super::place::{Place, Step};
use super::record::{ClaimKey, Record, RequestRecord};
use super::write::{NEXT, temporary};

/// What a start found.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The claims that are prepared, as far as the disk knows. Whether the API still has them is to be asked.
    pub(crate) claims: Vec<ClaimKey>,
    /// What could not be brought in order.
    pub(crate) problems: Vec<StoreError>,
}

impl<F: Files> Store<F> {
    /// Brings everything on disk into a state between two calls. To be called before any other.
    pub(crate) fn recover(&self) -> Recovery {
        let mut recovery = Recovery::default();
        let path = self.settings.plugin_directory.join(HOST_SUBDIR);
        let root = Entry::new(HOST_SUBDIR).and_then(|name| self.files.open_directory(&self.plugin, name));
        let names = match root.and_then(|root| self.files.list(&root)) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => {
                // Without knowing which claims there are, no spec can be said to be nobody's.
                recovery.problems.push(StoreError::Root { path, source });
                return recovery;
            }
        };
        let mut unknown = false;
        for name in names {
            match self.recover_claim(&name) {
                Ok(Some(claim)) => recovery.claims.push(claim),
                Ok(None) => {}
                Err(problem) => {
                    unknown = true;
                    recovery.problems.push(problem);
                }
            }
        }
        if !unknown {
            self.remove_unknown_specs(&mut recovery);
        }
        recovery
    }

    fn recover_claim(&self, directory: &str) -> Result<Option<ClaimKey>, StoreError> {
        let path = self.settings.plugin_directory.join(HOST_SUBDIR).join(directory);
        let foreign = || StoreError::Root {
            path: path.clone(),
            source: io::Error::new(io::ErrorKind::InvalidFilename, "not the directory of a claim; left alone"),
        };
        let names = directory.split_once('_').ok_or_else(foreign)?;
        let (namespace, name) = (Namespace::new(names.0), ClaimName::new(names.1));
        let (Ok(namespace), Ok(name), Ok(nobody)) = (namespace, name, ClaimUid::new("unknown")) else {
            return Err(foreign());
        };
        let mut claim = ClaimKey { namespace, name, uid: nobody };
        let Some(place) = self.open_place(Step(&claim))? else { return Ok(None) };
        let record = match self.read_record(Step(&claim), &place)? {
            Some(record) => record,
            None => match self.adopt(&mut claim, &place)? {
                Some(record) => record,
                None => {
                    // Half of a prepare or of an unprepare: nobody has been told of it.
                    let step = Step(&claim);
                    self.remove_specs(step, &place, None)?;
                    self.remove_place(step, &place)?;
                    return Ok(None);
                }
            },
        };
        claim.uid = record.uid.clone();
        self.restore(&claim, &place, &record)?;
        Ok(Some(claim))
    }

    /// Files without a record whose specs are there are those of a driver that was built on the Go framework: they
    /// are in use, and get a record.
    fn adopt(&self, claim: &mut ClaimKey, place: &Place) -> Result<Option<Record>, StoreError> {
        let files = self.request_files(Step(claim), place)?;
        let mut record: Option<Record> = None;
        for (request, content) in files {
            let Ok(decoded) = decode(&content) else { return Ok(None) };
            let metadata = decoded.metadata;
            let Ok(uid) = ClaimUid::new(metadata.metadata.uid) else { return Ok(None) };
            claim.uid = uid.clone();
            let step = Step(claim);
            let device = self.device(claim, &request)?;
            let Some(cdi) = self.open_cdi(step)? else { return Ok(None) };
            let (name, path) = (device.file_name(), cdi.path.join(device.file_name()));
            if !step.on("look at", &path, self.files.exists(&cdi.directory, step.entry(&name, &path)?))? {
                return Ok(None);
            }
            let record = record.get_or_insert_with(|| Record {
                uid: uid.clone(),
                pod_claim: metadata.pod_claim_name.and_then(|name| name.parse().ok()),
                boot: self.settings.boot.clone(),
                requests: Default::default(),
            });
            if record.uid != uid {
                return Ok(None);
            }
            let devices = metadata.requests.into_iter().flat_map(|request| {
                let reference = request.name;
                request.devices.into_iter().map(move |device| (reference.clone(), device.pool, device.name))
            });
            record.requests.insert(request, RequestRecord { devices: devices.collect(), gated: false });
        }
        if let Some(record) = &record {
            self.write_record(Step(claim), place, record)?;
        }
        Ok(record)
    }

    /// Finishes updates, removes what was on its way, and writes specs that are gone.
    fn restore(&self, claim: &ClaimKey, place: &Place, record: &Record) -> Result<(), StoreError> {
        let step = Step(claim);
        for name in step.on("list", &place.path, self.files.list(&place.directory))? {
            let is_request = RequestName::new(name.as_str()).is_ok_and(|name| record.requests.contains_key(&name));
            if !is_request && name != super::record::FILE {
                self.remove_request(step, place, &name)?;
            }
        }
        for (request, prepared) in &record.requests {
            let Some(directory) = self.open_request_directory(step, place, request)? else {
                // The next prepare writes it; until then no container may be created with it.
                self.remove_spec(step, &self.device(claim, request)?)?;
                continue;
            };
            self.finish_update(step, &directory)?;
            let leftover = temporary(NEXT);
            let path = directory.path.join(&leftover);
            step.on("remove", &path, self.files.remove_file(&directory.directory, step.entry(&leftover, &path)?))?;
            let content = self.read_metadata(step, &directory)?;
            let device = self.device(claim, request)?;
            let is_whole = content.is_empty() || generation_of(&content).is_some();
            if is_whole && !prepared.gated {
                let spec = self.spec(claim, record.pod_claim.as_ref(), &device)?;
                self.write_spec(step, &device, &spec)?;
            } else {
                self.remove_spec(step, &device)?;
            }
        }
        Ok(())
    }

    /// Removes specs of ours that belong to no claim that is prepared, and those that were on their way.
    fn remove_unknown_specs(&self, recovery: &mut Recovery) {
        let path = &self.settings.cdi_directory;
        let problem = |source| StoreError::Root { path: path.clone(), source };
        let cdi = match self.files.open_root(path) {
            Ok(cdi) => cdi,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(source) => return recovery.problems.push(problem(source)),
        };
        let names = match self.files.list(&cdi) {
            Ok(names) => names,
            Err(source) => return recovery.problems.push(problem(source)),
        };
        let known: HashSet<&str> = recovery.claims.iter().map(|claim| claim.uid.as_str()).collect();
        for name in names {
            let final_name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
            let Some(device) = MetadataDevice::from_file_name(final_name.unwrap_or(&name)) else { continue };
            let is_ours = *device.driver() == self.settings.driver;
            let is_used = final_name.is_none() && known.contains(device.claim_uid().as_str());
            if is_ours && !is_used {
                let removed = Entry::new(&name).and_then(|name| self.files.remove_file(&cdi, name));
                if let Err(source) = removed {
                    recovery.problems.push(StoreError::Root { path: path.join(&name), source });
                    return;
                }
            }
        }
    }
}
