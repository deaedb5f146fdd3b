//! The queue of pending reports: the last one of each device, for a limited number of claims.
//!
//! A caller that reports only waits for a short lock. The [worker](super::worker) is the only consumer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drakkar_client::ClaimRef;
use drakkar_metadata::Time;
use drakkar_metadata::name::ClaimUid;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::report::DeviceStatus;
use super::{ReportError, validate};
use crate::metrics::{Metrics, ReportOutcome};

/// The maximum number of claims with pending reports. A node has a few hundred pods.
const MAX_CLAIMS: usize = 4096;
/// The maximum size of all pending reports in bytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A pending report for one device.
#[derive(Debug, Clone)]
pub(super) struct Report {
    /// Distinguishes the report from a later one for the same device.
    pub(super) number: u64,
    pub(super) status: DeviceStatus,
    /// When the report was made.
    pub(super) time: String,
    size: usize,
}

/// The pending reports of a claim, to be delivered now.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) claim: ClaimRef,
    pub(super) reports: Vec<Report>,
    /// The number of failed attempts.
    pub(super) attempts: u32,
    /// When the last of the reports was made.
    pub(super) reported_at: Instant,
    /// Whether the driver already got an error about a missing permission.
    pub(super) is_denied: bool,
}

/// What the worker does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Deliver these reports.
    Ready(Delivery),
    /// Wait until then.
    WaitUntil(Instant),
    /// Wait for a report.
    Empty,
}

/// The queue of pending reports.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<ClaimUid, PendingClaim>,
    bytes: usize,
    /// The number of the last report.
    last_number: u64,
    is_closed: bool,
    /// No request is sent before this time, because the API server is unavailable.
    paused_until: Option<Instant>,
    /// The number of consecutive failures of the API server.
    server_failures: u32,
}

/// Pool, device and share ID.
type DeviceKey = (String, String, Option<String>);

#[derive(Debug)]
struct PendingClaim {
    claim: ClaimRef,
    reports: BTreeMap<DeviceKey, Report>,
    attempts: u32,
    reported_at: Instant,
    /// When the next attempt is due.
    due: Instant,
    is_denied: bool,
}

