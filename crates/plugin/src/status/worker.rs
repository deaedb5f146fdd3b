//! Delivery of reports: one task, one claim at a time.
//!
//! For each claim: [merge](super::merge) with the claim as it is [known](super::known), apply with its UID and resource
//! version. That is one request. If the claim is not known or others have changed it since, it is read, and read again if it
//! changes before the apply: the changes of other writers cannot get lost. A claim that others have changed is also read for
//! the next report, since they may do so again; once it was as known, it no longer is.
//!
//! | event | effect on the reports |
//! |---|---|
//! | no response, 401, 429, 503, 504 | retried with backoff until they expire, then reported as failed. Reports of other claims wait too. `Retry-After` is respected |
//! | another 5xx | the same, but other claims do not wait: the error may be specific to this claim |
//! | a permission is missing | the driver gets the rule to add at once; retried slowly, in case it is added |
//! | the claim is deleted, replaced or deallocated | dropped: there is nothing to report |
//! | the device is not allocated to the claim, or the server rejects the values | reported as failed, not retried |
//! | the driver stops | tried once more within a few seconds, then reported as failed |

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::backoff::{SPREAD, jittered};
use drakkar_client::{ApiError, Backoff, ClaimRef};
use http::StatusCode;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::denial::{MissingPermission, Rejection, classify_rejection};
use super::known::{KnownClaim, KnownClaims};
use super::merge::{MergeError, Merged, contains_entries, merge, resource_version};
use super::queue::{Delivery, Next, Queue, Report};
use crate::background::{Background, BackgroundError};
use crate::claims::{Applied, ClaimSource};
use crate::metrics::ReportOutcome;

/// The limit for delivering the last reports when the driver stops.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an apply is repeated at once when the claim changes concurrently.
const MAX_CONFLICTS: usize = 5;
/// The delays between attempts after transient errors.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30)).with_jitter(0.5, 1.0);
/// The delay between attempts while a permission is missing.
const DENIED_DELAY: Duration = Duration::from_secs(60);

/// An error that the driver gets about reports of a claim.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    /// A permission is missing. The reports are retried.
    #[error("claim {claim}, {devices}: {source}; retried for {} s, in case that changes", .remaining.as_secs())]
    Denied { claim: Box<ClaimRef>, devices: String, source: MissingPermission, remaining: Duration },
    /// The reports expired, or the driver stops.
    #[error("claim {claim}, {devices}: gave up after {} s and {attempts} attempts: {source}", .after.as_secs())]
    GaveUp { claim: Box<ClaimRef>, devices: String, source: Cause, after: Duration, attempts: u32 },
    /// The reports cannot be delivered.
    #[error("claim {claim}, {devices}: {source}")]
    Refused { claim: Box<ClaimRef>, devices: String, source: Cause },
}

/// Why reports were not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    /// The request failed.
    #[error(transparent)]
    Api(ApiError),
    /// The API server rejects the status.
    #[error("the API server answered {code}: {message}")]
    Rejected { code: StatusCode, message: String },
    /// The API server drops the status.
    #[error(
        "the API server dropped the status: enable its feature gate DRAResourceClaimDeviceStatus (the default since \
         Kubernetes 1.33)"
    )]
    FieldDropped,
    /// A permission is missing.
    #[error(transparent)]
    Denied(MissingPermission),
    /// The report does not match the allocation.
    #[error(transparent)]
    Merge(MergeError),
    /// Other writers keep changing the claim.
    #[error("the claim kept changing during {MAX_CONFLICTS} attempts to apply its status")]
    Contended,
    /// The driver stops.
    #[error("the driver is stopping, and the API server did not respond in time")]
    Stopping,
}

