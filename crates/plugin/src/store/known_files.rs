//! What this process knows of the files of claims, as it wrote or read them last: the generations of metadata, for people, and
//! which claims it has prepared completely, so that an unprepare need not read their records.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use drakkar_metadata::name::{ClaimUid, RequestName};

/// The metadata files of all claims.
#[derive(Debug, Default)]
pub(super) struct KnownFiles(Mutex<HashMap<ClaimUid, KnownClaim>>);

/// The files of a claim.
#[derive(Debug, Default)]
struct KnownClaim {
    metadata: BTreeMap<RequestName, MetadataFile>,
    prepared: Option<Prepared>,
}

/// A claim that this process has prepared completely, with all the metadata files that are known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prepared {
    /// Whether it has a CDI spec for its devices.
    pub(super) has_claim_spec: bool,
}

/// A metadata file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MetadataFile {
    /// The generation of its content; `None` while it is empty.
    pub(crate) generation: Option<i64>,
    /// When this process wrote it; `None` if it only read it.
    pub(crate) written: Option<SystemTime>,
}

impl KnownFiles {
    /// Records that a file was written.
    pub(super) fn written(&self, claim: &ClaimUid, request: &RequestName, generation: Option<i64>) {
        self.set(claim, request, MetadataFile { generation, written: Some(SystemTime::now()) });
    }

    /// Records what was read from a file. The time of the last write stays if its content is the same.
    pub(super) fn read(&self, claim: &ClaimUid, request: &RequestName, generation: Option<i64>) {
        let known = self.lock().get(claim).and_then(|known| known.metadata.get(request)).copied();
        if known.is_none_or(|known| known.generation != generation) {
            self.set(claim, request, MetadataFile { generation, written: None });
        }
    }

    /// Records that the file of a request is removed.
    pub(super) fn removed(&self, claim: &ClaimUid, request: &str) {
        if let Some(known) = self.lock().get_mut(claim) {
            known.metadata.retain(|name, _| name.as_str() != request);
        }
    }

    /// Records that all files of a claim are written.
    pub(super) fn prepared(&self, claim: &ClaimUid, has_claim_spec: bool) {
        if let Some(known) = self.lock().get_mut(claim) {
            known.prepared = Some(Prepared { has_claim_spec });
        }
    }

    /// Returns the requests of a claim that this process has prepared completely. From now on it no longer counts as such.
    pub(super) fn take_prepared(&self, claim: &ClaimUid) -> Option<(Prepared, Vec<RequestName>)> {
        let mut known = self.lock();
        let known = known.get_mut(claim)?;
        let prepared = known.prepared.take()?;
        Some((prepared, known.metadata.keys().cloned().collect()))
    }

    /// Forgets the files of a claim.
    pub(super) fn forget(&self, claim: &ClaimUid) {
        self.lock().remove(claim);
    }

    /// Returns the files of a claim.
    pub(super) fn of(&self, claim: &ClaimUid) -> Vec<(RequestName, MetadataFile)> {
        let known = self.lock();
        let files = known.get(claim).into_iter().flat_map(|known| &known.metadata);
        files.map(|(request, file)| (request.clone(), *file)).collect()
    }

    fn set(&self, claim: &ClaimUid, request: &RequestName, file: MetadataFile) {
        let mut known = self.lock();
        let files = match known.get_mut(claim) {
            Some(files) => files,
            None => known.entry(claim.clone()).or_default(),
        };
        files.metadata.insert(request.clone(), file);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimUid, KnownClaim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
