//! Delivering reports: one task, one claim at a time.
//!
//! For each claim: read it, [merge](super::merge), apply with the UID and the version that were read. If the claim has changed
//! in between it is read again, so nothing of what another writer did meanwhile can get lost.
//!
//! | what happens | what becomes of the reports |
//! |---|---|
//! | no answer, 401, 429, 503, 504 | tried again after a pause that doubles, until they are too old; then told. Meanwhile those of other claims wait too; not before the server wants it, if it says when |
//! | another 5xx | the same, but others do not wait: it may be about this claim alone |
//! | a permission is missing | told at once with the rule to add; tried again slowly, in case somebody adds it |
//! | the claim is gone, replaced or not allocated any more | dropped: there is nothing to report of |
//! | the device is not the claim's, or the server refuses the values | told, and not tried again |
//! | the driver stops | tried once more within a few seconds; then told |

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::backoff::{SPREAD, jittered};
use drakkar_client::{ApiError, Backoff};
use http::StatusCode;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::denial::{Refusal, get_denied, refusal};
use super::merge::{has_all, merge};
use super::queue::{Job, Next, Queue, Report};
use crate::claims::{Applied, ClaimSource};
use crate::driver::BackgroundError;
use crate::metrics::ReportOutcome;
use crate::start::Background;
use drakkar_client::ClaimRef;

/// How long the last reports may take when the driver stops.
pub(super) const FLUSH: Duration = Duration::from_secs(5);
/// How often an apply is tried at once when the claim changes under it.
const CONFLICTS: usize = 5;
/// Delays between tries after transient errors.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30)).with_jitter(0.5, 1.0);
/// The pause after a permission that is missing.
const DENIED_PAUSE: Duration = Duration::from_secs(60);

/// Why reports did not reach the API server.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("claim {claim}, {devices}: {reason}; tried again for {} s, in case that changes", .left.as_secs())]
    Denied { claim: Box<ClaimRef>, devices: String, reason: String, left: Duration },
    #[error("claim {claim}, {devices}: given up after {} s, in try {tries}: {reason}", .after.as_secs())]
    GivenUp { claim: Box<ClaimRef>, devices: String, reason: String, after: Duration, tries: u32 },
    #[error("claim {claim}, {devices}: {reason}")]
    Refused { claim: Box<ClaimRef>, devices: String, reason: String },
}

/// Why one try failed.
enum Failure {
    /// It may go better next time.
    Passing(String),
    /// It may go better next time, and until then with other claims no better.
    Server(ApiError),
    /// A permission is missing.
    Denied(String),
    /// There is nothing to report of.
    Gone(&'static str),
    /// It will not go better.
    Final(String),
}

/// Who delivers reports.
pub(super) struct Worker {
    pub(super) queue: Arc<Queue>,
    pub(super) claims: ClaimSource,
    pub(super) driver: String,
    pub(super) manager: String,
    /// How long a report is tried.
    pub(super) patience: Duration,
    pub(super) background: Background,
}

impl Worker {
    /// Delivers until it is told to stop; then once more.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.step() => {}
            }
        }
        self.queue.close();
        let deadline = Instant::now() + FLUSH;
        while let Next::Now(job) = self.queue.next() {
            let failure = match timeout_at(deadline, self.deliver(&job)).await {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Passing("the driver stops, and the API server takes too long".to_owned()),
            };
            self.failed(&job, failure, true);
        }
    }

    /// Does what is next, or waits until there is something. Dropped where it waits, nothing is lost: an apply that was on
    /// its way is made again.
    async fn step(&self) {
        match self.queue.next() {
            Next::Now(job) => {
                if let Err(failure) = self.deliver(&job).await {
                    self.failed(&job, failure, false);
                }
            }
            Next::Later(time) => tokio::select! {
                () = sleep_until(time) => {}
                () = self.queue.changed() => {}
            },
            Next::Nothing => self.queue.changed().await,
        }
    }

    async fn deliver(&self, job: &Job) -> Result<(), Failure> {
        let uid = &job.claim.uid;
        for _ in 0..CONFLICTS {
            let claim = self.claims.read(&job.claim).await.map_err(read_failure)?;
            let claim = claim.ok_or(Failure::Gone("it does not exist any more"))?;
            check(&claim, &job.claim)?;
            let merged = merge(&claim, &self.driver, &self.manager, &job.reports);
            for (number, reason) in merged.refused {
                let devices = named(job.reports.iter().filter(|report| report.number == number));
                self.tell(DeliveryError::Refused { claim: Box::new(job.claim.clone()), devices, reason });
                self.queue.done(uid, &[number], ReportOutcome::Refused);
            }
            if merged.taken.is_empty() {
                return Ok(());
            }
            let version = claim.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
            let applied = self.claims.apply_status(&job.claim, &self.manager, version, &merged.devices).await;
            match applied.map_err(passing_or_final)? {
                Applied::Yes(claim) if has_all(&claim, &self.driver, &merged.devices) => {
                    tracing::debug!(claim = %job.claim, devices = merged.taken.len(), "reported the status of devices");
                    self.queue.done(uid, &merged.taken, ReportOutcome::Delivered);
                    return Ok(());
                }
                Applied::Yes(_) => {
                    let reason = "the API server took the status and did not keep it: turn on its feature gate \
                                  DRAResourceClaimDeviceStatus (from Kubernetes 1.33 on it is)";
                    return Err(Failure::Final(reason.to_owned()));
                }
                Applied::NoClaim => return Err(Failure::Gone("it does not exist any more")),
                Applied::Conflict => {}
                Applied::Refused(code, status) => {
                    return Err(match refusal(code, &status, &self.driver) {
                        Refusal::Denied(reason) => Failure::Denied(reason),
                        Refusal::Replaced => Failure::Gone("another claim has its name"),
                        Refusal::Invalid(reason) => Failure::Final(reason),
                    });
                }
            }
        }
        Err(Failure::Passing("the claim changes all the time".to_owned()))
    }

    /// Decides what becomes of reports that were not delivered.
    fn failed(&self, job: &Job, failure: Failure, is_last: bool) {
        let (uid, age) = (&job.claim.uid, job.since.elapsed());
        let claim = || Box::new(job.claim.clone());
        let devices = || named(job.reports.iter());
        let numbers: Vec<u64> = job.reports.iter().map(|report| report.number).collect();
        let is_last = is_last || age >= self.patience;
        let given_up = |reason: String| {
            let (tries, after) = (job.tries.saturating_add(1), age);
            DeliveryError::GivenUp { claim: claim(), devices: devices(), reason, after, tries }
        };
        if matches!(failure, Failure::Gone(_) | Failure::Final(_) | Failure::Denied(_)) {
            self.queue.answered();
        }
        match failure {
            Failure::Server(error) if !is_last => {
                tracing::debug!(claim = %job.claim, %error, "reporting device status failed, and is tried again");
                self.queue.again(uid, Duration::ZERO, false);
                self.queue.hold(|troubles| until_next(&error, troubles).min(self.patience));
            }
            Failure::Server(error) => self.failed(job, Failure::Passing(error.to_string()), is_last),
            Failure::Gone(why) => {
                tracing::debug!(claim = %job.claim, why, "dropped a report of device status");
                self.queue.done(uid, &numbers, ReportOutcome::Dropped);
            }
            Failure::Final(reason) => {
                self.tell(DeliveryError::Refused { claim: claim(), devices: devices(), reason });
                self.queue.done(uid, &numbers, ReportOutcome::Failed);
            }
            Failure::Passing(reason) if is_last => {
                self.tell(given_up(reason));
                self.queue.done(uid, &numbers, ReportOutcome::Failed);
            }
            Failure::Denied(reason) if is_last => {
                self.tell(given_up(reason));
                self.queue.done(uid, &numbers, ReportOutcome::Denied);
            }
            Failure::Passing(reason) => {
                tracing::debug!(claim = %job.claim, reason, "reporting device status failed, and is tried again");
                self.queue.again(uid, RETRY.delay(job.tries.saturating_add(1)), false);
            }
            Failure::Denied(reason) => {
                if !job.is_denied {
                    let left = self.patience.saturating_sub(age);
                    self.tell(DeliveryError::Denied { claim: claim(), devices: devices(), reason, left });
                }
                self.queue.again(uid, jittered(DENIED_PAUSE.min(self.patience), 0.5..=1.0), true);
            }
        }
    }

    fn tell(&self, error: DeliveryError) {
        (self.background)(BackgroundError::recoverable("report the status of devices", error));
    }
}

