//! Writes the files of a claim: for the first time, and again while containers use it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use drakkar_cdi::{MetadataDevice, MetadataSpecError};
use drakkar_client::ClaimRef;
use drakkar_metadata::name::{PodClaimName, RequestName};
use drakkar_metadata::path::HOST_FILE;
use drakkar_metadata::{Metadata, encode};

use super::directory_name::NAME_MAX;
use super::documents::{generation_of, is_blank};
use super::files::Files;
use super::open_directory::{Location as _, OpenDirectory, StoreCall};
use super::record::{DeviceUse, Record, RequestRecord};
use super::write::{Presence, temporary_name, temporary_name_length};
use super::{Delivery, PreparedRequest, Store, StoreError};

/// Something of each request of a claim.
type ByRequest<T> = BTreeMap<RequestName, T>;

/// The files of one request, computed and checked before anything is written.
pub(super) struct Plan {
    pub(super) device: MetadataDevice,
    spec: Vec<u8>,
    /// The validated metadata as generation 1.
    document: Metadata,
    delivery: Delivery,
}

impl Plan {
    /// Returns the generation of the file before its first update; none if its metadata is delivered later.
    fn initial_generation(&self, generation: i64) -> Option<i64> {
        (self.delivery == Delivery::Now).then_some(generation)
    }
}

impl<F: Files> Store<F> {
    /// Computes and checks the files of all requests, without writing anything. Also returns what the record says of them.
    pub(super) fn plan(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        claim_path: &Path,
        requests: Vec<PreparedRequest>,
    ) -> Result<(ByRequest<Plan>, ByRequest<RequestRecord>), StoreError> {
        let mut plans = BTreeMap::new();
        let mut records = BTreeMap::new();
        for prepared in requests {
            let device = self.metadata_device(claim, &prepared.request)?;
            // Every name fits with a UID from the API server, which has 36 bytes; another UID may be too long.
            if temporary_name_length(device.file_name()) > NAME_MAX {
                let source = Box::new(MetadataSpecError::FileName { name: temporary_name(device.file_name()) });
                return Err(StoreError::Cdi {
                    claim: Box::new(claim.clone()),
                    request: prepared.request.clone(),
                    source,
                });
            }
            let spec = self.cdi_spec(claim, pod_claim, claim_path, &device)?;
            let devices = prepared.references.iter().flat_map(|reference| {
                reference
                    .devices
                    .iter()
                    .map(|device| (reference.name.clone(), device.pool.clone(), device.name.clone()))
            });
            let record = RequestRecord { devices: devices.collect(), gated: prepared.delivery == Delivery::Gated };
            // Validated here, so that invalid metadata fails before anything is written.
            let document = self.document(claim, pod_claim, &prepared.request, prepared.references, 1)?;
            let plan = Plan { device, spec, document, delivery: prepared.delivery };
            plans.insert(prepared.request.clone(), plan);
            records.insert(prepared.request, record);
        }
        Ok((plans, records))
    }

    /// Writes the files of a claim into its new directory, and removes them again on failure.
    pub(super) fn prepare_first(
        &self,
        call: StoreCall<'_>,
        root: &OpenDirectory,
        claim_dir: &OpenDirectory,
        record: &Record,
        plans: &ByRequest<Plan>,
    ) -> Result<(), StoreError> {
        let written = plans
            .iter()
            .try_for_each(|(request, plan)| self.write_new_file(call, claim_dir, request, plan))
            .and_then(|()| self.write_first_record(call, claim_dir, record))
            .and_then(|()| self.write_claim_spec(call, record, Presence::Unlikely))
            .and_then(|()| self.write_specs(call, plans, record, Presence::Unlikely));
        if written.is_err() {
            // The first error is the one to return; what cannot be removed now is removed by the next start.
            let _ = self.remove_specs(call, claim_dir, Some(record));
            let _ = self.remove_claim_directory(call, root, claim_dir, Some(record));
            self.known.forget(&record.claim.uid);
        } else {
            self.known.prepared(&record.claim.uid, !record.devices.is_empty());
        }
        written
    }

