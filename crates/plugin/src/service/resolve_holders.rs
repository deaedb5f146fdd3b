//! Resolves conflicts with a claim that holds a device which another claim needs: the API server decides.
//!
//! The framework unprepares a holder that is gone, or to which the device is no longer allocated, because the kubelet does
//! not; then the device is free. No lock is held while the API server is asked.

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::Service;
use super::error::{ClaimError, HolderError};
use crate::claims::FetchError;
use crate::driver::DraPlugin;
use crate::ledger::{Conflict, Holder};

/// The state of a holder according to the API server.
#[derive(Debug)]
pub(super) enum HolderState {
    /// The device is allocated to it.
    Allocated {
        /// Whether the ledger was corrected: the holder may no longer conflict.
        is_corrected: bool,
    },
    /// The device is not allocated to it.
    Gone(GoneReason),
    /// The API server could not be asked.
    Unknown(HolderError),
}

/// Why a holder no longer has a right to its device.
#[derive(Debug, thiserror::Error)]
pub(super) enum GoneReason {
    #[error("the claim has another allocation")]
    Reallocated,
    #[error(transparent)]
    Claim(FetchError),
}

impl<P: DraPlugin> Service<P> {
    /// Asks the API server for the state of holders, concurrently.
    pub(super) async fn check_holders(&self, holders: &[Holder], deadline: Instant) -> Vec<HolderState> {
        join_all(holders.iter().map(|holder| self.check_holder(holder, deadline))).await
    }

    async fn check_holder(&self, holder: &Holder, deadline: Instant) -> HolderState {
        let started = Instant::now();
        match timeout_at(deadline, self.claims.fetch(holder.claim())).await {
            Ok(Ok(fetched)) if holder.is_allocated_in(&fetched) => {
                HolderState::Allocated { is_corrected: self.ledger.correct_shares(holder, &fetched) }
            }
            Ok(Ok(_)) => HolderState::Gone(GoneReason::Reallocated),
            Ok(Err(error @ FetchError::Api { .. })) => HolderState::Unknown(HolderError::Fetch(error)),
            Ok(Err(error)) => HolderState::Gone(GoneReason::Claim(error)),
            Err(_elapsed) => HolderState::Unknown(HolderError::FetchTimeout { waited: started.elapsed() }),
        }
    }

    /// Unprepares a holder that is gone, so that its devices are free for others.
    pub(super) async fn unprepare_gone_holder(
        &self,
        holder: &Holder,
        conflict: &Conflict,
        reason: &GoneReason,
        deadline: Instant,
    ) -> Result<(), HolderError> {
        let claim = conflict.claim();
        let holder_claim = holder.claim();
        tracing::warn!(%claim, holder = %holder_claim, %reason, "holder of a device is gone, unpreparing it");
        match self.unprepare_holder(holder, deadline).await {
            Ok(true) => {
                self.metrics.holder_unprepared();
                tracing::info!(%claim, holder = %holder_claim, "holder unprepared");
                Ok(())
            }
            // The kubelet or another call has unprepared it meanwhile.
            Ok(false) => Ok(()),
            Err(error) => Err(HolderError::Unprepare(Box::new(error))),
        }
    }

    /// Whether another instance has unprepared a claim, according to the disk.
    pub(super) async fn is_unprepared_elsewhere(&self, holder: &Holder) -> bool {
        if !holder.is_on_disk() || !self.locks.are_shared() {
            return false;
        }
        let store = self.store.clone();
        let claim = holder.claim().clone();
        let error = match self.disk.run(move || store.is_prepared(&claim)).await {
            Ok(Ok(is_prepared)) => return !is_prepared,
            Ok(Err(error)) => ClaimError::from(error),
            Err(error) => ClaimError::from(error),
        };
        // An unreadable record does not prove that the claim is unprepared.
        tracing::warn!(holder = %holder.claim(), %error, "reading the record of a holder failed");
        false
    }
}
