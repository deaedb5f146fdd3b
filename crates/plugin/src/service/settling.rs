//! What becomes of a claim that has a device which another one needs: the API server decides.
//!
//! A holder that is gone, or to which the device is not allocated any more, is unprepared by the framework, since nobody else
//! will; then the device is free. Nothing is locked while the API server is asked.

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::Service;
use super::error::{ClaimError, Refusal};
use crate::claims::FetchError;
use crate::driver::DraPlugin;
use crate::ledger::{Conflict, Holder};

/// What the API server says of a holder.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The device is allocated to it.
    Allocated {
        /// Whether more is known of its devices now: it may not be in the way any more.
        is_corrected: bool,
    },
    /// The device is not allocated to it, for this reason.
    Gone(String),
    /// It could not be asked.
    Unknown(Refusal),
}

impl<P: DraPlugin> Service<P> {
    /// Asks the API server for claims, all at once.
    pub(super) async fn ask_for(&self, holders: &[Holder], deadline: Instant) -> Vec<Verdict> {
        join_all(holders.iter().map(|holder| self.verdict(holder, deadline))).await
    }

    async fn verdict(&self, holder: &Holder, deadline: Instant) -> Verdict {
        let begun = Instant::now();
        match timeout_at(deadline, self.claims.fetch(holder.claim())).await {
            Ok(Ok(fetched)) if holder.is_allocated_in(&fetched) => {
                Verdict::Allocated { is_corrected: self.ledger.correct(holder, &fetched) }
            }
            Ok(Ok(_)) => Verdict::Gone("the claim has another allocation".to_owned()),
            Ok(Err(error @ FetchError::Api { .. })) => Verdict::Unknown(Refusal::unchecked(error)),
            Ok(Err(error)) => Verdict::Gone(error.to_string()),
            Err(_) => {
                let waited = begun.elapsed().as_secs();
                Verdict::Unknown(Refusal::unchecked(format!("no answer from the API server within {waited} s")))
            }
        }
    }

    /// Unprepares a holder that is gone, so that others can have its devices.
    pub(super) async fn take_from(
        &self,
        holder: &Holder,
        conflict: &Conflict,
        reason: &str,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let (claim, holder_claim) = (conflict.claim(), holder.claim());
        tracing::warn!(%claim, holder = %holder_claim, reason, "holder of a device is gone, unpreparing it");
        match self.unprepare_holder(holder, deadline).await {
            Ok(true) => {
                self.metrics.holder_unprepared();
                tracing::info!(%claim, holder = %holder_claim, "holder unprepared");
                Ok(())
            }
            // Somebody else was faster.
            Ok(false) => Ok(()),
            Err(error) => Err(Refusal::not_unprepared(error)),
        }
    }

    /// Whether another instance has unprepared a claim. Only the disk tells.
    pub(super) async fn is_unprepared_elsewhere(&self, holder: &Holder) -> bool {
        if !holder.is_on_disk() || !self.locks.are_shared() {
            return false;
        }
        let (store, claim) = (self.store.clone(), holder.claim().clone());
        match self.disk.run(move || store.is_prepared(&claim)).await {
            Ok(Ok(is_prepared)) => !is_prepared,
            Ok(Err(error)) => unreadable(holder, &error.into()),
            Err(error) => unreadable(holder, &error.into()),
        }
    }
}

/// What cannot be read does not say that a claim is unprepared.
fn unreadable(holder: &Holder, error: &ClaimError) -> bool {
    tracing::warn!(holder = %holder.claim(), %error, "cannot read the record of a holder");
    false
}
