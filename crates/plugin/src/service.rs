//! Prepares, unprepares and updates claims: everything between a call of the kubelet and the driver.
//!
//! One core serves all versions of the kubelet's API; [`wire`] has the adapters. Each claim of a call goes through these
//! steps independently, so one bad claim fails alone:
//!
//! 1. Validate the names in the call and fetch the claims, concurrently ([`crate::claims`]).
//! 2. Take the driver call lock, if driver calls are serialized, then lock the claims ([`crate::lock`]): no other call works
//!    on them, in this instance or another one.
//! 3. Reserve the claim's devices in the ledger ([`crate::ledger`]). A claim that holds devices of an earlier allocation is
//!    unprepared first.
//! 4. Call the driver. A panic becomes an error.
//! 5. Check the driver's response ([`driver_response`]), write metadata and CDI specs ([`crate::store`]), and build the response.
//! 6. With no lock held, wait for devices that other claims hold ([`wait_for_devices`]) and retry. A holder that is gone is
//!    unprepared ([`resolve_holders`]).
//!
//! When the kubelet's deadline passes, the call is dropped at whatever `await` it has reached. File work that has started
//! still runs to completion ([`crate::disk`]) and keeps the claim's lock until then.

mod container_edits;
pub(crate) mod driver_response;
mod error;
mod pending_call;
mod prepare;
mod resolve_holders;
mod unprepare;
mod wait_for_devices;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::fmt::{self, Display as _};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::{ClaimUid, DriverName, RequestName};
use drakkar_metadata::show::Printable;
use drakkar_slices::PublishedAttributes;
use futures::FutureExt as _;
use smallvec::SmallVec;
use tokio::time::Instant;

pub(crate) use self::driver_response::PreparedDevice;
pub(crate) use self::error::{ClaimError, chain};
use self::pending_call::PendingCall;
use crate::call_watch::CallWatch;
use crate::claim::base;
use crate::claims::ClaimSource;
use crate::disk::Disk;
use crate::driver::{Device, DraPlugin, Outcomes};
use crate::error::Panicked;
use crate::ledger::DeviceLedger;
use crate::lock::{ClaimGuards, DriverCallGuard, Locks};
use crate::metrics::{FileWork, Metrics, Operation, Outcome, UpdateOutcome};
use crate::recent_errors::RecentErrors;
use crate::status::{DeviceStatus, StatusReporter};
use crate::store::{Delivery, Store, StoreError, SystemFiles};

/// How often the driver call lock is released because a claim is locked. After that it is kept while waiting for the
/// claim: a sequence of updates of one claim must not starve its prepare.
const MAX_LOCK_RELEASES: usize = 8;

/// The settings of a [`Service`].
#[derive(Debug, Clone)]
pub(crate) struct ServiceSettings {
    pub(crate) driver: DriverName,
    /// Whether new claims get metadata.
    pub(crate) metadata: bool,
    /// How metadata is delivered for a request for which the driver returned no device.
    pub(crate) deferred: Delivery,
    /// Whether the driver is called for one batch at a time.
    pub(crate) serialize: bool,
    /// The number of claims of a batch for which the driver is called concurrently, unless calls are serialized.
    pub(crate) concurrency: usize,
    /// Whether to refuse a device that another claim holds.
    pub(crate) guard: bool,
    /// The time the kubelet gets to unprepare a claim that holds a device which another claim needs.
    pub(crate) device_timeout: Duration,
}

/// The parts of the framework that a [`Service`] handles claims with.
#[derive(Debug)]
pub(crate) struct ClaimContext {
    pub(crate) claims: ClaimSource,
    pub(crate) ledger: Arc<DeviceLedger>,
    pub(crate) locks: Locks,
    pub(crate) store: Arc<Store<SystemFiles>>,
    pub(crate) disk: Disk,
    pub(crate) reporter: StatusReporter,
    pub(crate) recent: RecentErrors,
    /// The source of attributes for devices that the driver returns without metadata.
    pub(crate) published: Option<PublishedAttributes>,
    /// Notices driver code that blocks.
    pub(crate) calls: Option<CallWatch>,
}

