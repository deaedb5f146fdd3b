//! Unprepares claims: for the kubelet, and on the framework's own account where the kubelet does not.

use std::time::Duration;

use drakkar_client::ClaimRef;
use tokio::time::{Instant, timeout_at};

use super::driver_response::DriverResponseError;
use super::error::ClaimError;
use super::{Responses, Service, fail_all, join_all};
use crate::claims::FetchError;
use crate::driver::{Batch, DraPlugin};
use crate::ledger::Holder;
use crate::lock::{ClaimGuards, DriverCallGuard};
use crate::metrics::{FileWork, Operation};

/// The time limit for locking a claim that is gone. After that it is left for the next attempt.
const COLLECT_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

impl<P: DraPlugin> Service<P> {
    /// Locks claims and unprepares them.
    pub(super) async fn unprepare_references(&self, claims: Vec<ClaimRef>, responses: &mut Responses<()>) {
        if claims.is_empty() {
            return;
        }
        match self.lock_for_driver_call(claims.iter()).await {
            Ok(locks) => self.unprepare_locked(claims, &locks.claims, locks.driver_call, responses).await,
            Err(error) => fail_all(claims.iter(), &error, responses),
        }
    }

    /// Unprepares locked claims. The driver call lock, if given, is released as soon as the driver returns.
    pub(super) async fn unprepare_locked(
        &self,
        claims: Vec<ClaimRef>,
        guards: &ClaimGuards,
        driver_call: Option<DriverCallGuard>,
        responses: &mut Responses<()>,
    ) {
        for claim in &claims {
            // Only earlier reports are dropped: what the driver reports from now on, for example that a device is no longer
            // ready, is still delivered.
            self.reporter.forget(&claim.uid);
        }
        let batch = Batch::new(claims, self.concurrency());
        let outcomes = self.call_driver(Operation::Unprepare, || self.plugin.unprepare_batch(&batch)).await;
        drop(driver_call);
        let mut outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return fail_all(batch.iter(), &error, responses),
        };
        let finished = batch.into_claims().into_iter().map(|claim| {
            let outcome = outcomes.remove(&claim.uid);
            let guards = guards.clone();
            async move {
                let uid = claim.uid.to_string();
                match outcome {
                    None => (uid, Err(DriverResponseError::Missing.into())),
                    Some(Err(error)) => (uid, Err(ClaimError::driver(error))),
                    Some(Ok(())) => (uid, self.remove(claim, guards).await),
                }
            }
        });
        responses.extend(join_all(finished).await);
        self.warn_unrequested(Operation::Unprepare, &outcomes);
    }

    /// Removes the files of a claim, and releases its devices.
    async fn remove(&self, claim: ClaimRef, guards: ClaimGuards) -> Result<(), ClaimError> {
        let store = self.store.clone();
        let ledger = self.ledger.clone();
        let reporter = self.reporter.clone();
        let metrics = self.metrics.clone();
        let removed = self.disk.run_brief(move || {
            let timer = metrics.time_metadata(FileWork::Unprepare);
            let removed = store.unprepare(&claim);
            drop(timer);
            if removed.is_ok() {
                ledger.release(&claim.uid);
                reporter.forget_known(&claim.uid);
            }
            drop(guards);
            removed
        });
        Ok(removed.await??)
    }

    /// Unprepares a claim that the kubelet does not unprepare, and returns whether it did: `false` if the claim has released
    /// its devices or was prepared again meanwhile.
    pub(super) async fn unprepare_holder(&self, holder: &Holder, deadline: Instant) -> Result<bool, ClaimError> {
        let started = Instant::now();
        let claim = holder.claim();
        let timeout = |_| ClaimError::LockTimeout { claim: Box::new(claim.clone()), waited: started.elapsed() };
        let locked = timeout_at(deadline, self.lock_for_driver_call([claim].into_iter())).await;
        let locks = locked.map_err(timeout)??;
        if self.locks.are_shared() {
            self.refresh_ledger(&[claim]).await;
        }
        if !self.ledger.still_holds(holder) {
            return Ok(false);
        }
        let mut responses = Responses::new();
        self.unprepare_locked(vec![claim.clone()], &locks.claims, locks.driver_call, &mut responses).await;
        responses.remove(claim.uid.as_str()).unwrap_or_else(|| Err(DriverResponseError::Missing.into()))?;
        Ok(true)
    }

    /// Unprepares a prepared claim that no longer exists or has been allocated other devices, and returns whether it did.
    pub(crate) async fn collect(&self, claim: &ClaimRef) -> Result<bool, ClaimError> {
        let Some(holder) = self.ledger.holder(&claim.uid) else { return Ok(false) };
        match self.claims.fetch(claim).await {
            Ok(fetched) if !self.ledger.is_outdated(&fetched) => return Ok(false),
            Err(error @ FetchError::Api { .. }) => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        self.unprepare_holder(&holder, Instant::now() + COLLECT_LOCK_TIMEOUT).await
    }

    /// Returns the claims that the kubelet never unprepares.
    pub(crate) fn abandoned(&self) -> Vec<ClaimRef> {
        self.ledger.abandoned()
    }
}
