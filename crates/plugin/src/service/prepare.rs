//! Prepares the claims of a call.

use std::collections::BTreeMap;

use drakkar_client::ClaimRef;
use drakkar_slices::PublishedAttributes;

use super::container_edits;
use super::driver_response::{self, DriverResponseError, PreparedDevice};
use super::error::ClaimError;
use super::{CallLocks, Responses, Service, fail_all, join_all};
use crate::claim::Claim;
use crate::driver::{Batch, Device, DeviceMetadata, DraPlugin};
use crate::error::BoxError;
use crate::ledger::{ClaimFiles, Reservation};
use crate::lock::ClaimGuards;
use crate::metrics::{FileWork, Operation};

impl<P: DraPlugin> Service<P> {
    /// Fetches claims and prepares them.
    pub(super) async fn prepare_references(
        &self,
        references: Vec<&ClaimRef>,
        responses: &mut Responses<Vec<PreparedDevice>>,
    ) {
        let mut claims = Vec::with_capacity(references.len());
        let fetched = join_all(references.iter().map(|reference| self.claims.fetch(reference))).await;
        for (reference, fetched) in references.into_iter().zip(fetched) {
            match fetched {
                Ok(claim) => claims.push(claim),
                Err(error) => drop(responses.insert(reference.uid.to_string(), Err(error.into()))),
            }
        }
        self.prepare_fetched(claims, responses).await;
    }