/// A claim as named by the kubelet, not yet validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The result for each claim of a call, by UID.
pub(crate) type Responses<T> = BTreeMap<String, Result<T, ClaimError>>;

tokio::task_local! {
    /// Set while this task runs driver code.
    static IN_DRIVER_CALL: ();
}

/// The locks held during a call of the driver.
struct CallLocks {
    /// Held if driver calls are serialized.
    driver_call: Option<DriverCallGuard>,
    claims: ClaimGuards,
}

/// A driver and the framework's handling of its claims.
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
    recent: RecentErrors,
    metrics: Metrics,
    published: Option<PublishedAttributes>,
    calls: Option<CallWatch>,
}

impl<P: DraPlugin> Service<P> {
    pub(crate) fn new(plugin: Arc<P>, settings: ServiceSettings, context: ClaimContext, metrics: Metrics) -> Self {
        let ClaimContext { claims, ledger, locks, store, disk, reporter, recent, published, calls } = context;
        Self { plugin, settings, claims, ledger, locks, store, disk, reporter, recent, metrics, published, calls }
    }

    /// Prepares claims, and returns one response for each.
    pub(crate) async fn prepare(&self, named: Vec<NamedClaim>) -> Responses<Vec<PreparedDevice>> {
        let started = Instant::now();
        let _in_flight = self.disk.count_call();
        let (claims, mut responses) = parse_references(named);
        let pending = PendingCall::new(Operation::Prepare, &claims, &self.recent);
        self.prepare_references(claims.values().collect(), &mut responses).await;
        self.resolve_conflicts(&claims, &mut responses, started).await;
        pending.complete();
        self.record_outcomes(Operation::Prepare, &claims, &responses, started);
        responses
    }

    /// Unprepares claims, and returns one response for each. Unpreparing a claim that is not prepared succeeds.
    pub(crate) async fn unprepare(&self, named: Vec<NamedClaim>) -> Responses<()> {
        let started = Instant::now();
        let _in_flight = self.disk.count_call();
        let (claims, mut responses) = parse_references(named);
        let pending = PendingCall::new(Operation::Unprepare, &claims, &self.recent);
        self.unprepare_references(claims.values().cloned().collect(), &mut responses).await;
        pending.complete();
        self.record_outcomes(Operation::Unprepare, &claims, &responses, started);
        responses
    }

