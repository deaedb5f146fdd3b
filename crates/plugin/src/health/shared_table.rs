//! The device table of one monitor run behind a lock, and notifications of its changes.
//!
//! The lock is held for one report or one message at a time, never across an await, and never while the driver's error
//! handler runs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::table::{DeviceKey, DeviceState, ReaderId, Table};
use super::{DeviceHealth, HealthError, HealthSummary, Stopped};
use crate::background::BackgroundError;
use crate::error::{BoxError, Panicked};

/// The error handler and the counters of a hub, which outlive the runs of its monitor.
pub(super) struct HubContext {
    on_error: Box<dyn Fn(BackgroundError) + Send + Sync>,
    streams: AtomicUsize,
    reports: AtomicU64,
}

impl HubContext {
    pub(super) fn new(on_error: impl Fn(BackgroundError) + Send + Sync + 'static) -> Self {
        Self { on_error: Box::new(on_error), streams: AtomicUsize::new(0), reports: AtomicU64::new(0) }
    }

    /// Passes an error to the driver. A panic in the driver's handler must not end the task that watches the leases.
    fn report_error(&self, error: HealthError) {
        let error = BackgroundError::recoverable("device health", error);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.on_error)(error))) {
            tracing::error!(panic = %Panicked::from(&*panic), "the driver's error handler panicked");
        }
    }

    /// Adds the counters of the hub to the counts of devices.
    pub(super) fn add_counters(&self, devices: HealthSummary) -> HealthSummary {
        HealthSummary {
            streams: self.streams.load(Ordering::Relaxed),
            reports: self.reports.load(Ordering::Relaxed),
            ..devices
        }
    }
}

/// The reason why streams end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The monitor returned: streams end after the last change.
    MonitorReturned,
    /// The driver is stopping: streams end at once.
    Stopped,
}

/// The state that the monitor, the lease task and the streams of one monitor run share.
pub(super) struct SharedTable {
    context: Arc<HubContext>,
    table: Mutex<Table>,
    /// Notified of every change. Holds a value once the streams are to end.
    changed: watch::Sender<Option<StreamEnd>>,
    /// Notified when the next deadline may have moved forward.
    rescheduled: Notify,
    /// The number of open streams.
    streams: watch::Sender<usize>,
}

impl SharedTable {
    pub(super) fn new(context: Arc<HubContext>) -> Self {
        Self {
            context,
            table: Mutex::default(),
            changed: watch::Sender::default(),
            rescheduled: Notify::new(),
            streams: watch::Sender::default(),
        }
    }

    /// Applies a report, unless its reporter is closed. Returns whether it was applied.
    pub(super) fn report(&self, devices: Vec<DeviceHealth>, closed: &CancellationToken) -> bool {
        let errors = {
            let mut table = self.table();
            // Checked under the lock, where `fail` and `finish` close the reporter.
            if closed.is_cancelled() {
                return false;
            }
            table.report(devices, Instant::now(), SystemTime::now())
        };
        self.context.reports.fetch_add(1, Ordering::Relaxed);
        self.notify();
        errors.into_iter().for_each(|error| self.context.report_error(error));
        true
    }

    /// Forgets a device, unless the reporter is closed.
    pub(super) fn forget(&self, pool: &str, device: &str, closed: &CancellationToken) {
        // The table has no devices with invalid names.
        let Ok(key) = DeviceKey::new(pool, device) else { return };
        {
            let mut table = self.table();
            if closed.is_cancelled() {
                return;
            }
            table.forget(&key, Instant::now(), SystemTime::now());
        }
        self.notify();
    }

    /// Handles a failed monitor: closes its reporter and marks all devices as unknown.
    pub(super) fn fail(&self, error: BoxError, closed: &CancellationToken) {
        {
            let mut table = self.table();
            closed.cancel();
            table.mark_all_unknown(&format!("the health monitor ended: {error}"), Instant::now(), SystemTime::now());
        }
        self.notify();
        self.context.report_error(HealthError::MonitorFailed(error));
    }

    /// Handles a monitor that returned: closes its reporter and lets streams end.
    pub(super) fn finish(&self, closed: &CancellationToken) {
        {
            let _table = self.table();
            closed.cancel();
        }
        self.end_streams(StreamEnd::MonitorReturned);
    }

    pub(super) fn end_streams(&self, end: StreamEnd) {
        self.changed.send_replace(Some(end));
    }

    /// Waits until a stream is open.
    pub(super) async fn wait_for_stream(&self) {
        // This fails only if the sender is dropped, which `self` owns.
        self.streams.subscribe().wait_for(|streams| *streams > 0).await.ok();
    }

    /// Expires leases and resends states when they are due, forever.
    pub(super) async fn watch_leases(&self) -> std::convert::Infallible {
        loop {
            let deadline = self.table().next_deadline();
            let due = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.rescheduled.notified() => continue,
            }
            let expired = self.table().process_due(Instant::now(), SystemTime::now());
            self.changed.send_modify(|_| {});
            if !expired.is_empty() {
                self.context.report_error(HealthError::LeaseExpired(expired));
            }
        }
    }

    /// Returns the devices that are not healthy, at most `limit`, and their number.
    pub(super) fn not_healthy(&self, limit: usize) -> (Vec<DeviceState>, usize) {
        self.table().not_healthy(limit)
    }

    /// Counts the devices by health.
    pub(super) fn summary(&self) -> HealthSummary {
        self.table().summary()
    }

    fn notify(&self) {
        self.changed.send_modify(|_| {});
        self.rescheduled.notify_one();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = self.context.add_counters(self.summary());
        formatter.debug_struct("SharedTable").field("summary", &summary).finish_non_exhaustive()
    }
}

/// A stream's subscription to the table. Dropping it unsubscribes.
#[derive(Debug)]
pub(crate) struct Subscription {
    shared: Arc<SharedTable>,
    reader: ReaderId,
    changed: watch::Receiver<Option<StreamEnd>>,
}

impl Subscription {
    pub(super) fn new(shared: Arc<SharedTable>) -> Self {
        let changed = shared.changed.subscribe();
        let reader = shared.table().open(Instant::now());
        shared.context.streams.fetch_add(1, Ordering::Relaxed);
        shared.streams.send_modify(|streams| *streams += 1);
        shared.rescheduled.notify_one();
        Self { shared, reader, changed }
    }

    /// Waits for changes and returns the devices that changed since the last call, all devices on the first. Returns
    /// `None` at the end of the stream. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<DeviceState>>, Stopped> {
        loop {
            // Read before the table: at the end of the stream the table then has all of its changes.
            let end = *self.changed.borrow_and_update();
            if end == Some(StreamEnd::Stopped) {
                return Err(Stopped);
            }
            let states = self.shared.table().read(self.reader);
            match end {
                _ if !states.is_empty() => return Ok(Some(states)),
                Some(_) => return Ok(None),
                None => self.changed.changed().await.map_err(|_closed| Stopped)?,
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.table().close(self.reader);
        self.shared.context.streams.fetch_sub(1, Ordering::Relaxed);
        self.shared.streams.send_modify(|streams| *streams -= 1);
    }
}