impl Queue {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), metrics }
    }

    /// Adds reports, all or none. They replace pending reports for the same devices.
    pub(super) fn add(&self, claim: &ClaimRef, devices: Vec<DeviceStatus>) -> Result<(), ReportError> {
        let added = self.try_add(claim, devices);
        match &added {
            Ok(()) => self.changed.notify_one(),
            Err((count, _)) => self.metrics.status_reports(ReportOutcome::Refused, *count),
        }
        added.map_err(|(_, error)| error)
    }

    fn try_add(&self, claim: &ClaimRef, devices: Vec<DeviceStatus>) -> Result<(), (usize, ReportError)> {
        let count = devices.len();
        let boxed_claim = || Box::new(claim.clone());
        let problems = validate::problems(&devices);
        if !problems.is_empty() {
            return Err((count, ReportError::Invalid { claim: boxed_claim(), problems }));
        }
        let sizes: Vec<usize> = devices.iter().map(size).collect();
        let mut state = self.lock();
        if state.is_closed {
            return Err((count, ReportError::Stopped { claim: boxed_claim() }));
        }
        let is_new = !state.claims.contains_key(&claim.uid);
        let is_full =
            (is_new && state.claims.len() >= MAX_CLAIMS) || state.bytes + sizes.iter().sum::<usize>() > MAX_BYTES;
        if is_full {
            return Err((count, ReportError::Full { claim: boxed_claim(), waiting: state.claims.len() }));
        }
        if devices.is_empty() {
            return Ok(());
        }
        let time = timestamp();
        let now = Instant::now();
        let State { claims, bytes, last_number, .. } = &mut *state;
        let pending = claims.entry(claim.uid.clone()).or_insert_with(|| PendingClaim {
            claim: claim.clone(),
            reports: BTreeMap::new(),
            attempts: 0,
            reported_at: now,
            due: now,
            is_denied: false,
        });
        pending.reported_at = now;
        for (status, size) in devices.into_iter().zip(sizes) {
            *last_number += 1;
            *bytes += size;
            let key = (status.pool_name.clone(), status.device_name.clone(), status.share_id.clone());
            let report = Report { number: *last_number, status, time: time.clone(), size };
            if let Some(superseded) = pending.reports.insert(key, report) {
                *bytes -= superseded.size;
                self.metrics.status_reports(ReportOutcome::Superseded, 1);
            }
        }
        self.update_gauge(&state);
        Ok(())
    }

    /// Returns the reports that are due, those of the longest waiting claim first. Once the queue is closed, all are due.
    pub(super) fn next(&self) -> Next {
        let state = self.lock();
        let Some(pending) = state.claims.values().min_by_key(|pending| pending.due) else {
            return Next::Empty;
        };
        let due = state.paused_until.map_or(pending.due, |paused_until| paused_until.max(pending.due));
        if due > Instant::now() && !state.is_closed {
            return Next::WaitUntil(due);
        }
        let mut reports: Vec<Report> = pending.reports.values().cloned().collect();
        reports.sort_by_key(|report| report.number);
        Next::Ready(Delivery {
            claim: pending.claim.clone(),
            reports,
            attempts: pending.attempts,
            reported_at: pending.reported_at,
            is_denied: pending.is_denied,
        })
    }

    /// Waits until a report is added.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Removes reports with their outcome, and the claim if it has no others.
    pub(super) fn complete(&self, uid: &ClaimUid, numbers: &[u64], outcome: ReportOutcome) {
        let mut state = self.lock();
        let State { claims, bytes, paused_until, server_failures, .. } = &mut *state;
        let Some(pending) = claims.get_mut(uid) else { return };
        let before = pending.reports.len();
        pending.reports.retain(|_, report| {
            let is_complete = numbers.contains(&report.number);
            *bytes -= if is_complete { report.size } else { 0 };
            !is_complete
        });
        self.metrics.status_reports(outcome, before - pending.reports.len());
        if outcome == ReportOutcome::Delivered {
            *server_failures = 0;
            *paused_until = None;
            pending.attempts = 0;
            pending.is_denied = false;
        }
        if pending.reports.is_empty() {
            claims.remove(uid);
        }
        self.update_gauge(&state);
    }

    /// Schedules the next attempt for a claim.
    pub(super) fn retry_after(&self, uid: &ClaimUid, delay: Duration, is_denied: bool) {
        if let Some(pending) = self.lock().claims.get_mut(uid) {
            pending.attempts = pending.attempts.saturating_add(1);
            pending.due = Instant::now() + delay;
            pending.is_denied |= is_denied;
        }
    }

    /// Pauses all claims because the API server is unavailable. `delay` gets the number of earlier consecutive failures.
    pub(super) fn pause_all(&self, delay: impl FnOnce(u32) -> Duration) {
        let mut state = self.lock();
        state.paused_until = Some(Instant::now() + delay(state.server_failures));
        state.server_failures = state.server_failures.saturating_add(1);
    }

    /// Ends the pause of all claims: the API server responds, whatever the response is.
    pub(super) fn resume_all(&self) {
        let mut state = self.lock();
        state.server_failures = 0;
        state.paused_until = None;
    }

    /// Drops the pending reports of a claim.
    pub(super) fn forget(&self, uid: &ClaimUid) {
        let mut state = self.lock();
        if let Some(pending) = state.claims.remove(uid) {
            state.bytes -= pending.reports.values().map(|report| report.size).sum::<usize>();
            self.metrics.status_reports(ReportOutcome::Dropped, pending.reports.len());
            self.update_gauge(&state);
        }
    }

    /// Refuses further reports and makes the pending ones due at once.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    fn update_gauge(&self, state: &State) {
        self.metrics.set_status_reports_waiting(state.claims.values().map(|pending| pending.reports.len()).sum());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Estimates the size of a report in bytes.
fn size(status: &DeviceStatus) -> usize {
    status.entry("", status.share_id.as_deref(), |_| String::new()).to_string().len() + size_of::<Report>()
}

/// Returns the current time in the API's format.
fn timestamp() -> String {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The format ends with the year 9999.
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or_default();
    Time::from_unix_seconds(seconds).map(|time| time.to_string()).unwrap_or_else(|_| "9999-12-31T23:59:59Z".to_owned())
}