    /// Prepares a claim that is already prepared, possibly while containers use its files: after a restart of the kubelet.
    pub(super) fn prepare_repeated(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        mut record: Record,
        plans: &ByRequest<Plan>,
        known: &Record,
    ) -> Result<(), StoreError> {
        self.known.take_prepared(&record.claim.uid);
        for (request, plan) in plans {
            let before = known.requests.get(request);
            let is_trusted = known.boot == self.settings.boot
                && before.zip(record.requests.get(request)).is_some_and(|(before, now)| before.has_devices_of(now))
                && known.pod_claim == record.pod_claim;
            let Some(request_dir) = self.open_request_directory(call, claim_dir, request)? else {
                self.write_new_file(call, claim_dir, request, plan)?;
                continue;
            };
            self.finish_update(call, &request_dir)?;
            let old = self.read_metadata(call, &request_dir)?;
            let generation = generation_of(&old);
            // A blank file is correct where metadata is delivered later. Elsewhere it could not be written.
            let is_deferred = plan.delivery != Delivery::Now && is_blank(&old);
            if is_trusted && (generation.is_some() || is_deferred) {
                // Keeps the record of the request: an update may have lifted the gate, and the order of devices is that of
                // the file.
                if let (Some(before), Some(entry)) = (before, record.requests.get_mut(request)) {
                    *entry = before.clone();
                }
                self.known.read(&record.claim.uid, request, generation);
                continue;
            }
            if plan.delivery == Delivery::Gated {
                // Close the gate again before the file is blanked.
                self.remove_spec(call, self.cdi(), plan.device.file_name())?;
            }
            let next = generation.unwrap_or(0).saturating_add(1);
            self.write_in_place(call, &request_dir, &old, self.initial_bytes(plan, next))?;
            self.known.written(&record.claim.uid, request, plan.initial_generation(next));
        }
        // Removed before the record is written: while the record names them, recovery finds what a crash leaves.
        for request in known.requests.keys().filter(|request| !plans.contains_key(*request)) {
            self.remove_spec(call, self.cdi(), &self.metadata_spec_name(call.claim, request)?)?;
            self.remove_request(call, claim_dir, request.as_str())?;
            self.known.removed(&record.claim.uid, request.as_str());
        }
        if record.devices.is_empty() && !known.devices.is_empty() {
            self.remove_spec(call, self.cdi(), &self.claim_devices(call.claim)?.file_name())?;
        }
        if record != *known {
            self.write_record(call, claim_dir, &record)?;
        }
        self.write_claim_spec(call, &record, Presence::Likely)?;
        self.write_specs(call, plans, &record, Presence::Likely)?;
        self.known.prepared(&record.claim.uid, !record.devices.is_empty());
        Ok(())
    }

    pub(super) fn record(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        requests: ByRequest<RequestRecord>,
        uses: &[DeviceUse],
        devices: Vec<drakkar_cdi::Device>,
    ) -> Record {
        Record {
            claim: claim.clone(),
            pod_claim: pod_claim.cloned(),
            boot: self.settings.boot.clone(),
            requests,
            uses: uses.to_vec(),
            devices,
        }
    }

    /// Writes the CDI spec of the claim's devices, if they have edits.
    pub(super) fn write_claim_spec(
        &self,
        call: StoreCall<'_>,
        record: &Record,
        presence: Presence,
    ) -> Result<(), StoreError> {
        let Some((name, spec)) = self.claim_spec(record)? else { return Ok(()) };
        self.write_spec(call, self.cdi(), &name, &spec, presence)
    }

    /// Writes the CDI specs of all requests that are not gated.
    pub(super) fn write_specs(
        &self,
        call: StoreCall<'_>,
        plans: &ByRequest<Plan>,
        record: &Record,
        presence: Presence,
    ) -> Result<(), StoreError> {
        let is_gated = |request| record.requests.get(request).is_none_or(|request| request.gated);
        let mut ready = plans.iter().filter(|(request, _)| !is_gated(*request)).peekable();
        if ready.peek().is_none() {
            return Ok(());
        }
        let cdi = self.cdi();
        ready.try_for_each(|(_, plan)| self.write_spec(call, cdi, plan.device.file_name(), &plan.spec, presence))
    }

    /// Creates the directory and the metadata file of a request.
    pub(super) fn write_new_file(
        &self,
        call: StoreCall<'_>,
        claim_dir: &OpenDirectory,
        request: &RequestName,
        plan: &Plan,
    ) -> Result<(), StoreError> {
        let bytes = self.initial_bytes(plan, 1);
        let path = (claim_dir, request.as_str());
        let name = call.entry(request.as_str(), path)?;
        let is_new = call.io("create directory", path, self.files.make_directory(&claim_dir.handle, name))?;
        let request_dir = if is_new {
            OpenDirectory { handle: claim_dir.handle.join(name), path: path.to_path() }
        } else {
            self.open_existing_request_directory(call, claim_dir, request)?
        };
        // Written without a rename: no spec names the file yet, so no container reads it before it is complete.
        let path = (&request_dir, HOST_FILE);
        let name = call.entry(HOST_FILE, path)?;
        let file = call.io("create", path, self.files.create(&request_dir.handle, name))?;
        call.io("set the mode of", path, self.files.check_mode(&file))?;
        if !bytes.is_empty() {
            call.io("write", path, self.files.write(&file, &bytes))?;
        }
        self.known.written(&call.claim.uid, request, plan.initial_generation(1));
        Ok(())
    }

    /// Returns the content of a file before its first update: the metadata from the prepare, or nothing if it is delivered
    /// later.
    fn initial_bytes(&self, plan: &Plan, generation: i64) -> Vec<u8> {
        if plan.delivery != Delivery::Now {
            return Vec::new();
        }
        let mut document = Cow::Borrowed(&plan.document);
        if document.metadata.generation != generation {
            document.to_mut().metadata.generation = generation;
        }
        encode(&document, &self.settings.versions)
    }
}
