//! Metadata files, their CDI specs and the state of claims on disk. Nothing else writes to these places.
//!
//! ```text
//! {plugin directory}/dra-device-metadata/{namespace}_{claim}/
//!     .claim.json                    the state record: which claim, which requests, which devices it uses
//!     {request}/metadata.json        what containers see
//!     {request}/.metadata.json.next  an update on its way (write-ahead copy)
//! {CDI directory}/{driver}_metadata_{claim UID}_{request}.json
//! ```
//!
//! The directory of a claim whose names are too long for that has a shorter one ([`directory`]).
//!
//! # The order of writes
//!
//! | call | order | why |
//! |---|---|---|
//! | prepare | files, record, specs | the record says that the files are whole; a spec never names a file that is not |
//! | update | write-ahead copy, file in place, copy away, then (gated) record, spec | a copy that is found at the start is written again |
//! | unprepare | specs, record, files | no spec names a file that is gone; without its record a directory is rubbish |
//!
//! Whatever call is the last before the process dies, [`Store::recover`] brings the rest into one of the states
//! between two calls: not prepared, or prepared with the old or the new metadata, never half of each. Nothing is
//! synced to the disk: after a power loss the kubelet prepares again before a container starts, and what was written
//! in another boot is not believed but written anew.
//!
//! # What callers owe
//!
//! Calls block: for a disk as long as that takes, for locks of readers no longer than [`patience`] says. Two calls for the same namespace and name must not overlap; different claims may.

mod directory;
mod documents;
mod error;
mod files;
mod patience;
mod place;
mod prepare;
mod record;
mod recover;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use drakkar_cdi::QualifiedName;
use drakkar_client::ClaimRef;
use drakkar_metadata::name::{DriverName, PodClaimName, RequestName};
use drakkar_metadata::path::Layout;
use drakkar_metadata::{Device, Request, Versions, encode};

use self::directory::directory_name;
use self::documents::{by_reference, generation_of};
use self::patience::LockPatience;
use self::place::Step;
use self::write::Presence;
pub(crate) use error::StoreError;
pub(crate) use files::{Directory, Files, PLUGIN_DIRECTORY_MODE, SystemFiles, make_directories};
pub(crate) use record::DeviceUse;
pub(crate) use recover::RecoveredClaim;

/// How the store is set up.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) driver: DriverName,
    /// The driver's plugin data directory, as the host knows it.
    pub(crate) plugin_directory: PathBuf,
    pub(crate) cdi_directory: PathBuf,
    pub(crate) versions: Versions,
    /// The layouts in which containers see a file; at least one.
    pub(crate) layouts: Vec<Layout>,
    /// What tells this boot of the machine from others.
    pub(crate) boot: String,
}

/// One request of a claim, as the driver prepared it.
#[derive(Debug, Clone)]
pub(crate) struct PreparedRequest {
    pub(crate) request: RequestName,
    /// The devices by the reference they were prepared for: the request's name, or `request/subrequest`.
    pub(crate) references: Vec<Request>,
    pub(crate) delivery: Delivery,
}

/// When the metadata of a request comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is here.
    Now,
    /// With an update; until then containers see an empty file.
    Later,
    /// With an update; until then no container that needs it can be created.
    Gated,
}

/// The metadata of prepared claims on disk.
#[derive(Debug)]
pub(crate) struct Store<F> {
    files: F,
    settings: Settings,
    plugin: Directory,
}

impl<F: Files> Store<F> {
    /// Opens the plugin's directory. Nothing is written before the first prepare.
    pub(crate) fn open(files: F, settings: Settings) -> Result<Self, StoreError> {
        let plugin = files
            .open_root(&settings.plugin_directory)
            .map_err(|source| StoreError::Root { path: settings.plugin_directory.clone(), source })?;
        Ok(Self { files, settings, plugin })
    }

