//! Preparing and unpreparing claims: what happens between a call of the kubelet and the driver.
//!
//! One core for all versions of the kubelet's API; [`wire`] has the adapters. A prepare goes through these steps, and
//! every claim through them on its own, so that one bad claim fails alone:
//!
//! 1. The names in the call are checked, and the claims fetched, all at once ([`crate::claims`]).
//! 2. The claims are locked ([`crate::lock`]): nothing else is done to them, here or in another instance.
//! 3. Devices that another claim still has ([`crate::holders`]) are waited for ([`waiting`]), and refused after that.
//! 4. The driver prepares, in its turn if its calls are serialized. A panic is an error.
//! 5. Its answer is checked ([`answer`]), the metadata written ([`crate::store`]), and the answer composed.
//!
//! The kubelet's deadline drops the whole call wherever it waits. File work that has begun is finished all the same
//! ([`crate::disk`]), and holds the claim's lock until then.

pub(crate) mod answer;
mod error;
mod waiting;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use drakkar_metadata::name::{ClaimUid, DriverName, RequestName};
use drakkar_metadata::show::Printable;
use futures::FutureExt as _;
use futures::future::join_all;

use self::answer::AnswerError;
pub(crate) use self::answer::AnsweredDevice;
pub(crate) use self::error::{ClaimError, chain};
use tokio::time::Instant;

use crate::claim::{Claim, ClaimRef, base};
use crate::claims::ClaimSource;
use crate::disk::Disk;
use crate::driver::{Batch, Device, DeviceMetadata, DraPlugin, Outcomes, Panicked};
use crate::holders::{Holders, Reservation, uses};
use crate::lock::{ClaimGuard, Locks};
use crate::metrics::{FileWork, Metrics, Operation, Outcome, UpdateOutcome};
use crate::slices::PublishedAttributes;
use crate::status::{DeviceStatus, StatusReporter};
use crate::store::{Delivery, Store, StoreError, SystemFiles};

/// What the core is to do, and how.
#[derive(Debug, Clone)]
pub(crate) struct ServiceSettings {
    pub(crate) driver: DriverName,
    /// Whether new claims get metadata.
    pub(crate) metadata: bool,
    /// When metadata comes for which the driver returned no device.
    pub(crate) deferred: Delivery,
    /// Whether the driver's code is called for one batch at a time.
    pub(crate) serialize: bool,
    /// How many claims of a batch the driver's code may be called for at once, if it is not serialized.
    pub(crate) concurrency: usize,
    /// Whether a device that another claim has is refused.
    pub(crate) guard: bool,
    /// How long that claim is waited for.
    pub(crate) device_patience: Duration,
}

/// The rooms of the house that the core goes to.
#[derive(Debug)]
pub(crate) struct Rooms {
    pub(crate) claims: ClaimSource,
    pub(crate) holders: Arc<Holders>,
    pub(crate) locks: Locks,
    pub(crate) store: Arc<Store<SystemFiles>>,
    pub(crate) reporter: StatusReporter,
    /// Where attributes are from for which the driver gives none.
    pub(crate) published: Option<PublishedAttributes>,
}

/// A claim as a kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// What became of the claims of a call, by UID.
pub(crate) type Answers<T> = BTreeMap<String, Result<T, ClaimError>>;

tokio::task_local! {
    /// Set while the driver is called in this task.
    static CALLED_FOR: ();
}

/// The core: a driver, and what the framework does around it.
#[derive(Debug)]
pub(crate) struct Service<P> {
    plugin: Arc<P>,
    settings: ServiceSettings,
    claims: ClaimSource,
    holders: Arc<Holders>,
    locks: Locks,
    store: Arc<Store<SystemFiles>>,
    disk: Disk,
    reporter: StatusReporter,
    metrics: Metrics,
    /// Where attributes are from for which the driver gives none.
    published: Option<PublishedAttributes>,
}

impl<P: DraPlugin> Service<P> {
    pub(crate) fn new(plugin: Arc<P>, settings: ServiceSettings, rooms: Rooms, metrics: Metrics) -> Self {
        let Rooms { claims, holders, locks, store, reporter, published } = rooms;
        Self { plugin, settings, claims, holders, locks, store, disk: Disk::default(), reporter, metrics, published }
    }

    /// Prepares claims. There is an answer for each.
    pub(crate) async fn prepare(&self, named: Vec<NamedClaim>) -> Answers<Vec<AnsweredDevice>> {
        let (wanted, mut answers) = references(named);
        let (unanswered, begun) = (Unanswered::new(Operation::Prepare, &wanted), Instant::now());
        self.prepare_references(wanted.values().collect(), &mut answers).await;
        self.prepare_when_free(&wanted, &mut answers, begun).await;
        unanswered.answered();
        self.told(Operation::Prepare, &wanted, &answers);
        answers
    }

