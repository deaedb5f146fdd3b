//! Reports that wait to be delivered: the last of each device, for a bounded number of claims.
//!
//! Whoever reports only ever waits for a short lock. The [worker](super::worker) is the only one who takes from here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drakkar_metadata::Time;
use drakkar_metadata::name::ClaimUid;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::report::DeviceStatus;
use super::{ReportError, validate};
use crate::metrics::{Metrics, ReportOutcome};
use drakkar_client::ClaimRef;

/// How many claims may wait at once. A node has a few hundred pods.
const MAX_CLAIMS: usize = 4096;
/// How many bytes may wait at once.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A report of one device.
#[derive(Debug, Clone)]
pub(super) struct Report {
    /// Tells it from a later one of the same device.
    pub(super) number: u64,
    pub(super) status: DeviceStatus,
    /// When it was made.
    pub(super) time: String,
    size: usize,
}

/// A claim whose reports are to be delivered now.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) claim: ClaimRef,
    pub(super) reports: Vec<Report>,
    /// How often it was tried before.
    pub(super) tries: u32,
    /// When the last of the reports was made.
    pub(super) since: Instant,
    /// Whether somebody has been told that it is not permitted.
    pub(super) is_denied: bool,
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum Next {
    Now(Job),
    Later(Instant),
    Nothing,
}

/// The reports that wait.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<ClaimUid, Waiting>,
    bytes: usize,
    count: u64,
    is_closed: bool,
    /// When the API server may be asked again, and how often it was to no avail.
    not_before: Option<Instant>,
    troubles: u32,
}

/// Pool, device and share.
type Key = (String, String, Option<String>);

#[derive(Debug)]
struct Waiting {
    claim: ClaimRef,
    reports: BTreeMap<Key, Report>,
    tries: u32,
    since: Instant,
    not_before: Instant,
    is_denied: bool,
}

impl Queue {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), metrics }
    }

    /// Takes reports in, all or none of them, in the place of earlier ones of the same devices.
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
        let claim_named = || Box::new(claim.clone());
        let problems = validate::problems(&devices);
        if !problems.is_empty() {
            return Err((count, ReportError::Invalid { claim: claim_named(), problems }));
        }
        let sizes: Vec<usize> = devices.iter().map(size).collect();
        let mut state = self.lock();
        if state.is_closed {
            return Err((count, ReportError::Stopped { claim: claim_named() }));
        }
        let is_new = !state.claims.contains_key(&claim.uid);
        let is_full =
            (is_new && state.claims.len() >= MAX_CLAIMS) || state.bytes + sizes.iter().sum::<usize>() > MAX_BYTES;
        if is_full {
            return Err((count, ReportError::Full { claim: claim_named(), waiting: state.claims.len() }));
        }
        if devices.is_empty() {
            return Ok(());
        }
        let (time, now) = (timestamp(), Instant::now());
        let State { claims, bytes, count, .. } = &mut *state;
        let waiting = claims.entry(claim.uid.clone()).or_insert_with(|| Waiting {
            claim: claim.clone(),
            reports: BTreeMap::new(),
            tries: 0,
            since: now,
            not_before: now,
            is_denied: false,
        });
        waiting.since = now;
        for (status, size) in devices.into_iter().zip(sizes) {
            *count += 1;
            *bytes += size;
            let key = (status.pool_name.clone(), status.device_name.clone(), status.share_id.clone());
            let report = Report { number: *count, status, time: time.clone(), size };
            if let Some(before) = waiting.reports.insert(key, report) {
                *bytes -= before.size;
                self.metrics.status_reports(ReportOutcome::Superseded, 1);
            }
        }
        self.show(&state);
        Ok(())
    }

    /// The claim that has waited longest for its turn, if one's turn has come; at the end it always has.
    pub(super) fn next(&self) -> Next {
        let state = self.lock();
        let Some(waiting) = state.claims.values().min_by_key(|waiting| waiting.not_before) else {
            return Next::Nothing;
        };
        let not_before = state.not_before.map_or(waiting.not_before, |held| held.max(waiting.not_before));
        if not_before > Instant::now() && !state.is_closed {
            return Next::Later(not_before);
        }
        let mut reports: Vec<Report> = waiting.reports.values().cloned().collect();
        reports.sort_by_key(|report| report.number);
        let Waiting { claim, tries, since, is_denied, .. } = waiting;
        Next::Now(Job { claim: claim.clone(), reports, tries: *tries, since: *since, is_denied: *is_denied })
    }

    /// Waits until a report is made.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// These reports need no more work. A claim that has none left is forgotten.
    pub(super) fn done(&self, uid: &ClaimUid, numbers: &[u64], outcome: ReportOutcome) {
        let mut state = self.lock();
        let State { claims, bytes, not_before, troubles, .. } = &mut *state;
        let Some(waiting) = claims.get_mut(uid) else { return };
        let before = waiting.reports.len();
        waiting.reports.retain(|_, report| {
            let is_done = numbers.contains(&report.number);
            *bytes -= if is_done { report.size } else { 0 };
            !is_done
        });
        self.metrics.status_reports(outcome, before - waiting.reports.len());
        if outcome == ReportOutcome::Delivered {
            (*troubles, *not_before) = (0, None);
            (waiting.tries, waiting.is_denied) = (0, false);
        }
        if waiting.reports.is_empty() {
            claims.remove(uid);
        }
        self.show(&state);
    }

    /// What is left of a claim's reports is to be tried again after a while.
    pub(super) fn again(&self, uid: &ClaimUid, pause: Duration, is_denied: bool) {
        if let Some(waiting) = self.lock().claims.get_mut(uid) {
            waiting.tries = waiting.tries.saturating_add(1);
            waiting.not_before = Instant::now() + pause;
            waiting.is_denied |= is_denied;
        }
    }

    /// The API server is in trouble: no claim's turn comes before the pause is over that is due after so many troubles before.
    pub(super) fn hold(&self, pause: impl FnOnce(u32) -> Duration) {
        let mut state = self.lock();
        state.not_before = Some(Instant::now() + pause(state.troubles));
        state.troubles = state.troubles.saturating_add(1);
    }

    /// The API server answers, whatever it says.
    pub(super) fn answered(&self) {
        let mut state = self.lock();
        (state.troubles, state.not_before) = (0, None);
    }

    /// Nobody needs to know any more what was reported of a claim until now.
    pub(super) fn forget(&self, uid: &ClaimUid) {
        let mut state = self.lock();
        if let Some(waiting) = state.claims.remove(uid) {
            state.bytes -= waiting.reports.values().map(|report| report.size).sum::<usize>();
            self.metrics.status_reports(ReportOutcome::Dropped, waiting.reports.len());
            self.show(&state);
        }
    }

    /// No report is taken in from now on, and nothing waits for its turn.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    fn show(&self, state: &State) {
        self.metrics.set_status_reports_waiting(state.claims.values().map(|waiting| waiting.reports.len()).sum());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About how many bytes a report takes.
fn size(status: &DeviceStatus) -> usize {
    status.entry("", status.share_id.as_deref(), |_| String::new()).to_string().len() + size_of::<Report>()
}

/// The time now, as the API has it.
fn timestamp() -> String {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The clock of a machine that is in the year 10000 is wrong.
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or_default();
    Time::from_unix_seconds(seconds).map(|time| time.to_string()).unwrap_or_else(|_| "9999-12-31T23:59:59Z".to_owned())
}