    /// Writes what containers are to see of a claim, and gives the CDI ids that make them see it.
    ///
    /// A claim that is prepared already, with the same devices, keeps its files, their generation and what updates
    /// have put into them. On failure, what this call wrote is removed. `uses` is what the next start tells of it.
    pub(crate) fn prepare<'r>(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        requests: impl Into<Cow<'r, [PreparedRequest]>>,
        uses: &[DeviceUse],
    ) -> Result<BTreeMap<RequestName, QualifiedName>, StoreError> {
        let patience = LockPatience::of_call();
        let step = Step::new(claim, &patience);
        let name = directory_name(&claim.namespace, &claim.name);
        let plans = self.plan(claim, pod_claim, &self.root_path().join(&name), requests.into().into_owned())?;
        let record = self.record(claim, pod_claim, &plans, uses);
        let ids = plans.iter().map(|(request, plan)| (request.clone(), plan.device.id().clone())).collect();
        let root = self.make_root(step)?;
        let (place, is_new) = self.make_place(step, &root, &name)?;
        let known = if is_new { None } else { self.take_over(step, &place)? };
        let outcome = match known {
            Some(known) if known.claim.uid == claim.uid => self.prepare_again(step, &place, record, &plans, &known),
            None if is_new => self.prepare_anew(step, &root, &place, &record, &plans),
            other => {
                // Somebody else's leftovers: a claim of that name that was never unprepared, or half of a prepare.
                self.remove_specs(step, &place, other.as_ref())?;
                self.remove_place(step, &root, &place, other.as_ref())?;
                let (place, _) = self.make_place(step, &root, &name)?;
                self.prepare_anew(step, &root, &place, &record, &plans)
            }
        };
        outcome.map(|()| ids)
    }

    /// Replaces what containers see of one request, also those that run, and gives the new generation.
    ///
    /// Only devices that were prepared for the request can be described. On failure the old content stays.
    pub(crate) fn update(
        &self,
        claim: &ClaimRef,
        request: &RequestName,
        devices: Vec<Device>,
    ) -> Result<i64, StoreError> {
        let patience = LockPatience::of_call();
        let step = Step::new(claim, &patience);
        let not_prepared = || StoreError::NotPrepared { claim: Box::new(claim.clone()) };
        let root = self.open_root(step)?.ok_or_else(not_prepared)?;
        let name = directory_name(&claim.namespace, &claim.name);
        let place = self.open_place(step, &root, &name)?.ok_or_else(not_prepared)?;
        let mut record = self.take_over(step, &place)?.ok_or_else(not_prepared)?;
        if record.claim.uid != claim.uid {
            return Err(StoreError::OtherClaim { claim: Box::new(claim.clone()), prepared: record.claim.uid });
        }
        let Some(prepared) = record.requests.get(request) else {
            let prepared = record.requests.into_keys().collect();
            return Err(StoreError::NoSuchRequest {
                claim: Box::new(claim.clone()),
                request: request.clone(),
                prepared,
            });
        };
        let (content, was_gated) = (by_reference(claim, request, prepared, devices)?, prepared.gated);
        let directory = self.request_directory(step, &place, request)?;
        self.finish_update(step, &directory)?;
        let old = self.read_metadata(step, &directory)?;
        let generation = generation_of(&old).map_or(1, |generation| generation.saturating_add(1));
        let document = self.document(claim, record.pod_claim.as_ref(), request, content, generation)?;
        self.write_in_place(step, &directory, &old, encode(&document, &self.settings.versions))?;
        let device = self.device(claim, request)?;
        let spec = self.spec(claim, record.pod_claim.as_ref(), &place.path, &device)?;
        if was_gated {
            if let Some(prepared) = record.requests.get_mut(request) {
                prepared.gated = false;
            }
            self.write_record(step, &place, &record)?;
        }
        // Also if the gate is open: the update that opened it may have failed here.
        self.write_spec(step, &self.make_cdi(step)?, &device, &spec, Presence::Likely)?;
        Ok(generation)
    }

    /// Whether this very claim is prepared, as far as the disk knows.
    pub(crate) fn is_prepared(&self, claim: &ClaimRef) -> Result<bool, StoreError> {
        let patience = LockPatience::of_call();
        let step = Step::new(claim, &patience);
        let Some(root) = self.open_root(step)? else { return Ok(false) };
        let name = directory_name(&claim.namespace, &claim.name);
        let Some(place) = self.open_place(step, &root, &name)? else { return Ok(false) };
        Ok(self.known(step, &place)?.is_some_and(|record| record.claim.uid == claim.uid))
    }

    /// Removes what was written for a claim. What was never prepared is removed already; what was prepared for
    /// another claim of that name stays.
    pub(crate) fn unprepare(&self, claim: &ClaimRef) -> Result<(), StoreError> {
        let patience = LockPatience::of_call();
        let step = Step::new(claim, &patience);
        let Some(root) = self.open_root(step)? else { return Ok(()) };
        let name = directory_name(&claim.namespace, &claim.name);
        let Some(place) = self.open_place(step, &root, &name)? else { return Ok(()) };
        let record = self.read_record(step, &place)?;
        if record.as_ref().is_some_and(|record| record.claim.uid != claim.uid) {
            return Ok(());
        }
        if record.is_none() && !self.is_leftover_of(step, &place)? {
            return Ok(());
        }
        self.remove_specs(step, &place, record.as_ref())?;
        self.remove_place(step, &root, &place, record.as_ref())
    }
}