    /// Fetches claims and prepares them.
    async fn prepare_references(&self, wanted: Vec<&ClaimRef>, answers: &mut Answers<Vec<AnsweredDevice>>) {
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
        let guards = match self.lock(claims.iter().map(Claim::reference)).await {
            Ok(guards) => guards,
            Err(error) => return fail_all(claims.iter().map(Claim::reference), &error, answers),
        };
        if self.settings.guard && self.locks.are_shared() {
            self.learn().await;
        }
        let mut reservations = BTreeMap::new();
        let mut free = Vec::with_capacity(claims.len());
        for claim in claims {
            let uid = claim.reference().uid.clone();
            if let Err(error) = claim.pod_claim_name() {
                answers.insert(uid.to_string(), Err(ClaimError::PodClaim(error)));
                continue;
            }
            match self.reserve(&claim).await {
                Ok(reservation) => {
                    reservations.insert(uid, reservation);
                    free.push(claim);
                }
                Err(error) => drop(answers.insert(uid.to_string(), Err(error))),
            }
        }
        let batch = Batch::new(free, self.concurrency());
        if batch.is_empty() {
            return;
        }
        let outcomes = self.call(Operation::Prepare, || self.plugin.prepare_batch(&batch)).await;
        let mut outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return fail_all(batch.iter().map(Claim::reference), &error, answers),
        };
        let finished = batch.into_claims().into_iter().map(|claim| {
            let uid = claim.reference().uid.clone();
            let (outcome, reservation) = (outcomes.remove(&uid), reservations.remove(&uid));
            let guards = guards.clone();
            async move { (uid.to_string(), self.finish(claim, outcome, reservation, guards).await) }
        });
        answers.extend(join_all(finished.collect::<Vec<_>>()).await);
        self.strangers(Operation::Prepare, &outcomes);
    }

    /// Notes that a claim is about to have its devices.
    async fn reserve(&self, claim: &Claim) -> Result<Reservation, ClaimError> {
        let wanted = uses(claim);
        let mut asked = Vec::new();
        loop {
            let conflict = match self.holders.reserve(claim.reference(), &wanted, self.settings.guard) {
                Ok(reservation) => return Ok(reservation),
                Err(conflict) => conflict,
            };
            // Another instance may have unprepared it since this one started: what is on disk decides.
            let (store, holder) = (self.store.clone(), conflict.holder().clone());
            let is_prepared = !conflict.may_be_gone() || self.disk.run(move || store.is_prepared(&holder)).await??;
            let holder = conflict.holder();
            if !is_prepared {
                self.holders.release_holder(&conflict);
                continue;
            }
            // What was found on disk may know less of it than the API server: nothing of shares, if a driver on the Go
            // framework wrote it.
            if asked.contains(holder) {
                return Err(conflict.into());
            }
            asked.push(holder.clone());
            match self.claims.fetch(holder).await {
                // A claim that has been given other devices since still has here those that it was prepared with.
                Ok(fetched) if self.holders.is_still(holder, &fetched) => self.holders.correct(holder, &uses(&fetched)),
                _ => return Err(conflict.into()),
            }
        }
    }

    /// What comes after the driver, for one claim.
    async fn finish(
        &self,
        claim: Claim,
        outcome: Option<Result<Vec<Device>, crate::BoxError>>,
        reservation: Option<Reservation>,
        guards: Arc<[ClaimGuard]>,
    ) -> Result<Vec<AnsweredDevice>, ClaimError> {
        let mut devices = outcome.ok_or(AnswerError::Missing)?.map_err(ClaimError::driver)?;
        answer::check(&claim, &mut devices)?;
        let uid = &claim.reference().uid;
        // A claim that was prepared with metadata keeps it, also when the flag has been turned off since.
        if !self.settings.metadata && !self.holders.has_files(uid) {
            if let Some(reservation) = reservation {
                reservation.keep(false);
            }
            return Ok(answer::respond(&claim, devices, BTreeMap::new()));
        }
        if let Some(published) = &self.published {
            fill(published, &mut devices).await?;
        }
        let requests = answer::plan(&claim, &self.settings.driver, &mut devices, self.settings.deferred)?;
        let pod_claim = claim.pod_claim_name().map_err(ClaimError::PodClaim)?;
        let (store, metrics) = (self.store.clone(), self.metrics.clone());
        let written = self.disk.run(move || {
            let timer = metrics.time_metadata(FileWork::Prepare);
            let ids = store.prepare(claim.reference(), pod_claim.as_ref(), requests, &uses(&claim));
            drop(timer);
            if let (Ok(_), Some(reservation)) = (&ids, reservation) {
                reservation.keep(true);
            }
            drop(guards);
            ids.map(|ids| (claim, ids))
        });
        let (claim, ids) = written.await??;
        Ok(answer::respond(&claim, devices, ids))
    }

    /// Unprepares claims. There is an answer for each; what is not prepared is unprepared already.
    pub(crate) async fn unprepare(&self, named: Vec<NamedClaim>) -> Answers<()> {
        let (wanted, mut answers) = references(named);
        let unanswered = Unanswered::new(Operation::Unprepare, &wanted);
        self.unprepare_references(wanted.values().cloned().collect(), &mut answers).await;
        unanswered.answered();
        self.told(Operation::Unprepare, &wanted, &answers);
        answers
    }

    async fn unprepare_references(&self, claims: Vec<ClaimRef>, answers: &mut Answers<()>) {
        if claims.is_empty() {
            return;
        }
        let guards = match self.lock(claims.iter()).await {
            Ok(guards) => guards,
            Err(error) => return fail_all(claims.iter(), &error, answers),
        };
        for claim in &claims {
            // What the driver reports from now on, for example that a device is not ready any more, is still delivered.
            self.reporter.forget(&claim.uid);
        }
        let batch = Batch::new(claims, self.concurrency());
        let outcomes = self.call(Operation::Unprepare, || self.plugin.unprepare_batch(&batch)).await;
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

    /// Removes what there is of a claim, and lets go of its devices.
    async fn remove(&self, claim: ClaimRef, guards: Arc<[ClaimGuard]>) -> Result<(), ClaimError> {
        let (store, holders, metrics) = (self.store.clone(), self.holders.clone(), self.metrics.clone());
        let removed = self.disk.run(move || {
            let timer = metrics.time_metadata(FileWork::Unprepare);
            let removed = store.unprepare(&claim);
            drop(timer);
            if removed.is_ok() {
                holders.release(&claim.uid);
            }
            drop(guards);
            removed
        });
        Ok(removed.await??)
    }

    /// Replaces what containers see of one request, reports what is to be reported then, and gives the new generation.
    pub(crate) async fn update(
        &self,
        claim: &ClaimRef,
        reference: &str,
        devices: Vec<Device>,
        reports: Vec<DeviceStatus>,
    ) -> Result<i64, ClaimError> {
        let request = RequestName::new(base(reference))?;
        StatusReporter::check(claim, &reports)?;
        if CALLED_FOR.try_with(|()| ()).is_ok() {
            // The claims of the call are locked until the driver returns, and another claim may be held by a call that waits
            // for the driver's turn: whichever it is, this could wait for itself.
            return Err(ClaimError::UpdateInCall { claim: Box::new(claim.clone()) });
        }
        let driver = &self.settings.driver;
        let content = devices
            .into_iter()
            .map(|device| answer::content(driver, &device.pool_name, &device.device_name, device.metadata))
            .collect();
        let guards = self.lock([claim].into_iter()).await?;
        let (store, metrics, claim) = (self.store.clone(), self.metrics.clone(), claim.clone());
        let reporter = self.reporter.clone();
        let updated = self.disk.run(move || {
            let timer = metrics.time_metadata(FileWork::Update);
            let updated = store.update(&claim, &request, content);
            metrics.metadata_update(match &updated {
                Ok(_) => UpdateOutcome::Success,
                Err(error) if error.is_refusal() => UpdateOutcome::Refused,
                Err(_) => UpdateOutcome::Failed,
            });
            drop(timer);
            let generation = updated?;
            // Before another update can begin: of two, both sides keep the same one.
            reporter.report_device_status(&claim, reports)?;
            drop(guards);
            Ok(generation)
        });
        updated.await?
    }

    /// Removes a claim that the API server has no more, and says whether it was so. An object that is gone does not come back
    /// with the same UID.
    pub(crate) async fn collect(&self, claim: &ClaimRef) -> Result<bool, ClaimError> {
        if !self.holders.has_files(&claim.uid) || !self.claims.is_gone(claim).await? {
            return Ok(false);
        }
        let guards = self.lock([claim].into_iter()).await?;
        self.remove(claim.clone(), guards).await?;
        Ok(true)
    }

    /// Learns which claims another instance has prepared or unprepared. The kubelet calls either, as it likes: after its
    /// restart even the older one.
    async fn learn(&self) {
        let (store, holders) = (self.store.clone(), self.holders.clone());
        let learned = self.disk.run(move || {
            let found = store.prepared()?;
            holders.learn(&found.claims);
            Ok::<_, StoreError>(found.problems)
        });
        let problems = match learned.await {
            Ok(Ok(problems)) => problems.into_iter().map(|problem| problem.to_string()).collect(),
            Ok(Err(error)) => vec![error.to_string()],
            Err(error) => vec![error.to_string()],
        };
        for problem in problems {
            // A prepare of that claim has its own error; others need not fail with it.
            tracing::warn!(problem, "cannot tell what another instance has prepared");
        }
    }

    /// Calls the driver, in its turn.
    async fn call<T, W>(
        &self,
        operation: Operation,
        work: impl FnOnce() -> W + Send,
    ) -> Result<Outcomes<T>, Arc<ClaimError>>
    where
        W: Future<Output = Outcomes<T>> + Send,
    {
        let turn = match self.settings.serialize {
            true => Some(self.locks.turn().await.map_err(|error| Arc::new(error.into()))?),
            false => None,
        };
        let timer = self.metrics.time_driver(operation);
        // The driver's method is called in here too: it may work, and panic, before it returns the future.
        let outcomes = AssertUnwindSafe(CALLED_FOR.scope((), async move { work().await })).catch_unwind().await;
        drop((timer, turn));
        outcomes.map_err(|panic| Arc::new(ClaimError::driver(Panicked::from(&*panic).into())))
    }

    async fn lock(&self, claims: impl Iterator<Item = &ClaimRef>) -> Result<Arc<[ClaimGuard]>, Arc<ClaimError>> {
        let guards = self.locks.claims(claims.map(|claim| (&claim.namespace, &claim.name))).await;
        guards.map(Into::into).map_err(|error| Arc::new(error.into()))
    }

    fn concurrency(&self) -> usize {
        if self.settings.serialize { 1 } else { self.settings.concurrency }
    }

    /// Outcomes of claims that the driver was not asked about.
    fn strangers<T>(&self, operation: Operation, outcomes: &Outcomes<T>) {
        for uid in outcomes.keys() {
            tracing::warn!(?operation, claim_uid = %uid, "the driver answered for a claim that it was not asked about");
        }
    }

    /// Puts what became of a call into the log and the metrics.
    fn told<T>(&self, operation: Operation, wanted: &BTreeMap<String, ClaimRef>, answers: &Answers<T>) {
        for (uid, answer) in answers {
            self.metrics.claim(operation, answer.as_ref().err().map_or(Outcome::Success, ClaimError::outcome));
            let claim = wanted.get(uid).map(ToString::to_string).unwrap_or_else(|| format!("(uid {uid})"));
            match answer {
                Ok(_) => tracing::debug!(?operation, claim, "done"),
                // Whoever wrote the claim may have chosen some of the error's text: it must stay one line.
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(?operation, claim, error = %Printable::whole(&error), "failed");
                }
            }
        }
        self.metrics.set_prepared_claims(self.holders.len());
    }
}

