//! A prepare, from the claims of a call to their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;

use super::answer::{self, AnswerError, AnsweredDevice};
use super::error::ClaimError;
use super::{Answers, Held, Service, fail_all};
use crate::claim::Claim;
use crate::driver::{Batch, BoxError, Device, DeviceMetadata, DraPlugin};
use crate::ledger::{Files, Reservation};
use crate::lock::ClaimGuard;
use crate::metrics::{FileWork, Operation};
use drakkar_client::ClaimRef;
use drakkar_slices::PublishedAttributes;

impl<P: DraPlugin> Service<P> {
    /// Fetches claims and prepares them.
    pub(super) async fn prepare_references(&self, wanted: Vec<&ClaimRef>, answers: &mut Answers<Vec<AnsweredDevice>>) {
        let mut claims = Vec::with_capacity(wanted.len());
        let fetched = join_all(wanted.iter().map(|claim| self.claims.fetch(claim))).await;
        for (reference, fetched) in wanted.into_iter().zip(fetched) {
            match fetched {
                Ok(claim) => claims.push(claim),
                Err(error) => drop(answers.insert(reference.uid.to_string(), Err(error.into()))),
            }
        }
        self.prepare_fetched(claims, answers).await;
    }

    async fn prepare_fetched(&self, claims: Vec<Claim>, answers: &mut Answers<Vec<AnsweredDevice>>) {
        if claims.is_empty() {
            return;
        }
        let Held { turn, guards } = match self.enter(claims.iter().map(Claim::reference)).await {
            Ok(held) => held,
            Err(error) => return fail_all(claims.iter().map(Claim::reference), &error, answers),
        };
        if self.settings.guard && self.locks.are_shared() {
            self.learn(&claims.iter().map(Claim::reference).collect::<Vec<_>>()).await;
        }
        let claims = self.unprepare_outdated(claims, &guards, answers).await;
        let mut reservations = Vec::with_capacity(claims.len());
        let mut reserved = Vec::with_capacity(claims.len());
        for claim in claims {
            match self.reserve(&claim).await {
                Ok(reservation) => {
                    reservations.push(reservation);
                    reserved.push(claim);
                }
                Err(error) => drop(answers.insert(claim.reference().uid.to_string(), Err(error))),
            }
        }
        let batch = Batch::new(reserved, self.concurrency());
        if batch.is_empty() {
            return;
        }
        // There is no await between this and the driver's code.
        reservations.iter().for_each(Reservation::driver_is_called);
        let outcomes = self.call(Operation::Prepare, || self.plugin.prepare_batch(&batch)).await;
        drop(turn);
        let mut outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return fail_all(batch.iter().map(Claim::reference), &error, answers),
        };
        let finished = batch.into_claims().into_iter().zip(reservations).map(|(claim, reservation)| {
            let uid = claim.reference().uid.clone();
            let outcome = outcomes.remove(&uid);
            let guards = guards.clone();
            async move { (uid.to_string(), self.finish(claim, outcome, reservation, guards).await) }
        });
        answers.extend(join_all(finished.collect::<Vec<_>>()).await);
        self.strangers(Operation::Prepare, &outcomes);
    }

    /// Unprepares claims that have devices which are not allocated to them any more, and earlier claims of their names: nobody else
    /// does, and the driver must not be asked to prepare a claim that it has set up otherwise. Gives the claims that can be
    /// prepared.
    async fn unprepare_outdated(
        &self,
        claims: Vec<Claim>,
        guards: &Arc<[ClaimGuard]>,
        answers: &mut Answers<Vec<AnsweredDevice>>,
    ) -> Vec<Claim> {
        let outdated: Vec<ClaimRef> = claims.iter().flat_map(|claim| self.ledger.outdated(claim)).collect();
        if outdated.is_empty() {
            return claims;
        }
        for claim in &outdated {
            tracing::info!(%claim, "allocation is outdated, unpreparing it");
        }
        let mut unprepared = Answers::new();
        // The turn is kept for the prepare that follows. Claims of one name have one lock.
        Box::pin(self.unprepare_locked(outdated.clone(), guards, None, &mut unprepared)).await;
        let mut ready = Vec::with_capacity(claims.len());
        for claim in claims {
            let ClaimRef { namespace, name, uid } = claim.reference();
            let mut of_name = outdated.iter().filter(|old| old.namespace == *namespace && old.name == *name);
            let failed = of_name.find_map(|old| Some((old, unprepared.remove(old.uid.as_str())?.err()?)));
            if let Some((old, source)) = failed {
                let error = ClaimError::OldAllocation { claim: Box::new(old.clone()), source: Box::new(source) };
                answers.insert(uid.to_string(), Err(error));
            } else {
                ready.push(claim);
            }
        }
        ready
    }

    /// Gives a claim its devices in the ledger.
    async fn reserve(&self, claim: &Claim) -> Result<Reservation, ClaimError> {
        let uid = &claim.reference().uid;
        if self.writes_metadata(claim.reference()) {
            claim.pod_claim_name().map_err(ClaimError::PodClaim)?;
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

    /// Whether a claim that is prepared gets metadata. One that was prepared with it keeps it, also when the flag has been
    /// turned off since.
    fn writes_metadata(&self, claim: &ClaimRef) -> bool {
        self.settings.metadata || self.ledger.has_files(&claim.uid)
    }

    /// What comes after the driver, for one claim. Unless it succeeds, the reservation is left as it is: the devices are the
    /// claim's until it is unprepared.
    async fn finish(
        &self,
        claim: Claim,
        outcome: Option<Result<Vec<Device>, BoxError>>,
        reservation: Reservation,
        guards: Arc<[ClaimGuard]>,
    ) -> Result<Vec<AnsweredDevice>, ClaimError> {
        let mut devices = outcome.ok_or(AnswerError::Missing)?.map_err(ClaimError::driver)?;
        answer::check(&claim, &mut devices)?;
        if !self.writes_metadata(claim.reference()) {
            reservation.prepared(Files::None);
            return Ok(answer::respond(&claim, devices, BTreeMap::new()));
        }
        if let Some(published) = &self.published {
            fill(published, &mut devices).await?;
        }
        let requests = answer::plan(&claim, &self.settings.driver, &mut devices, self.settings.deferred)?;
        let pod_claim = claim.pod_claim_name().map_err(ClaimError::PodClaim)?;
        let (store, metrics) = (self.store.clone(), self.metrics.clone());
        // The files of a claim that has some may be locked by its containers.
        let has_files = self.ledger.has_files(&claim.reference().uid);
        let write = move || {
            let timer = metrics.time_metadata(FileWork::Prepare);
            let ids = store.prepare(claim.reference(), pod_claim.as_ref(), requests, reservation.uses());
            drop(timer);
            if ids.is_ok() {
                reservation.prepared(Files::Written);
            }
            drop(guards);
            ids.map(|ids| (claim, ids))
        };
        let written = if has_files { self.disk.run(write).await } else { self.disk.run_brief(write).await };
        let (claim, ids) = written??;
        Ok(answer::respond(&claim, devices, ids))
    }
}

/// Gives devices without metadata the attributes that were published of them.
async fn fill(published: &PublishedAttributes, devices: &mut [Device]) -> Result<(), ClaimError> {
    for device in devices.iter_mut().filter(|device| device.metadata.is_none()) {
        match published.get(&device.pool_name, &device.device_name).await? {
            Some(attributes) => device.metadata = Some(DeviceMetadata { attributes, network_data: None }),
            None => {
                let (pool, device) = (&device.pool_name, &device.device_name);
                tracing::warn!(pool, device, "the driver has not published the device: there is no metadata of it");
            }
        }
    }
    Ok(())
}
