//! Reports of device status to the API server: `ResourceClaim.status.devices` (KEP-4817). Nothing else writes there.
//!
//! A report is validated ([`validate`]) and queued ([`queue`]), which is all that a caller waits for: the API server never
//! delays a prepare. One task delivers the reports ([`worker`]) by server-side apply with a field manager of this driver's
//! own, so that entries of others, and fields that others add to ours, stay as they are.
//!
//! # State
//!
//! Undelivered reports are kept in memory: the last one of each device, up to a limit. The API server has the delivered
//! ones and knows which of them are ours: each apply starts from there ([`merge`]). What it has is known of a claim that this
//! process has prepared ([`known`]), so that its reports are one request each; other claims are read first. So there is
//! nothing to rebuild after a restart. When a claim is unprepared, its pending reports and what is known of it are dropped;
//! reports that the driver makes during its `unprepare` or later are delivered. The API server removes the entries of a
//! deallocated claim itself.

mod denial;
mod known;
mod merge;
mod queue;
mod report;
#[cfg(test)]
mod tests;
mod validate;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::{ClaimUid, DriverName};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::known::KnownClaims;
use self::queue::Queue;
pub use self::report::{ConditionStatus, DeviceCondition, DeviceStatus};
use self::worker::{FLUSH_TIMEOUT, Worker};
use crate::background::Background;
use crate::claim::Claim;
use crate::claims::ClaimSource;
use crate::ledger::DeviceLedger;
use crate::metrics::Metrics;

/// A report that was refused as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The report has values that the API server would reject.
    #[error("claim {claim}: {}", .problems.join("; "))]
    Invalid {
        /// The claim of the report.
        claim: Box<ClaimRef>,
        /// All problems; each names the device and the field.
        problems: Vec<String>,
    },
    /// The queue is full.
    #[error(
        "claim {claim}: device status cannot be reported: the queue is full, reports of {waiting} claims wait for the API \
         server; retry later"
    )]
    Full {
        /// The claim of the report.
        claim: Box<ClaimRef>,
        /// The number of claims with pending reports.
        waiting: usize,
    },
    /// The driver is stopping.
    #[error("claim {claim}: device status can no longer be reported: the driver is stopping")]
    Stopped {
        /// The claim of the report.
        claim: Box<ClaimRef>,
    },
}

/// Reports device status, from anywhere in a driver: from `prepare`, from a hook, from a task that watches devices.
///
/// Clones share one queue.
#[derive(Clone)]
pub struct StatusReporter {
    queue: Arc<Queue>,
    known: Arc<KnownClaims>,
}

impl StatusReporter {
    /// Reports the status of devices of a claim; see [`crate::Handles::report_device_status`].
    pub fn report_device_status(
        &self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = DeviceStatus>,
    ) -> Result<(), ReportError> {
        self.queue.add(claim, devices.into_iter().collect())
    }

    /// Checks whether these reports are valid, as far as that is possible without the API server.
    pub(crate) fn check(claim: &ClaimRef, devices: &[DeviceStatus]) -> Result<(), ReportError> {
        let problems = validate::problems(devices);
        if problems.is_empty() {
            return Ok(());
        }
        Err(ReportError::Invalid { claim: Box::new(claim.clone()), problems })
    }

    /// Keeps what is known of a claim that is about to be prepared, for its reports.
    pub(crate) fn remember(&self, claim: &Claim) {
        self.known.insert_prepared(claim);
    }

    /// Drops the pending reports of a claim that is about to be unprepared, and what is known of it.
    pub(crate) fn forget(&self, uid: &ClaimUid) {
        self.queue.forget(uid);
        self.known.remove(uid);
    }

    /// Drops what is known of a claim that has been unprepared: the driver may have reported during its unprepare.
    pub(crate) fn forget_known(&self, uid: &ClaimUid) {
        self.known.remove(uid);
    }
}

impl fmt::Debug for StatusReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusReporter").finish_non_exhaustive()
    }
}

/// The last reports were not delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undelivered {
    /// The API server did not respond in time.
    #[error("device status reports were not delivered in time")]
    Timeout,
    /// The task failed.
    #[error("the task that reports device status failed: {0}")]
    Task(#[source] tokio::task::JoinError),
}

/// The queue of reports and the task that delivers them. Dropping this ends the task at once.
pub(crate) struct StatusReports {
    reporter: StatusReporter,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl StatusReports {
    /// Starts the task. A report is retried for up to `timeout`. The ledger has the prepared claims.
    pub(crate) fn start(
        claims: ClaimSource,
        ledger: Arc<DeviceLedger>,
        driver: &DriverName,
        timeout: Duration,
        background: Background,
        metrics: Metrics,
    ) -> Self {
        let queue = Arc::new(Queue::new(metrics));
        let known = Arc::new(KnownClaims::new(move |uid| ledger.contains(uid)));
        let stop = CancellationToken::new();
        let worker = Worker {
            queue: queue.clone(),
            known: known.clone(),
            claims,
            driver: driver.to_string(),
            manager: field_manager(driver),
            timeout,
            background,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(worker.run(stop.clone())));
        Self { reporter: StatusReporter { queue, known }, stop, task }
    }

    /// Returns a handle for reporting.
    pub(crate) fn reporter(&self) -> StatusReporter {
        self.reporter.clone()
    }

    /// Refuses further reports and tries once more to deliver the pending ones.
    pub(crate) async fn stop(mut self) -> Result<(), Undelivered> {
        self.reporter.queue.close();
        self.stop.cancel();
        match timeout_at(Instant::now() + FLUSH_TIMEOUT + Duration::from_secs(1), &mut self.task).await {
            Ok(ended) => ended.map_err(Undelivered::Task),
            Err(_elapsed) => Err(Undelivered::Timeout),
        }
    }
}

impl Drop for StatusReports {
    /// Closes the queue: from now on reports are refused, since no task would deliver them.
    fn drop(&mut self) {
        self.reporter.queue.close();
    }
}

/// Returns the field manager of this driver's applies. It must be the same on all nodes and in all versions. A controller
/// of the same driver that sets binding conditions must use another.
fn field_manager(driver: &DriverName) -> String {
    format!("{driver}-kubelet-plugin")
}
