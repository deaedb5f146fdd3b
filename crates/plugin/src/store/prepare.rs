//! Preparing a claim: for the first time, and again while containers use it.

use std::collections::BTreeMap;

use drakkar_cdi::MetadataDevice;
use drakkar_metadata::name::{PodClaimName, RequestName};
use drakkar_metadata::path::HOST_FILE;
use drakkar_metadata::{Request, encode};

use super::documents::generation_of;
use super::files::Files;
use super::place::{Place, Step};
use super::record::{ClaimKey, Record, RequestRecord};
use super::{Delivery, PreparedRequest, Store, StoreError};

/// Everything about one request that can be worked out before anything is written.
pub(super) struct Plan {
    pub(super) device: MetadataDevice,
    spec: Vec<u8>,
    content: Vec<Request>,
    delivery: Delivery,
    record: RequestRecord,
}

impl<F: Files> Store<F> {
    pub(super) fn plan(
        &self,
        claim: &ClaimKey,
        pod_claim: Option<&PodClaimName>,
        requests: &[PreparedRequest],
    ) -> Result<BTreeMap<RequestName, Plan>, StoreError> {
        let mut plans = BTreeMap::new();
        for prepared in requests {
            let device = self.device(claim, &prepared.request)?;
            let spec = self.spec(claim, pod_claim, &device)?;
            let devices = prepared.references.iter().flat_map(|reference| {
                reference
                    .devices
                    .iter()
                    .map(|device| (reference.name.clone(), device.pool.clone(), device.name.clone()))
            });
            let record = RequestRecord { devices: devices.collect(), gated: prepared.delivery == Delivery::Gated };
            // What cannot be written must not fail half-way.
            self.document(claim, pod_claim, &prepared.request, &prepared.references, 1)?;
            let content = prepared.references.clone();
            plans.insert(prepared.request.clone(), Plan { device, spec, content, delivery: prepared.delivery, record });
        }
        Ok(plans)
    }

    pub(super) fn prepare_anew(
        &self,
        step: Step<'_>,
        place: &Place,
        pod_claim: Option<&PodClaimName>,
        plans: &BTreeMap<RequestName, Plan>,
    ) -> Result<(), StoreError> {
        let record = self.record(step.0, pod_claim, plans);
        let written = plans
            .iter()
            .try_for_each(|(request, plan)| self.write_new_file(step, place, pod_claim, request, plan, 1))
            .and_then(|()| self.write_record(step, place, &record))
            .and_then(|()| self.write_specs(step, plans, &record));
        if written.is_err() {
            // The first error is the one to tell; what cannot be removed now, the next start removes.
            let _ = self.remove_specs(step, place, Some(&record));
            let _ = self.remove_place(step, place);
        }
        written
    }

    /// The same claim once more: after a restart of the kubelet, with containers that use its files.
    pub(super) fn prepare_again(
        &self,
        step: Step<'_>,
        place: &Place,
        pod_claim: Option<&PodClaimName>,
        plans: &BTreeMap<RequestName, Plan>,
        known: &Record,
    ) -> Result<(), StoreError> {
        let mut record = self.record(step.0, pod_claim, plans);
        for (request, plan) in plans {
            let before = known.requests.get(request);
            let believed = known.boot == self.settings.boot
                && before.is_some_and(|before| before.devices == plan.record.devices)
                && known.pod_claim.as_ref() == pod_claim;
            let Some(directory) = self.open_request_directory(step, place, request)? else {
                self.write_new_file(step, place, pod_claim, request, plan, 1)?;
                continue;
            };
            self.finish_update(step, &directory)?;
            let old = self.read_metadata(step, &directory)?;
            let generation = generation_of(&old);
            if believed && (generation.is_some() || old.is_empty()) {
                // An update has opened the gate: it stays open.
                if let (Some(before), Some(entry)) = (before, record.requests.get_mut(request)) {
                    entry.gated = before.gated;
                }
                continue;
            }
            let next = generation.unwrap_or(0).saturating_add(1);
            let bytes = self.initial_bytes(step.0, pod_claim, request, plan, next)?;
            self.write_in_place(step, &directory, &old, bytes)?;
        }
        // While the record still names them, what a crash leaves of them is found.
        for request in known.requests.keys().filter(|request| !plans.contains_key(*request)) {
            self.remove_spec(step, &self.device(step.0, request)?)?;
            self.remove_request(step, place, request.as_str())?;
        }
        if record != *known {
            self.write_record(step, place, &record)?;
        }
        self.write_specs(step, plans, &record)
    }

    pub(super) fn record(
        &self,
        claim: &ClaimKey,
        pod_claim: Option<&PodClaimName>,
        plans: &BTreeMap<RequestName, Plan>,
    ) -> Record {
        Record {
            uid: claim.uid.clone(),
            pod_claim: pod_claim.cloned(),
            boot: self.settings.boot.clone(),
            requests: plans.iter().map(|(request, plan)| (request.clone(), plan.record.clone())).collect(),
        }
    }

    pub(super) fn write_specs(
        &self,
        step: Step<'_>,
        plans: &BTreeMap<RequestName, Plan>,
        record: &Record,
    ) -> Result<(), StoreError> {
        for (request, plan) in plans {
            if record.requests.get(request).is_some_and(|request| !request.gated) {
                self.write_spec(step, &plan.device, &plan.spec)?;
            }
        }
        Ok(())
    }

    pub(super) fn write_new_file(
        &self,
        step: Step<'_>,
        place: &Place,
        pod_claim: Option<&PodClaimName>,
        request: &RequestName,
        plan: &Plan,
        generation: i64,
    ) -> Result<(), StoreError> {
        let bytes = self.initial_bytes(step.0, pod_claim, request, plan, generation)?;
        let path = place.path.join(request.as_str());
        let name = step.entry(request.as_str(), &path)?;
        step.on("make directory", &path, self.files.make_directory(&place.directory, name))?;
        let directory = self.request_directory(step, place, request)?;
        // No spec names the file yet: nobody reads it before it is whole.
        let path = directory.path.join(HOST_FILE);
        let name = step.entry(HOST_FILE, &path)?;
        let file = step.on("create", &path, self.files.create(&directory.directory, name))?;
        step.on("write", &path, self.files.write(&file, &bytes))
    }

    /// What a file says before its first update: nothing at all, or what the driver knew when it prepared.
    pub(super) fn initial_bytes(
        &self,
        claim: &ClaimKey,
        pod_claim: Option<&PodClaimName>,
        request: &RequestName,
        plan: &Plan,
        generation: i64,
    ) -> Result<Vec<u8>, StoreError> {
        if plan.delivery != Delivery::Now {
            return Ok(Vec::new());
        }
        let document = self.document(claim, pod_claim, request, &plan.content, generation)?;
        Ok(encode(&document, &self.settings.versions))
    }
}
