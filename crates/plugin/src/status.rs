//! Telling the API server of devices: `ResourceClaim.status.devices` (KEP-4817). Nothing else writes there.
//!
//! A report is checked ([`validate`]) and put into a queue ([`queue`]), which is all that a caller waits for: no prepare is
//! held up by an API server. One task delivers ([`worker`]), by server-side apply with a field manager of this driver's own, so
//! that others' entries, and what others add to ours, stay as they are.
//!
//! # What is remembered, and where
//!
//! Only reports that are not delivered yet, the last of each device, up to a bound. What was delivered is known to the API
//! server, which also knows which of it is ours: each apply starts from there ([`merge`]). So there is nothing to rebuild
//! after a restart, and nothing to free. A claim that is unprepared loses what still waits; what the driver reports from its
//! `unprepare` on is delivered. Entries of a claim that is deallocated are removed by the API server itself.

mod denial;
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

use drakkar_metadata::name::{ClaimUid, DriverName};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::queue::Queue;
pub use self::report::{ConditionStatus, DeviceCondition, DeviceStatus};
use self::worker::{FLUSH, Worker};
use crate::claims::ClaimSource;
use crate::metrics::Metrics;
use crate::start::Background;
use drakkar_client::ClaimRef;

/// Why a report was not taken in. Nothing of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// Values that the API server would refuse.
    #[error("claim {claim}: {}", .problems.join("; "))]
    Invalid {
        /// The claim that was reported of.
        claim: Box<ClaimRef>,
        /// All that is wrong; each names the device and the field.
        problems: Vec<String>,
    },
    /// Too many reports wait.
    #[error(
        "claim {claim}: the status of its devices cannot be reported now: reports of {waiting} claims wait for the API \
         server; report again later"
    )]
    Full {
        /// The claim that was reported of.
        claim: Box<ClaimRef>,
        /// How many claims have reports that wait.
        waiting: usize,
    },
    /// The driver stops.
    #[error("claim {claim}: the status of its devices cannot be reported any more: the driver stops")]
    Stopped {
        /// The claim that was reported of.
        claim: Box<ClaimRef>,
    },
}

/// Reports the status of devices, from wherever a driver is: from `prepare`, from a hook, from a task that watches devices.
/// A clone is another handle to the same.
#[derive(Clone)]
pub struct StatusReporter(Arc<Queue>);

impl StatusReporter {
    /// Says what there is to say of devices of a claim; see [`crate::Helper::report_device_status`].
    pub fn report_device_status(
        &self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = DeviceStatus>,
    ) -> Result<(), ReportError> {
        self.0.add(claim, devices.into_iter().collect())
    }

    /// Whether these could be reported, as far as that can be told without the API server.
    pub(crate) fn check(claim: &ClaimRef, devices: &[DeviceStatus]) -> Result<(), ReportError> {
        let problems = validate::problems(devices);
        let claim = || Box::new(claim.clone());
        if problems.is_empty() { Ok(()) } else { Err(ReportError::Invalid { claim: claim(), problems }) }
    }

    /// Nobody needs to know any more what was reported of a claim until now.
    pub(crate) fn forget(&self, uid: &ClaimUid) {
        self.0.forget(uid);
    }
}

impl fmt::Debug for StatusReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusReporter").finish_non_exhaustive()
    }
}

/// The last reports were not delivered in time.
#[derive(Debug, thiserror::Error)]
#[error("reports of device status were still on their way")]
pub(crate) struct Undelivered;

/// The queue and its task. Dropping this ends the task at once.
pub(crate) struct StatusReports {
    queue: Arc<Queue>,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl StatusReports {
    /// Starts the task. A report is tried for so long.
    pub(crate) fn start(
        claims: ClaimSource,
        driver: &DriverName,
        patience: Duration,
        background: Background,
        metrics: Metrics,
    ) -> Self {
        let queue = Arc::new(Queue::new(metrics));
        let stop = CancellationToken::new();
        let worker = Worker {
            queue: queue.clone(),
            claims,
            driver: driver.to_string(),
            manager: field_manager(driver),
            patience,
            background,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(worker.run(stop.clone())));
        Self { queue, stop, task }
    }

    /// A handle for whoever reports.
    pub(crate) fn reporter(&self) -> StatusReporter {
        StatusReporter(self.queue.clone())
    }

    /// Takes no more reports, and gives those that wait a last chance.
    pub(crate) async fn stop(mut self) -> Result<(), Undelivered> {
        self.queue.close();
        self.stop.cancel();
        match timeout_at(Instant::now() + FLUSH + Duration::from_secs(1), &mut self.task).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::error!(%error, "the task that reports device status");
                Err(Undelivered)
            }
            Err(_) => Err(Undelivered),
        }
    }
}

/// A report that nobody will deliver is refused.
impl Drop for StatusReports {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The name under which the API server knows what this driver has applied: the same on all nodes and for ever. A controller of
/// the same driver that sets binding conditions has to have another.
fn field_manager(driver: &DriverName) -> String {
    format!("{driver}-kubelet-plugin")
}
