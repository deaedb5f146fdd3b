//! Preparing and unpreparing claims: what happens between a call of the kubelet and the driver.
//!
//! One core for all versions of the kubelet's API; [`wire`] has the adapters. A prepare goes through these steps, and
//! every claim through them on its own, so that one bad claim fails alone:
//!
//! 1. The names in the call are checked, and the claims fetched, all at once ([`crate::claims`]).
//! 2. The driver's turn is waited for, if its calls are serialized, and then the claims are locked ([`crate::lock`]): nothing
//!    else is done to them, here or in another instance.
//! 3. Each claim gets its devices in the ledger ([`crate::ledger`]). One that has other devices from an earlier allocation is
//!    unprepared first.
//! 4. The driver prepares. A panic is an error.
//! 5. Its answer is checked ([`answer`]), the metadata written ([`crate::store`]), and the answer composed.
//! 6. With nothing locked, claims that were refused because another claim has a device wait for it ([`waiting`]), and are tried
//!    again. Where a holder is gone it is unprepared ([`settling`]).
//!
//! The kubelet's deadline drops the whole call wherever it waits. File work that has begun is finished all the same
//! ([`crate::disk`]), and holds the claim's lock until then.

pub(crate) mod answer;
mod error;
mod preparing;
mod settling;
mod unpreparing;
mod waiting;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use drakkar_metadata::name::{ClaimUid, DriverName, RequestName};
use drakkar_metadata::show::Printable;
use futures::FutureExt as _;

pub(crate) use self::answer::AnsweredDevice;
pub(crate) use self::error::{ClaimError, chain};
use tokio::time::Instant;

use crate::claim::base;
use crate::claims::ClaimSource;
use crate::disk::Disk;
use crate::driver::{Device, DraPlugin, Outcomes, Panicked};
use crate::ledger::DeviceLedger;
use crate::lock::{ClaimGuard, Locks, TurnGuard};
use crate::metrics::{FileWork, Metrics, Operation, Outcome, UpdateOutcome};
use crate::status::{DeviceStatus, StatusReporter};
use crate::store::{Delivery, Store, StoreError, SystemFiles};
use drakkar_client::ClaimRef;
use drakkar_slices::PublishedAttributes;

/// How often a turn is given back because a claim is locked. After that it is kept: updates of a claim that follow on each other
/// must not keep it from the driver.
const TURNS: usize = 8;

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
    pub(crate) ledger: Arc<DeviceLedger>,
    pub(crate) locks: Locks,
    pub(crate) store: Arc<Store<SystemFiles>>,
    pub(crate) disk: Disk,
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

/// The driver's turn, where its calls are serialized, and the locks of the claims of a call.
struct Held {
    turn: Option<TurnGuard>,
    guards: Arc<[ClaimGuard]>,
}

/// The core: a driver, and what the framework does around it.
#[derive(Debug)]
pub(crate) struct Service<P> {
    plugin: Arc<P>,
    settings: ServiceSettings,
    claims: ClaimSource,
    ledger: Arc<DeviceLedger>,
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
        let Rooms { claims, ledger, locks, store, disk, reporter, published } = rooms;
        Self { plugin, settings, claims, ledger, locks, store, disk, reporter, metrics, published }
    }

    /// Prepares claims. There is an answer for each.
    pub(crate) async fn prepare(&self, named: Vec<NamedClaim>) -> Answers<Vec<AnsweredDevice>> {
        let (wanted, mut answers) = references(named);
        let (unanswered, begun) = (Unanswered::new(Operation::Prepare, &wanted), Instant::now());
        self.prepare_references(wanted.values().collect(), &mut answers).await;
        self.settle_conflicts(&wanted, &mut answers, begun).await;
        unanswered.answered();
        self.told(Operation::Prepare, &wanted, &answers);
        answers
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
            // The claims of the call are locked until the driver returns, and another claim may share a lock with one of them:
            // whichever it is, this could wait for itself.
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

    /// Learns which claims another instance has prepared or unprepared, the locked ones among them for certain. The kubelet calls
    /// either, as it likes: after its restart even the older one.
    async fn learn(&self, locked: &[&ClaimRef]) {
        let (store, ledger) = (self.store.clone(), self.ledger.clone());
        let locked: Vec<ClaimRef> = locked.iter().map(|claim| (*claim).clone()).collect();
        let learned = self.disk.run(move || {
            let found = store.prepared()?;
            let locked: Vec<&ClaimRef> = locked.iter().collect();
            ledger.learn(&found.claims, &locked);
            for claim in locked.into_iter().filter(|claim| ledger.is_on_disk(&claim.uid)) {
                let is_found = found.claims.iter().any(|found| found.claim.uid == claim.uid);
                if !is_found && !store.is_prepared(claim)? {
                    ledger.release(&claim.uid);
                }
            }
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

    /// Waits for the driver's turn and then locks claims, in the order that [`crate::lock`] demands.
    async fn enter<'a>(&self, claims: impl Iterator<Item = &'a ClaimRef> + Clone) -> Result<Held, Arc<ClaimError>> {
        if !self.settings.serialize {
            return Ok(Held { turn: None, guards: self.lock(claims).await? });
        }
        for _ in 0..TURNS {
            let turn = self.turn().await?;
            if let Some(guards) = self.lock(claims.clone()).now_or_never() {
                return Ok(Held { turn: Some(turn), guards: guards? });
            }
            drop(turn);
            // Somebody writes the files of a claim, or waits to. Other claims of the driver need not wait for that.
            drop(self.lock(claims.clone()).await?);
        }
        let turn = self.turn().await?;
        Ok(Held { turn: Some(turn), guards: self.lock(claims).await? })
    }

    async fn turn(&self) -> Result<TurnGuard, Arc<ClaimError>> {
        self.locks.turn().await.map_err(|error| Arc::new(error.into()))
    }

    /// Calls the driver, whose turn the caller has.
    async fn call<T, W>(
        &self,
        operation: Operation,
        work: impl FnOnce() -> W + Send,
    ) -> Result<Outcomes<T>, Arc<ClaimError>>
    where
        W: Future<Output = Outcomes<T>> + Send,
    {
        let timer = self.metrics.time_driver(operation);
        // The driver's method is called in here too: it may work, and panic, before it returns the future.
        let outcomes = AssertUnwindSafe(CALLED_FOR.scope((), async move { work().await })).catch_unwind().await;
        drop(timer);
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

fn fail_all<'a, T>(claims: impl Iterator<Item = &'a ClaimRef>, error: &Arc<ClaimError>, answers: &mut Answers<T>) {
    answers.extend(claims.map(|claim| (claim.uid.to_string(), Err(ClaimError::Batch(error.clone())))));
}