    /// Replaces the metadata of one request, queues the status reports that belong to it, and returns the new generation.
    pub(crate) async fn update(
        &self,
        claim: &ClaimRef,
        reference: &str,
        devices: Vec<Device>,
        reports: Vec<DeviceStatus>,
    ) -> Result<i64, ClaimError> {
        let request = RequestName::new(base(reference))?;
        StatusReporter::check(claim, &reports)?;
        if IN_DRIVER_CALL.try_with(|()| ()).is_ok() {
            // The claims of the call are locked until the driver returns, and any other claim may share a lock slot with one
            // of them: whichever claim this is, the update could deadlock.
            return Err(ClaimError::UpdateInCall { claim: Box::new(claim.clone()) });
        }
        let driver = &self.settings.driver;
        let content = devices
            .into_iter()
            .map(|device| driver_response::content(driver, &device.pool_name, &device.device_name, device.metadata))
            .collect();
        let guards = self.lock_claims([claim].into_iter()).await?;
        let store = self.store.clone();
        let metrics = self.metrics.clone();
        let reporter = self.reporter.clone();
        let claim = claim.clone();
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
            // While the claim is locked, so that the file and the status end with the same one of two concurrent updates.
            reporter.report_device_status(&claim, reports)?;
            drop(guards);
            Ok(generation)
        });
        updated.await?
    }

    /// Closes the gate of one request again.
    pub(crate) async fn withdraw(&self, claim: &ClaimRef, reference: &str) -> Result<(), ClaimError> {
        let request = RequestName::new(base(reference))?;
        if IN_DRIVER_CALL.try_with(|()| ()).is_ok() {
            return Err(ClaimError::UpdateInCall { claim: Box::new(claim.clone()) });
        }
        let guards = self.lock_claims([claim].into_iter()).await?;
        let store = self.store.clone();
        let claim = claim.clone();
        let withdrawn = self.disk.run(move || {
            let withdrawn = store.withdraw(&claim, &request);
            drop(guards);
            withdrawn
        });
        Ok(withdrawn.await??)
    }

    /// Updates the ledger with what another instance has prepared or unprepared, according to its records on disk. The result
    /// is reliable only for the locked claims.
    ///
    /// The kubelet may call either instance; after its own restart even the older one.
    async fn refresh_ledger(&self, locked: &[&ClaimRef]) {
        let store = self.store.clone();
        let ledger = self.ledger.clone();
        let locked: Vec<ClaimRef> = locked.iter().map(|claim| (*claim).clone()).collect();
        let refreshed = self.disk.run(move || {
            let found = store.prepared_claims()?;
            let locked: Vec<&ClaimRef> = locked.iter().collect();
            ledger.refresh(&found.claims, &locked);
            for claim in locked.into_iter().filter(|claim| ledger.is_on_disk(&claim.uid)) {
                let is_found = found.claims.iter().any(|found| found.claim.uid == claim.uid);
                if !is_found && !store.is_prepared(claim)? {
                    ledger.release(&claim.uid);
                }
            }
            Ok::<_, StoreError>(found.problems)
        });
        let errors = match refreshed.await {
            Ok(Ok(problems)) => problems.into_iter().map(ClaimError::from).collect(),
            Ok(Err(error)) => vec![ClaimError::from(error)],
            Err(error) => vec![ClaimError::from(error)],
        };
        for error in errors {
            // Not an error of this call: a prepare of the claim whose record is unreadable fails by itself.
            tracing::warn!(%error, "reading the records of another instance failed");
        }
    }

    /// Takes the driver call lock, if calls are serialized, and then locks the claims: the order that [`crate::lock`] requires.
    async fn lock_for_driver_call<'a>(
        &self,
        claims: impl Iterator<Item = &'a ClaimRef> + Clone,
    ) -> Result<CallLocks, Arc<ClaimError>> {
        if !self.settings.serialize {
            return Ok(CallLocks { driver_call: None, claims: self.lock_claims(claims).await? });
        }
        for _ in 0..MAX_LOCK_RELEASES {
            let driver_call = self.lock_driver_call().await?;
            if let Some(guards) = self.lock_claims(claims.clone()).now_or_never() {
                return Ok(CallLocks { driver_call: Some(driver_call), claims: guards? });
            }
            // Another task writes the files of a claim, or waits to do so. Other claims of the driver need not wait for that.
            drop(driver_call);
            drop(self.lock_claims(claims.clone()).await?);
        }
        let driver_call = self.lock_driver_call().await?;
        Ok(CallLocks { driver_call: Some(driver_call), claims: self.lock_claims(claims).await? })
    }

    async fn lock_driver_call(&self) -> Result<DriverCallGuard, Arc<ClaimError>> {
        self.locks.driver_call().await.map_err(|error| Arc::new(error.into()))
    }

    /// Calls the driver. The caller holds the locks for it.
    async fn call_driver<T, W>(
        &self,
        operation: Operation,
        work: impl FnOnce() -> W + Send,
    ) -> Result<Outcomes<T>, Arc<ClaimError>>
    where
        W: Future<Output = Outcomes<T>> + Send,
    {
        let timer = self.metrics.time_driver(operation);
        // The driver's method is called inside the future: it may do work, and panic, before it returns its own future.
        let called = IN_DRIVER_CALL.scope((), async move { work().await });
        let outcomes = match &self.calls {
            Some(calls) => AssertUnwindSafe(calls.watch(operation.as_str(), called)).catch_unwind().await,
            None => AssertUnwindSafe(called).catch_unwind().await,
        };
        drop(timer);
        outcomes.map_err(|panic| Arc::new(ClaimError::driver(Panicked::from(&*panic).into())))
    }

    async fn lock_claims(&self, claims: impl Iterator<Item = &ClaimRef>) -> Result<ClaimGuards, Arc<ClaimError>> {
        let guards = self.locks.claims(claims.map(|claim| (&claim.namespace, &claim.name))).await;
        guards.map_err(|error| Arc::new(error.into()))
    }

    fn concurrency(&self) -> usize {
        if self.settings.serialize { 1 } else { self.settings.concurrency }
    }

    /// Warns about outcomes for claims that were not part of the call.
    fn warn_unrequested<T>(&self, operation: Operation, outcomes: &Outcomes<T>) {
        for uid in outcomes.keys() {
            tracing::warn!(operation = operation.as_str(), claim_uid = %uid, "driver returned an outcome for a claim that was not requested");
        }
    }

    /// Keeps an error about a claim for the page of the driver.
    pub(crate) fn record_error(&self, operation: &'static str, claim: &ClaimRef, error: &ClaimError) {
        self.recent.add(operation, Some(short_name(claim)), error);
    }

    /// Writes the outcome of each claim of a call to the log and the metrics.
    fn record_outcomes<T>(
        &self,
        operation: Operation,
        claims: &BTreeMap<String, ClaimRef>,
        responses: &Responses<T>,
        started: Instant,
    ) {
        // More digits than microseconds say nothing.
        let duration = Duration::from_micros(u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX));
        for (uid, response) in responses {
            self.metrics.claim(operation, response.as_ref().err().map_or(Outcome::Success, ClaimError::outcome));
            let reference = claims.get(uid);
            if let Err(error) = response {
                self.recent.add(operation.as_str(), reference.map(short_name), error);
            }
            let claim = fmt::from_fn(|f| match reference {
                Some(reference) => reference.fmt(f),
                None => write!(f, "(uid {uid})"),
            });
            match response {
                Ok(_) => match operation {
                    Operation::Prepare => tracing::info!(%claim, ?duration, "claim prepared"),
                    Operation::Unprepare => tracing::info!(%claim, ?duration, "claim unprepared"),
                },
                // The author of the claim may control part of the error's text: it must not break the log line.
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(
                        operation = operation.as_str(),
                        %claim,
                        ?duration,
                        error = %Printable::whole(&error),
                        "claim operation failed"
                    );
                }
            }
        }
    }
}