/// A call that has no answer yet. One that is dropped without has not been silent.
struct Unanswered<'a> {
    operation: Operation,
    claims: &'a BTreeMap<String, ClaimRef>,
    is_answered: bool,
}

impl<'a> Unanswered<'a> {
    fn new(operation: Operation, claims: &'a BTreeMap<String, ClaimRef>) -> Self {
        Self { operation, claims, is_answered: false }
    }

    fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for claim in self.claims.values().filter(|_| !self.is_answered) {
            let operation = self.operation;
            tracing::warn!(?operation, %claim, "given up: the kubelet's deadline has passed, or the driver stops");
        }
    }
}

/// The claims that are meant, by UID, and errors for those that cannot be: their names are not names.
fn references<T>(named: Vec<NamedClaim>) -> (BTreeMap<String, ClaimRef>, Answers<T>) {
    let (mut wanted, mut answers) = (BTreeMap::new(), Answers::new());
    for NamedClaim { namespace, name, uid } in named {
        let reference = (|| {
            Ok(ClaimRef { namespace: namespace.parse()?, name: name.parse()?, uid: ClaimUid::new(uid.as_str())? })
        })();
        match reference {
            Ok(reference) => drop(wanted.insert(uid, reference)),
            Err(error) => drop(answers.insert(uid, Err(ClaimError::Name(error)))),
        }
    }
    (wanted, answers)
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

fn fail_all<'a, T>(claims: impl Iterator<Item = &'a ClaimRef>, error: &Arc<ClaimError>, answers: &mut Answers<T>) {
    answers.extend(claims.map(|claim| (claim.uid.to_string(), Err(ClaimError::Batch(error.clone())))));
}
