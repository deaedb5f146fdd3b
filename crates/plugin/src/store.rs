//! Stores the metadata files, CDI specs and state records of claims. No other module writes these files.
//!
//! A claim with metadata has all of these, a claim whose devices only have container edits a record and one spec.
//!
//! ```text
//! {plugin directory}/dra-device-metadata/{namespace}_{claim}/
//!     .claim.json                    the state record: which claim, which requests, which devices it uses, their edits
//!     {request}/metadata.json        what containers see
//!     {request}/.metadata.json.next  an update in progress (write-ahead copy)
//! {CDI directory}/{driver}_metadata_{claim UID}_{request}.json   mounts a metadata file
//! {CDI directory}/{driver}_container-edits_{claim UID}.json               the edits of the claim's devices
//! ```
//!
//! If namespace and name are too long for that, the directory has a shorter name ([`mod@directory_name`]).
//!
//! # The order of writes
//!
//! | call | order | why |
//! |---|---|---|
//! | prepare | files, record, specs | the record means that the files are complete; a spec never names an incomplete file. The record has the edits too: recovery writes the claim's spec from it |
//! | prepare without the edits of an earlier one | the claim's spec is removed, then record | while the record has the edits, recovery writes the spec again |
//! | update | write-ahead copy, file in place, remove the copy, then (if gated) record, spec | recovery writes a leftover copy again |
//! | withdraw | record, spec | recovery removes the spec of a request whose record says that it is gated |
//! | unprepare | specs, record, files | no spec names a missing file; a directory without a record is a leftover |
//!
//! Whichever system call is the last one before the process dies, [`Store::recover`] restores a consistent state: not prepared,
//! or prepared with the old or the new metadata, never half of each. Nothing is synced to disk: after a power loss the kubelet
//! prepares again before a container starts, and files that were written during another boot are not trusted but written again.
//!
//! # Requirements for callers
//!
//! Calls block: on the disk without limit, on locks of readers within the [`lock_budget`]. Two calls for the same namespace and
//! name must not overlap; calls for different claims may.

mod directory_name;
mod documents;
mod error;
mod files;
mod known_files;
mod lock_budget;
mod open_directory;
mod prepare;
mod record;
mod recover;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use drakkar_cdi::QualifiedName;
use drakkar_client::ClaimRef;
use drakkar_metadata::name::{ClaimUid, DriverName, PodClaimName, RequestName};
use drakkar_metadata::path::{HOST_SUBDIR, Layout};
use drakkar_metadata::{Device, Request, Versions, encode};

pub(crate) use self::directory_name::directory_name;
use self::documents::{by_reference, generation_of};
use self::known_files::KnownFiles;
use self::lock_budget::LockBudget;
use self::open_directory::{OpenDirectory, StoreCall, join_path};
use self::prepare::Plan;
use self::write::{Presence, Removal};
pub(crate) use error::StoreError;
pub(crate) use files::{DIRECTORY_MODE, Directory, Files, PLUGIN_DIRECTORY_MODE, SystemFiles, make_directories};
pub(crate) use known_files::MetadataFile;
pub(crate) use record::{DeviceUse, FILE as RECORD_FILE, Record, RequestRecord};
pub(crate) use recover::RecoveredClaim;
pub(crate) use write::WRITE_AHEAD_FILE;

/// The settings of a [`Store`].
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) driver: DriverName,
    /// The driver's plugin data directory, as a path on the host.
    pub(crate) plugin_directory: PathBuf,
    pub(crate) cdi_directory: PathBuf,
    pub(crate) versions: Versions,
    /// The layouts in which containers see a file; at least one.
    pub(crate) layouts: Vec<Layout>,
    /// Identifies the current boot of the machine.
    pub(crate) boot: Arc<str>,
    /// Whether no other process writes these files. Then what this process has written need not be read again.
    pub(crate) exclusive: bool,
}

/// One request of a claim with the devices that the driver prepared.
#[derive(Debug, Clone)]
pub(crate) struct PreparedRequest {
    pub(crate) request: RequestName,
    /// The devices by the reference they were prepared for: the request's name, or `request/subrequest`.
    pub(crate) references: Vec<Request>,
    pub(crate) delivery: Delivery,
}

/// When the metadata of a request is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// With the prepare.
    Now,
    /// With a later update; until then containers see an empty file.
    Later,
    /// With a later update; until then no container that references the request can be created.
    Gated,
}

/// The metadata of prepared claims on disk.
#[derive(Debug)]
pub(crate) struct Store<F> {
    files: F,
    settings: Settings,
    plugin: Directory,
    /// The directory that contains the directories of all claims, once a prepare has opened it.
    kept_root: Mutex<Option<Arc<OpenDirectory>>>,
    root_path: PathBuf,
    cdi: OpenDirectory,
    known: KnownFiles,
}

