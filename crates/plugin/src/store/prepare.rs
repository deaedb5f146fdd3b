//! Preparing a claim: for the first time, and again while containers use it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use drakkar_cdi::{MetadataDevice, MetadataSpecError};
use drakkar_client::ClaimRef;
use drakkar_metadata::name::{PodClaimName, RequestName};
use drakkar_metadata::path::HOST_FILE;
use drakkar_metadata::{Metadata, encode};

use super::directory::NAME_MAX;
use super::documents::{generation_of, is_blank};
use super::files::Files;
use super::place::{Place, Step};
use super::record::{DeviceUse, Record, RequestRecord};
use super::write::{Presence, temporary};
use super::{Delivery, PreparedRequest, Store, StoreError};

/// Everything about one request that can be worked out before anything is written.
pub(super) struct Plan {
    pub(super) device: MetadataDevice,
    spec: Vec<u8>,
    /// What is known now, checked, as generation 1.
    document: Metadata,
    delivery: Delivery,
    record: RequestRecord,
}

impl<F: Files> Store<F> {
    pub(super) fn plan(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        claim_path: &Path,
        requests: Vec<PreparedRequest>,
    ) -> Result<BTreeMap<RequestName, Plan>, StoreError> {
        let mut plans = BTreeMap::new();
        for prepared in requests {
            let device = self.device(claim, &prepared.request)?;
            // With a UID of the API server, which has 36 bytes, every name fits. Another may be too long.
            let staged = temporary(&device.file_name());
            if staged.len() > NAME_MAX {
                let source = Box::new(MetadataSpecError::FileName { name: staged });
                return Err(StoreError::Cdi {
                    claim: Box::new(claim.clone()),
                    request: prepared.request.clone(),
                    source,
                });
            }
            let spec = self.spec(claim, pod_claim, claim_path, &device)?;
            let devices = prepared.references.iter().flat_map(|reference| {
                reference
                    .devices
                    .iter()
                    .map(|device| (reference.name.clone(), device.pool.clone(), device.name.clone()))
            });
            let record = RequestRecord { devices: devices.collect(), gated: prepared.delivery == Delivery::Gated };
            // What cannot be written must not fail half-way.
            let document = self.document(claim, pod_claim, &prepared.request, prepared.references, 1)?;
            let plan = Plan { device, spec, document, delivery: prepared.delivery, record };
            plans.insert(prepared.request, plan);
        }
        Ok(plans)
    }

    pub(super) fn prepare_anew(
        &self,
        step: Step<'_>,
        root: &Place,
        place: &Place,
        record: &Record,
        plans: &BTreeMap<RequestName, Plan>,
    ) -> Result<(), StoreError> {
        let written = plans
            .iter()
            .try_for_each(|(request, plan)| self.write_new_file(step, place, request, plan))
            .and_then(|()| self.write_first_record(step, place, record))
            .and_then(|()| self.write_specs(step, plans, record, Presence::Unlikely));
        if written.is_err() {
            // The first error is the one to tell; what cannot be removed now, the next start removes.
            let _ = self.remove_specs(step, place, Some(record));
            let _ = self.remove_place(step, root, place, Some(record));
        }
        written
    }

    /// The same claim once more: after a restart of the kubelet, with containers that use its files.
    pub(super) fn prepare_again(
        &self,
        step: Step<'_>,
        place: &Place,
        mut record: Record,
        plans: &BTreeMap<RequestName, Plan>,
        known: &Record,
    ) -> Result<(), StoreError> {
        for (request, plan) in plans {
            let before = known.requests.get(request);
            let believed = known.boot == self.settings.boot
                && before.is_some_and(|before| before.has_devices_of(&plan.record))
                && known.pod_claim == record.pod_claim;
            let Some(directory) = self.open_request_directory(step, place, request)? else {
                self.write_new_file(step, place, request, plan)?;
                continue;
            };
            self.finish_update(step, &directory)?;
            let old = self.read_metadata(step, &directory)?;
            let generation = generation_of(&old);
            // A blank file is right where metadata comes later. Elsewhere it is one that could not be written.
            let is_deferred = plan.delivery != Delivery::Now && is_blank(&old);
            if believed && (generation.is_some() || is_deferred) {
                // The record stays as it is: an update may have opened the gate, and the order of devices is the file's.
                if let (Some(before), Some(entry)) = (before, record.requests.get_mut(request)) {
                    *entry = before.clone();
                }
                continue;
            }
            if plan.delivery == Delivery::Gated
                && let Some(cdi) = self.open_cdi(step)?
            {
                // The gate is closed again, before what is behind it goes.
                self.remove_spec(step, &cdi, &plan.device)?;
            }
            let next = generation.unwrap_or(0).saturating_add(1);
            self.write_in_place(step, &directory, &old, self.initial_bytes(plan, next))?;
        }
        // While the record still names them, what a crash leaves of them is found.
        for request in known.requests.keys().filter(|request| !plans.contains_key(*request)) {
            if let Some(cdi) = self.open_cdi(step)? {
                self.remove_spec(step, &cdi, &self.device(step.claim, request)?)?;
            }
            self.remove_request(step, place, request.as_str())?;
        }
        if record != *known {
            self.write_record(step, place, &record)?;
        }
        self.write_specs(step, plans, &record, Presence::Likely)
    }

    pub(super) fn record(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        plans: &BTreeMap<RequestName, Plan>,
        uses: &[DeviceUse],
    ) -> Record {
        Record {
            claim: claim.clone(),
            pod_claim: pod_claim.cloned(),
            boot: self.settings.boot.clone(),
            requests: plans.iter().map(|(request, plan)| (request.clone(), plan.record.clone())).collect(),
            uses: uses.to_vec(),
        }
    }

    pub(super) fn write_specs(
        &self,
        step: Step<'_>,
        plans: &BTreeMap<RequestName, Plan>,
        record: &Record,
        presence: Presence,
    ) -> Result<(), StoreError> {
        let is_gated = |request| record.requests.get(request).is_none_or(|request| request.gated);
        let mut ready = plans.iter().filter(|(request, _)| !is_gated(*request)).peekable();
        if ready.peek().is_none() {
            return Ok(());
        }
        let cdi = self.make_cdi(step)?;
        ready.try_for_each(|(_, plan)| self.write_spec(step, &cdi, &plan.device, &plan.spec, presence))
    }

    pub(super) fn write_new_file(
        &self,
        step: Step<'_>,
        place: &Place,
        request: &RequestName,
        plan: &Plan,
    ) -> Result<(), StoreError> {
        let bytes = self.initial_bytes(plan, 1);
        let path = place.path.join(request.as_str());
        let name = step.entry(request.as_str(), &path)?;
        step.on("make directory", &path, self.files.make_directory(&place.directory, name))?;
        let directory = self.request_directory(step, place, request)?;
        // No spec names the file yet: nobody reads it before it is whole.
        let path = directory.path.join(HOST_FILE);
        let name = step.entry(HOST_FILE, &path)?;
        let file = step.on("create", &path, self.files.create(&directory.directory, name))?;
        if bytes.is_empty() {
            return Ok(());
        }
        step.on("write", &path, self.files.write(&file, &bytes))
    }

    /// What a file says before its first update: nothing at all, or what the driver knew when it prepared.
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