/// The failure of one attempt.
enum Failure {
    /// A transient error that may be specific to the claim.
    Transient(Cause),
    /// A transient error of the server, which affects all claims.
    Server(ApiError),
    /// A permission is missing.
    Denied(MissingPermission),
    /// There is nothing to report anymore, for this reason.
    Gone(&'static str),
    /// A permanent error.
    Permanent(Cause),
}

/// The task that delivers reports.
pub(super) struct Worker {
    pub(super) queue: Arc<Queue>,
    pub(super) known: Arc<KnownClaims>,
    pub(super) claims: ClaimSource,
    pub(super) driver: String,
    pub(super) manager: String,
    /// How long a report is retried.
    pub(super) timeout: Duration,
    pub(super) background: Background,
}

impl Worker {
    /// Delivers reports until `stop` is cancelled, then tries once more to deliver the remaining ones.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.deliver_next() => {}
            }
        }
        self.queue.close();
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        while let Next::Ready(delivery) = self.queue.next() {
            let failure = match timeout_at(deadline, self.deliver(&delivery)).await {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure,
                Err(_elapsed) => Failure::Transient(Cause::Stopping),
            };
            self.handle_failure(&delivery, failure, true);
        }
    }

    /// Delivers the next reports, or waits until there are some. Cancel safe: an apply that was cancelled is repeated.
    async fn deliver_next(&self) {
        match self.queue.next() {
            Next::Ready(delivery) => {
                if let Err(failure) = self.deliver(&delivery).await {
                    self.handle_failure(&delivery, failure, false);
                }
            }
            Next::WaitUntil(time) => tokio::select! {
                () = sleep_until(time) => {}
                () = self.queue.changed() => {}
            },
            Next::Empty => self.queue.changed().await,
        }
    }

    /// Applies reports to the claim as it is known, if it is. If that does not do, reads it.
    async fn deliver(&self, delivery: &Delivery) -> Result<(), Failure> {
        let known = self.known.get(&delivery.claim.uid);
        let mut is_contended = false;
        if let Some(KnownClaim { claim, is_contended: false }) = &known {
            let merged = merge(claim, &self.driver, &self.manager, &delivery.reports);
            // A device that is not allocated may be allocated by now.
            if merged.refused.is_empty() {
                if self.apply(delivery, resource_version(claim), &merged, is_contended).await? {
                    return Ok(());
                }
                is_contended = true;
            }
        }
        for _ in 0..MAX_CONFLICTS {
            let claim = self.claims.read(&delivery.claim).await.map_err(classify_read)?;
            let claim = claim.ok_or(Failure::Gone("claim deleted"))?;
            check_claim(&claim, &delivery.claim)?;
            is_contended |= known
                .as_ref()
                .is_some_and(|known| known.is_contended && resource_version(&known.claim) != resource_version(&claim));
            let mut merged = merge(&claim, &self.driver, &self.manager, &delivery.reports);
            for (number, error) in std::mem::take(&mut merged.refused) {
                let devices = device_names(delivery.reports.iter().filter(|report| report.number == number));
                let source = Cause::Merge(error);
                self.report_error(DeliveryError::Refused { claim: Box::new(delivery.claim.clone()), devices, source });
                self.queue.complete(&delivery.claim.uid, &[number], ReportOutcome::Refused);
            }
            if merged.applied.is_empty()
                || self.apply(delivery, resource_version(&claim), &merged, is_contended).await?
            {
                return Ok(());
            }
            is_contended = true;
        }
        Err(Failure::Transient(Cause::Contended))
    }

    /// Applies the entries of a claim. Returns `false` if it no longer has this resource version.
    async fn apply(
        &self,
        delivery: &Delivery,
        resource_version: &str,
        merged: &Merged,
        is_contended: bool,
    ) -> Result<bool, Failure> {
        let Delivery { claim, .. } = delivery;
        let applied = self.claims.apply_status(claim, &self.manager, resource_version, &merged.devices).await;
        match applied.map_err(classify)? {
            Applied::Yes(object) if contains_entries(&object, &self.driver, &merged.devices) => {
                tracing::debug!(%claim, devices = merged.applied.len(), "device status reported");
                self.known.insert_applied(&claim.uid, &object, &self.driver, &self.manager, is_contended);
                self.queue.complete(&claim.uid, &merged.applied, ReportOutcome::Delivered);
                Ok(true)
            }
            Applied::Yes(_) => Err(Failure::Permanent(Cause::FieldDropped)),
            Applied::NoClaim => Err(Failure::Gone("claim deleted")),
            Applied::Conflict => {
                self.known.mark_contended(&claim.uid);
                Ok(false)
            }
            Applied::Refused(code, status) => Err(match classify_rejection(code, &status, &self.driver) {
                Rejection::Denied(permission) => Failure::Denied(permission),
                Rejection::Replaced => Failure::Gone("claim replaced by another with the same name"),
                Rejection::Invalid { code, message } => Failure::Permanent(Cause::Rejected { code, message }),
            }),
        }
    }

    /// Drops or retries reports that were not delivered, and reports errors to the driver.
    fn handle_failure(&self, delivery: &Delivery, failure: Failure, is_last: bool) {
        let uid = &delivery.claim.uid;
        let age = delivery.reported_at.elapsed();
        let attempts = delivery.attempts.saturating_add(1);
        let claim = || Box::new(delivery.claim.clone());
        let devices = || device_names(delivery.reports.iter());
        let numbers: Vec<u64> = delivery.reports.iter().map(|report| report.number).collect();
        let is_last = is_last || age >= self.timeout;
        let gave_up =
            |source| DeliveryError::GaveUp { claim: claim(), devices: devices(), source, after: age, attempts };
        if matches!(failure, Failure::Gone(_) | Failure::Permanent(_) | Failure::Denied(_)) {
            self.queue.resume_all();
        }
        match failure {
            Failure::Server(error) if !is_last => {
                tracing::debug!(claim = %delivery.claim, %error, "reporting device status failed, retrying");
                self.queue.retry_after(uid, Duration::ZERO, false);
                self.queue.pause_all(|failures| server_delay(&error, failures).min(self.timeout));
            }
            Failure::Server(error) => {
                self.handle_failure(delivery, Failure::Transient(Cause::Api(error)), is_last);
            }
            Failure::Gone(reason) => {
                tracing::debug!(claim = %delivery.claim, reason, "device status report dropped");
                self.known.remove(uid);
                self.queue.complete(uid, &numbers, ReportOutcome::Dropped);
            }
            Failure::Permanent(source) => {
                self.report_error(DeliveryError::Refused { claim: claim(), devices: devices(), source });
                self.queue.complete(uid, &numbers, ReportOutcome::Failed);
            }
            Failure::Transient(cause) if is_last => {
                self.report_error(gave_up(cause));
                self.queue.complete(uid, &numbers, ReportOutcome::Failed);
            }
            Failure::Denied(permission) if is_last => {
                self.report_error(gave_up(Cause::Denied(permission)));
                self.queue.complete(uid, &numbers, ReportOutcome::Denied);
            }
            Failure::Transient(error) => {
                tracing::debug!(claim = %delivery.claim, %error, "reporting device status failed, retrying");
                self.queue.retry_after(uid, RETRY.delay(attempts), false);
            }
            Failure::Denied(source) => {
                // Only once: later attempts would repeat the same error.
                if !delivery.is_denied {
                    let remaining = self.timeout.saturating_sub(age);
                    self.report_error(DeliveryError::Denied { claim: claim(), devices: devices(), source, remaining });
                }
                self.queue.retry_after(uid, jittered(DENIED_DELAY.min(self.timeout), 0.5..=1.0), true);
            }
        }
    }

    fn report_error(&self, error: DeliveryError) {
        (self.background)(BackgroundError::recoverable("report device status", error));
    }
}