    async fn prepare_fetched(&self, claims: Vec<Claim>, responses: &mut Responses<Vec<PreparedDevice>>) {
        if claims.is_empty() {
            return;
        }
        let CallLocks { driver_call, claims: guards } =
            match self.lock_for_driver_call(claims.iter().map(Claim::reference)).await {
                Ok(locks) => locks,
                Err(error) => return fail_all(claims.iter().map(Claim::reference), &error, responses),
            };
        if self.settings.guard && self.locks.are_shared() {
            self.refresh_ledger(&claims.iter().map(Claim::reference).collect::<Vec<_>>()).await;
        }
        let mut claims = self.unprepare_outdated(claims, &guards, responses).await;
        let mut reservations = Vec::with_capacity(claims.len());
        while let Some(claim) = claims.get(reservations.len()) {
            match self.reserve(claim).await {
                Ok(reservation) => reservations.push(reservation),
                Err(error) => {
                    responses.insert(claim.reference().uid.to_string(), Err(error));
                    claims.remove(reservations.len());
                }
            }
        }
        let batch = Batch::new(claims, self.concurrency());
        if batch.is_empty() {
            return;
        }
        // Before the driver is called: it may report from its `prepare`.
        batch.iter().for_each(|claim| self.reporter.remember(claim));
        // No await between this and the driver's code: a call that is dropped has either called the driver or not.
        reservations.iter().for_each(Reservation::mark_driver_called);
        let outcomes = self.call_driver(Operation::Prepare, || self.plugin.prepare_batch(&batch)).await;
        drop(driver_call);
        let mut outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return fail_all(batch.iter().map(Claim::reference), &error, responses),
        };
        let finished = batch.into_claims().into_iter().zip(reservations).map(|(claim, reservation)| {
            let uid = claim.reference().uid.clone();
            let outcome = outcomes.remove(&uid);
            let guards = guards.clone();
            async move { (uid.to_string(), self.finish(claim, outcome, reservation, guards).await) }
        });
        responses.extend(join_all(finished).await);
        self.warn_unrequested(Operation::Prepare, &outcomes);
    }

    /// Unprepares claims with devices that are no longer allocated to them, and earlier claims with the same names. Returns the
    /// claims that can be prepared.
    ///
    /// The kubelet does not unprepare these, and the driver must not be asked to prepare a claim that it has already set up with
    /// other devices.
    async fn unprepare_outdated(
        &self,
        claims: Vec<Claim>,
        guards: &ClaimGuards,
        responses: &mut Responses<Vec<PreparedDevice>>,
    ) -> Vec<Claim> {
        let outdated: Vec<ClaimRef> = claims.iter().flat_map(|claim| self.ledger.outdated(claim)).collect();
        if outdated.is_empty() {
            return claims;
        }
        for claim in &outdated {
            tracing::info!(%claim, "allocation is outdated, unpreparing it");
        }
        let mut unprepared = Responses::new();
        // The caller keeps the driver call lock for the prepare that follows. Claims with the same name share one lock.
        Box::pin(self.unprepare_locked(outdated.clone(), guards, None, &mut unprepared)).await;
        let mut ready = Vec::with_capacity(claims.len());
        for claim in claims {
            let ClaimRef { namespace, name, uid } = claim.reference();
            let mut of_name = outdated.iter().filter(|old| old.namespace == *namespace && old.name == *name);
            let failed = of_name.find_map(|old| Some((old, unprepared.remove(old.uid.as_str())?.err()?)));
            if let Some((old, source)) = failed {
                let error = ClaimError::OldAllocation { claim: Box::new(old.clone()), source: Box::new(source) };
                responses.insert(uid.to_string(), Err(error));
            } else {
                ready.push(claim);
            }
        }
        ready
    }

    /// Reserves the devices of a claim in the ledger.
    async fn reserve(&self, claim: &Claim) -> Result<Reservation, ClaimError> {
        let uid = &claim.reference().uid;
        if self.writes_metadata(claim.reference()) {
            claim.check_pod_claim_name().map_err(ClaimError::PodClaim)?;
        }
        loop {
            let conflict = match self.ledger.reserve(claim, self.settings.guard) {
                Ok(reservation) => return Ok(reservation),
                Err(conflict) => conflict,
            };
            let mut has_released = false;
            for holder in conflict.holders().filter(|holder| holder.claim().uid != *uid) {
                has_released |= self.is_unprepared_elsewhere(holder).await && {
                    self.ledger.release_holder(holder);
                    true
                };
            }
            if !has_released {
                return Err(conflict.into());
            }
        }
    }

    /// Whether a claim gets metadata. A claim that was prepared with metadata keeps it when the flag has been turned off since.
    fn writes_metadata(&self, claim: &ClaimRef) -> bool {
        self.settings.metadata || self.ledger.has_metadata(&claim.uid)
    }

    /// Finishes the prepare of one claim after the driver has returned: checks the response and writes metadata and CDI specs.
    ///
    /// On failure the reservation stays as it is: the claim holds the devices until it is unprepared.
    async fn finish(
        &self,
        claim: Claim,
        outcome: Option<Result<Vec<Device>, BoxError>>,
        reservation: Reservation,
        guards: ClaimGuards,
    ) -> Result<Vec<PreparedDevice>, ClaimError> {
        let mut devices = outcome.ok_or(DriverResponseError::Missing)?.map_err(ClaimError::driver)?;
        driver_response::check(&claim, &mut devices)?;
        let cdi_devices = container_edits::take(&claim, &self.settings.driver, &mut devices)?;
        let has_metadata = self.ledger.has_metadata(&claim.reference().uid);
        let (files, requests, pod_claim) = if self.settings.metadata || has_metadata {
            if let Some(published) = &self.published {
                fill_metadata(published, &mut devices).await?;
            }
            let requests = driver_response::plan(&claim, &self.settings.driver, &mut devices, self.settings.deferred)?;
            (ClaimFiles::Metadata, requests, claim.pod_claim_name().map_err(ClaimError::PodClaim)?)
        } else if !cdi_devices.is_empty() || self.ledger.has_record(&claim.reference().uid) {
            (ClaimFiles::Record, Vec::new(), None)
        } else {
            reservation.commit(ClaimFiles::None);
            return Ok(driver_response::respond(&claim, devices, BTreeMap::new()));
        };
        let store = self.store.clone();
        let metrics = self.metrics.clone();
        let write = move || {
            let timer = metrics.time_metadata(FileWork::Prepare);
            let uses = reservation.uses();
            let ids = store.prepare(claim.reference(), pod_claim.as_ref(), requests, uses, cdi_devices);
            drop(timer);
            if ids.is_ok() {
                reservation.commit(files);
            }
            drop(guards);
            ids.map(|ids| (claim, ids))
        };
        // Containers may hold locks on metadata files that already exist.
        let written = if has_metadata { self.disk.run(write).await } else { self.disk.run_brief(write).await };
        let (claim, ids) = written??;
        Ok(driver_response::respond(&claim, devices, ids))
    }
}

/// Fills in published attributes for devices without metadata.
async fn fill_metadata(published: &PublishedAttributes, devices: &mut [Device]) -> Result<(), ClaimError> {
    for device in devices.iter_mut().filter(|device| device.metadata.is_none()) {
        match published.get(&device.pool_name, &device.device_name).await? {
            Some(attributes) => device.metadata = Some(DeviceMetadata { attributes, network_data: None }),
            None => {
                let pool = &device.pool_name;
                let device = &device.device_name;
                tracing::warn!(pool, device, "device is not published, so its metadata has no attributes");
            }
        }
    }
    Ok(())
}