/// Whether it is the claim that was meant, and still has devices.
fn check(claim: &Value, meant: &ClaimRef) -> Result<(), Failure> {
    if claim.pointer("/metadata/uid").and_then(Value::as_str) != Some(meant.uid.as_str()) {
        return Err(Failure::Gone("another claim has its name"));
    }
    match claim.pointer("/status/allocation") {
        None | Some(Value::Null) => Err(Failure::Gone("it is not allocated any more")),
        Some(_) => Ok(()),
    }
}

fn read_failure(error: ApiError) -> Failure {
    match error {
        ApiError::Status { status: StatusCode::FORBIDDEN, message } => Failure::Denied(get_denied(&message)),
        error => passing_or_final(error),
    }
}

fn passing_or_final(error: ApiError) -> Failure {
    // What a server says of one claim, such as that a webhook fails, is not about others.
    let is_of_claim = matches!(&error, ApiError::Status { status, .. } if status.is_server_error()
        && ![StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT].contains(status));
    if !error.is_transient() {
        Failure::Final(error.to_string())
    } else if is_of_claim {
        Failure::Passing(error.to_string())
    } else {
        Failure::Server(error)
    }
}

fn named<'a>(reports: impl Iterator<Item = &'a Report>) -> String {
    let names = reports.map(|Report { status, .. }| format!("device {}/{}", status.pool_name, status.device_name));
    names.collect::<Vec<_>>().join(", ")
}

/// The pause for all claims, after so many troubles before. A server that does not answer at all is gone for all nodes.
fn until_next(error: &ApiError, troubles: u32) -> Duration {
    let is_gone = matches!(error, ApiError::Send(_) | ApiError::Timeout(_));
    let least = if is_gone { jittered(SPREAD, 0.0..=1.0) } else { Duration::ZERO };
    error.retry_delay(RETRY.delay(troubles.saturating_add(1)).max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A webhook that fails for one namespace keeps no other claim waiting; a server that is not there does.
    #[test]
    fn only_trouble_that_all_claims_have_holds_up_others() {
        let failure = |status| passing_or_final(ApiError::Status { status, message: String::new() });
        for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::BAD_GATEWAY] {
            assert!(matches!(failure(status), Failure::Passing(_)), "{status}");
        }
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
            assert!(matches!(failure(status), Failure::Server(_)), "{status}");
        }
        assert!(matches!(failure(StatusCode::BAD_REQUEST), Failure::Final(_)));
    }
}
