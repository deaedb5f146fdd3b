//! Waiting for devices that another claim still has.
//!
//! A pod that was removed by force is gone for the scheduler at once, which gives its devices to the next. On the node the
//! kubelet unprepares the old claim a moment later, and maybe prepares the new one before that. If that were refused at
//! once, the kubelet would come back only after a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::answer::AnsweredDevice;
use super::error::ClaimError;
use super::{Answers, Service};
use crate::claim::ClaimRef;
use crate::driver::DraPlugin;
use crate::holders::Conflict;

/// How often to look at what another instance of the driver does, which is seen only on disk.
const LOOK: Duration = Duration::from_millis(250);
/// How long to leave it at that after a try that was in vain.
const PACE: Duration = Duration::from_millis(100);

impl<P: DraPlugin> Service<P> {
    /// Prepares the claims of a call that were refused because of others, once these have let go; for a while from when the
    /// call began.
    pub(super) async fn prepare_when_free(
        &self,
        wanted: &BTreeMap<String, ClaimRef>,
        answers: &mut Answers<Vec<AnsweredDevice>>,
        begun: Instant,
    ) {
        let end = begun + self.settings.device_patience;
        let mut is_told = false;
        while Instant::now() < end {
            // From before the look, so that nothing is missed.
            let mut releases = self.holders.releases();
            let (mut free, mut is_any) = (Vec::new(), false);
            for (uid, claim) in wanted {
                let Some(Err(ClaimError::Conflict(conflict))) = answers.get(uid) else { continue };
                // One that is in the same call is not let go of before this call has its answer.
                if wanted.contains_key(conflict.holder().uid.as_str()) {
                    continue;
                }
                is_any = true;
                if self.has_let_go(conflict).await {
                    free.push(claim);
                } else if !is_told {
                    tracing::info!(%claim, holder = %conflict.holder(), "waits for a device that another claim still has");
                }
            }
            if !is_any {
                return;
            }
            if free.is_empty() {
                is_told = true;
                let next = if self.locks.are_shared() { end.min(Instant::now() + LOOK) } else { end };
                // Whether it was told or is only time to look again makes no difference.
                let _ = timeout_at(next, releases.changed()).await;
                continue;
            }
            self.prepare_references(free.clone(), answers).await;
            // Another may have been quicker, and is in the way now. Two that chase each other do so slowly.
            let is_refused =
                |claim: &&ClaimRef| matches!(answers.get(claim.uid.as_str()), Some(Err(ClaimError::Conflict(_))));
            if free.iter().any(is_refused) {
                sleep_until(end.min(Instant::now() + PACE)).await;
            }
        }
    }

    /// Whether the claim that was in the way is gone. What cannot be told is found out by trying.
    async fn has_let_go(&self, conflict: &Conflict) -> bool {
        if !self.holders.still_holds(conflict) {
            return true;
        }
        if !conflict.may_be_gone() || !self.locks.are_shared() {
            return false;
        }
        let (store, holder) = (self.store.clone(), conflict.holder().clone());
        !matches!(self.disk.run(move || store.is_prepared(&holder)).await, Ok(Ok(true)))
    }
}