impl<F: Files> Store<F> {
    /// Opens the plugin directory. Nothing is written before the first prepare.
    pub(crate) fn open(files: F, settings: Settings) -> Result<Self, StoreError> {
        let plugin = files
            .open_root(&settings.plugin_directory)
            .map_err(|source| StoreError::Root { path: settings.plugin_directory.clone(), source })?;
        let root_path = settings.plugin_directory.join(HOST_SUBDIR);
        let path = settings.cdi_directory.clone();
        let cdi = OpenDirectory { handle: Directory::at(path.clone()), path };
        Ok(Self { files, settings, plugin, kept_root: Mutex::default(), root_path, cdi, known: KnownFiles::default() })
    }

    /// Returns the metadata files of a claim as this process wrote or read them last. Answers from memory.
    pub(crate) fn metadata_files(&self, claim: &ClaimUid) -> Vec<(RequestName, MetadataFile)> {
        self.known.of(claim)
    }

    /// Writes the metadata files and CDI specs of a claim, and returns the CDI IDs that mount the files into containers.
    ///
    /// A claim that is already prepared with the same devices keeps its files, their generation and the content of updates. On
    /// failure, everything that this call wrote is removed. `uses` is stored in the record for the next start. `devices` are
    /// the CDI devices of the claim's spec; without any there is none.
    pub(crate) fn prepare<'r>(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        requests: impl Into<Cow<'r, [PreparedRequest]>>,
        uses: &[DeviceUse],
        devices: Vec<drakkar_cdi::Device>,
    ) -> Result<BTreeMap<RequestName, QualifiedName>, StoreError> {
        let lock_budget = LockBudget::for_call();
        let call = StoreCall::new(claim, &lock_budget);
        let name = directory_name(&claim.namespace, &claim.name);
        let claim_path = join_path(self.root_path(), &[&name]);
        let (plans, requests) = self.plan(claim, pod_claim, &claim_path, requests.into().into_owned())?;
        let record = self.record(claim, pod_claim, requests, uses, devices);
        // Built before anything is written, so that an invalid spec leaves no files.
        self.claim_spec(&record)?;
        let written = match self.kept_root() {
            Some(root) => match self.write_claim(call, &root, &name, &record, &plans) {
                // The directory that was kept open is gone, or another one has taken its place.
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
                written => Some(written),
            },
            None => None,
        };
        let written = match written {
            Some(written) => written,
            None => self.write_claim(call, &*self.make_root(call)?, &name, &record, &plans),
        };
        written?;
        // Collecting would allocate once more.
        let mut ids = BTreeMap::new();
        for (request, plan) in plans {
            ids.insert(request, plan.device.into_id());
        }
        Ok(ids)
    }

    /// Writes the files of a claim into its directory.
    fn write_claim(
        &self,
        call: StoreCall<'_>,
        root: &OpenDirectory,
        name: &str,
        record: &Record,
        plans: &BTreeMap<RequestName, Plan>,
    ) -> Result<(), StoreError> {
        let claim = call.claim;
        let (claim_dir, is_new) = self.make_claim_directory(call, root, name)?;
        let known = if is_new { None } else { self.find_or_adopt_record(call, &claim_dir)? };
        match known {
            Some(known) if known.claim.uid == claim.uid => {
                self.prepare_repeated(call, &claim_dir, record.clone(), plans, &known)
            }
            None if is_new => self.prepare_first(call, root, &claim_dir, record, plans),
            other => {
                // Leftovers: of another claim with this name that was never unprepared, or of an interrupted prepare.
                self.remove_specs(call, &claim_dir, other.as_ref())?;
                self.remove_claim_directory(call, root, &claim_dir, other.as_ref())?;
                if let Some(other) = &other {
                    self.known.forget(&other.claim.uid);
                }
                let (claim_dir, _) = self.make_claim_directory(call, root, name)?;
                self.prepare_first(call, root, &claim_dir, record, plans)
            }
        }
    }

    /// Replaces the metadata of one request, visible to running containers too, and returns the new generation.
    ///
    /// Only devices that were prepared for the request can be described. On failure the old content stays.
    pub(crate) fn update(
        &self,
        claim: &ClaimRef,
        request: &RequestName,
        devices: Vec<Device>,
    ) -> Result<i64, StoreError> {
        let lock_budget = LockBudget::for_call();
        let call = StoreCall::new(claim, &lock_budget);
        let (claim_dir, mut record) = self.open_prepared(call)?;
        let prepared = find_request(&record, request)?;
        let content = by_reference(claim, request, prepared, devices)?;
        let was_gated = prepared.gated;
        let request_dir = self.open_existing_request_directory(call, &claim_dir, request)?;
        self.finish_update(call, &request_dir)?;
        let old = self.read_metadata(call, &request_dir)?;
        let generation = generation_of(&old).map_or(1, |generation| generation.saturating_add(1));
        let document = self.document(claim, record.pod_claim.as_ref(), request, content, generation)?;
        self.write_in_place(call, &request_dir, &old, encode(&document, &self.settings.versions))?;
        self.known.written(&claim.uid, request, Some(generation));
        let device = self.metadata_device(claim, request)?;
        let spec = self.cdi_spec(claim, record.pod_claim.as_ref(), &claim_dir.path, &device)?;
        if was_gated {
            if let Some(prepared) = record.requests.get_mut(request) {
                prepared.gated = false;
            }
            self.write_record(call, &claim_dir, &record)?;
        }
        // Even if it was not gated: the update that lifted the gate may have failed at this point.
        self.write_spec(call, self.cdi(), device.file_name(), &spec, Presence::Likely)?;
        Ok(generation)
    }

    /// Closes the gate of a request: no container that references it can be created before the next update. Containers that
    /// have the file keep it as it is.
    pub(crate) fn withdraw(&self, claim: &ClaimRef, request: &RequestName) -> Result<(), StoreError> {
        let lock_budget = LockBudget::for_call();
        let call = StoreCall::new(claim, &lock_budget);
        let (claim_dir, mut record) = self.open_prepared(call)?;
        find_request(&record, request)?;
        if let Some(prepared) = record.requests.get_mut(request).filter(|prepared| !prepared.gated) {
            prepared.gated = true;
            self.write_record(call, &claim_dir, &record)?;
        }
        self.remove_spec(call, self.cdi(), &self.metadata_spec_name(claim, request)?)
    }

    /// Opens the directory of a prepared claim and reads its record.
    fn open_prepared(&self, call: StoreCall<'_>) -> Result<(OpenDirectory, Record), StoreError> {
        let claim = call.claim;
        let not_prepared = || StoreError::NotPrepared { claim: Box::new(claim.clone()) };
        let root = self.open_root(call)?.ok_or_else(not_prepared)?;
        let name = directory_name(&claim.namespace, &claim.name);
        let claim_dir = self.open_claim_directory(call, &root, &name)?.ok_or_else(not_prepared)?;
        let record = self.find_or_adopt_record(call, &claim_dir)?.ok_or_else(not_prepared)?;
        if record.claim.uid != claim.uid {
            return Err(StoreError::OtherClaim { claim: Box::new(claim.clone()), prepared: record.claim.uid });
        }
        // Prepared without metadata: the record is that of a CDI spec.
        if record.requests.is_empty() {
            return Err(not_prepared());
        }
        Ok((claim_dir, record))
    }

    /// Whether the claim, with exactly this UID, is prepared according to the disk.
    pub(crate) fn is_prepared(&self, claim: &ClaimRef) -> Result<bool, StoreError> {
        let lock_budget = LockBudget::for_call();
        let call = StoreCall::new(claim, &lock_budget);
        let Some(root) = self.open_root(call)? else { return Ok(false) };
        let name = directory_name(&claim.namespace, &claim.name);
        let Some(claim_dir) = self.open_claim_directory(call, &root, &name)? else { return Ok(false) };
        Ok(self.find_record(call, &claim_dir)?.is_some_and(|record| record.claim.uid == claim.uid))
    }

    /// Removes the files of a claim. Succeeds if it was never prepared; files of another claim with the same name stay.
    pub(crate) fn unprepare(&self, claim: &ClaimRef) -> Result<(), StoreError> {
        self.remove(claim)?;
        self.known.forget(&claim.uid);
        Ok(())
    }

    fn remove(&self, claim: &ClaimRef) -> Result<(), StoreError> {
        let lock_budget = LockBudget::for_call();
        let call = StoreCall::new(claim, &lock_budget);
        let name = directory_name(&claim.namespace, &claim.name);
        if self.settings.exclusive && self.remove_known(call, &name)? == Removal::Complete {
            return Ok(());
        }
        let Some(root) = self.open_root(call)? else { return Ok(()) };
        let Some(claim_dir) = self.open_claim_directory(call, &root, &name)? else { return Ok(()) };
        let record = self.read_record(call, &claim_dir)?;
        if record.as_ref().is_some_and(|record| record.claim.uid != claim.uid) {
            return Ok(());
        }
        if record.is_none() && !self.is_leftover(call, &claim_dir)? {
            return Ok(());
        }
        self.remove_specs(call, &claim_dir, record.as_ref())?;
        self.remove_claim_directory(call, &root, &claim_dir, record.as_ref())
    }
}

/// Returns a request of a prepared claim.
fn find_request<'a>(record: &'a Record, request: &RequestName) -> Result<&'a RequestRecord, StoreError> {
    record.requests.get(request).ok_or_else(|| StoreError::NoSuchRequest {
        claim: Box::new(record.claim.clone()),
        request: request.clone(),
        prepared: record.requests.keys().cloned().collect(),
    })
}