/// Checks that this is the expected claim and that it is still allocated.
fn check_claim(claim: &Value, expected: &ClaimRef) -> Result<(), Failure> {
    if claim.pointer("/metadata/uid").and_then(Value::as_str) != Some(expected.uid.as_str()) {
        return Err(Failure::Gone("claim replaced by another with the same name"));
    }
    match claim.pointer("/status/allocation") {
        None | Some(Value::Null) => Err(Failure::Gone("claim deallocated")),
        Some(_) => Ok(()),
    }
}

/// Classifies an error of reading a claim.
fn classify_read(error: ApiError) -> Failure {
    match error {
        ApiError::Status { status: StatusCode::FORBIDDEN, message } => {
            Failure::Denied(MissingPermission::get_claim(message))
        }
        error => classify(error),
    }
}

/// Classifies an error of a request.
fn classify(error: ApiError) -> Failure {
    // Other server errors, for example of a failing webhook, may be specific to one claim.
    let is_of_claim = matches!(&error, ApiError::Status { status, .. } if status.is_server_error()
        && ![StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT].contains(status));
    if !error.is_transient() {
        Failure::Permanent(Cause::Api(error))
    } else if is_of_claim {
        Failure::Transient(Cause::Api(error))
    } else {
        Failure::Server(error)
    }
}

fn device_names<'a>(reports: impl Iterator<Item = &'a Report>) -> String {
    let names = reports.map(|Report { status, .. }| format!("device {}/{}", status.pool_name, status.device_name));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the delay for all claims after a number of earlier failures of the server. If the server is unreachable, it is
/// so for all nodes: their attempts are spread so that they do not come at once when it is back.
fn server_delay(error: &ApiError, failures: u32) -> Duration {
    let is_unreachable = matches!(error, ApiError::Send(_) | ApiError::Timeout { .. });
    let minimum = if is_unreachable { jittered(SPREAD, 0.0..=1.0) } else { Duration::ZERO };
    error.retry_delay(RETRY.delay(failures.saturating_add(1)).max(minimum))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A webhook that fails for one namespace does not delay other claims; an unavailable server does.
    #[test]
    fn only_errors_of_the_server_delay_other_claims() {
        let failure = |status| classify(ApiError::Status { status, message: String::new() });
        for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::BAD_GATEWAY] {
            assert!(matches!(failure(status), Failure::Transient(_)), "{status}");
        }
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
            assert!(matches!(failure(status), Failure::Server(_)), "{status}");
        }
        assert!(matches!(failure(StatusCode::BAD_REQUEST), Failure::Permanent(_)));
    }
}