/// Runs futures concurrently. One alone, as in nearly every call of a kubelet, costs nothing beside its own work.
async fn join_all<F: Future>(mut futures: impl ExactSizeIterator<Item = F>) -> SmallVec<[F::Output; 1]> {
    if futures.len() == 1 {
        // Not `if let`: its temporary would keep a second copy of the future.
        let Some(only) = futures.next() else { return SmallVec::new() };
        return SmallVec::from_iter([only.await]);
    }
    futures::future::join_all(futures).await.into()
}

/// Returns a claim as users name it, without its UID.
fn short_name(claim: &ClaimRef) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}

/// Returns the claims of a call by UID, and an error response for each claim with an invalid name.
fn parse_references<T>(named: Vec<NamedClaim>) -> (BTreeMap<String, ClaimRef>, Responses<T>) {
    let mut claims = BTreeMap::new();
    let mut responses = Responses::new();
    for NamedClaim { namespace, name, uid } in named {
        let reference = (|| {
            Ok(ClaimRef { namespace: namespace.parse()?, name: name.parse()?, uid: ClaimUid::new(uid.as_str())? })
        })();
        match reference {
            Ok(reference) => drop(claims.insert(uid, reference)),
            Err(error) => drop(responses.insert(uid, Err(ClaimError::Name(error)))),
        }
    }
    (claims, responses)
}

fn fail_all<'a, T>(claims: impl Iterator<Item = &'a ClaimRef>, error: &Arc<ClaimError>, responses: &mut Responses<T>) {
    responses.extend(claims.map(|claim| (claim.uid.to_string(), Err(ClaimError::Batch(error.clone())))));
}
