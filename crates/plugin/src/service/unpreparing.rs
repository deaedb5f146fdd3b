//! An unprepare: of a kubelet, and of the framework itself where no kubelet will.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::answer::AnswerError;
use super::error::ClaimError;
use super::{Answers, Held, Service, fail_all};
use crate::claims::FetchError;
use crate::driver::{Batch, DraPlugin};
use crate::ledger::Holder;
use crate::lock::{ClaimGuard, TurnGuard};
use crate::metrics::{FileWork, Operation};
use drakkar_client::ClaimRef;

/// How long a claim that is gone may be worked on by others before it is left for the next time.
const COLLECT_WAIT: Duration = Duration::from_secs(60);

impl<P: DraPlugin> Service<P> {
    pub(super) async fn unprepare_references(&self, claims: Vec<ClaimRef>, answers: &mut Answers<()>) {
        if claims.is_empty() {
            return;
        }
        match self.enter(claims.iter()).await {
            Ok(Held { turn, guards }) => self.unprepare_locked(claims, &guards, turn, answers).await,
            Err(error) => fail_all(claims.iter(), &error, answers),
        }
    }

    /// Unprepares claims that are locked. The turn, if it is given, ends when the driver is done.
    pub(super) async fn unprepare_locked(
        &self,
        claims: Vec<ClaimRef>,
        guards: &Arc<[ClaimGuard]>,
        turn: Option<TurnGuard>,
        answers: &mut Answers<()>,
    ) {
        for claim in &claims {
            // What the driver reports from now on, for example that a device is not ready any more, is still delivered.
            self.reporter.forget(&claim.uid);
        }
        let batch = Batch::new(claims, self.concurrency());
        let outcomes = self.call(Operation::Unprepare, || self.plugin.unprepare_batch(&batch)).await;
        drop(turn);
        let mut outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return fail_all(batch.iter(), &error, answers),
        };
        let finished = batch.into_claims().into_iter().map(|claim| {
            let (outcome, guards) = (outcomes.remove(&claim.uid), guards.clone());
            async move {
                let uid = claim.uid.to_string();
                match outcome {
                    None => (uid, Err(AnswerError::Missing.into())),
                    Some(Err(error)) => (uid, Err(ClaimError::driver(error))),
                    Some(Ok(())) => (uid, self.remove(claim, guards).await),
                }
            }
        });
        answers.extend(join_all(finished.collect::<Vec<_>>()).await);
        self.strangers(Operation::Unprepare, &outcomes);
    }

    /// Removes what there is of a claim, and releases its devices.
    async fn remove(&self, claim: ClaimRef, guards: Arc<[ClaimGuard]>) -> Result<(), ClaimError> {
        let (store, ledger, metrics) = (self.store.clone(), self.ledger.clone(), self.metrics.clone());
        let removed = self.disk.run_brief(move || {
            let timer = metrics.time_metadata(FileWork::Unprepare);
            let removed = store.unprepare(&claim);
            drop(timer);
            if removed.is_ok() {
                ledger.release(&claim.uid);
            }
            drop(guards);
            removed
        });
        Ok(removed.await??)
    }

    /// Unprepares a claim that no kubelet will, if it still has what it had. Says whether it had.
    pub(super) async fn unprepare_holder(&self, holder: &Holder, deadline: Instant) -> Result<bool, ClaimError> {
        let begun = Instant::now();
        let claim = holder.claim();
        let busy = |_| ClaimError::Busy { claim: Box::new(claim.clone()), waited: begun.elapsed() };
        let Held { turn, guards } = timeout_at(deadline, self.enter([claim].into_iter())).await.map_err(busy)??;
        if self.locks.are_shared() {
            self.learn(&[claim]).await;
        }
        if !self.ledger.still_holds(holder) {
            return Ok(false);
        }
        let mut answers = Answers::new();
        self.unprepare_locked(vec![claim.clone()], &guards, turn, &mut answers).await;
        answers.remove(claim.uid.as_str()).unwrap_or_else(|| Err(AnswerError::Missing.into()))?;
        Ok(true)
    }

    /// Unprepares a claim that is prepared here, and that the API server does not have any more or has given other devices. Says
    /// whether it was so.
    pub(crate) async fn collect(&self, claim: &ClaimRef) -> Result<bool, ClaimError> {
        let Some(holder) = self.ledger.holder(&claim.uid) else { return Ok(false) };
        match self.claims.fetch(claim).await {
            Ok(fetched) if !self.ledger.is_outdated(&fetched) => return Ok(false),
            Err(error @ FetchError::Api { .. }) => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        self.unprepare_holder(&holder, Instant::now() + COLLECT_WAIT).await
    }

    /// The claims that no kubelet unprepares.
    pub(crate) fn abandoned(&self) -> Vec<ClaimRef> {
        self.ledger.abandoned()
    }
}
