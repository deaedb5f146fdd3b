//! One life of a monitor, as its streams see it: the table behind a lock, and the news that it has changed.
//!
//! The lock is held for the time of one report or of one message, never across an await, and never while the driver is
//! told of an error.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::table::{Name, Reader, Table, Told};
use super::{DeviceHealth, HealthError, HealthSummary, Stopped};
use crate::driver::{BackgroundError, BoxError, Panicked};

/// Whom to tell of trouble, and what is counted for as long as the hub lives.
pub(super) struct Office {
    on_error: Box<dyn Fn(BackgroundError) + Send + Sync>,
    streams: AtomicUsize,
    reports: AtomicU64,
}

impl Office {
    pub(super) fn new(on_error: impl Fn(BackgroundError) + Send + Sync + 'static) -> Self {
        Self { on_error: Box::new(on_error), streams: AtomicUsize::new(0), reports: AtomicU64::new(0) }
    }

    /// Tells the driver. A panic in its handler must not end the watch over the leases.
    fn tell(&self, error: HealthError) {
        let error = BackgroundError::recoverable("health of devices", error);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.on_error)(error))) {
            tracing::error!(panic = %Panicked::from(&*panic), "the driver's handler of errors failed");
        }
    }

    /// Completes the figures.
    pub(super) fn count(&self, devices: HealthSummary) -> HealthSummary {
        let (streams, reports) = (self.streams.load(Ordering::Relaxed), self.reports.load(Ordering::Relaxed));
        HealthSummary { streams, reports, ..devices }
    }
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The monitor has nothing more to say: streams end when they have read all.
    Finished,
    /// The driver stops: streams end.
    Stopped,
}

/// What the monitor, the leases and the streams share.
pub(super) struct Board {
    office: Arc<Office>,
    table: Mutex<Table>,
    /// Notified of every change. Set once, at the end.
    changed: watch::Sender<Option<End>>,
    /// Notified when something may be due earlier.
    rescheduled: Notify,
    /// How many streams are open.
    streams: watch::Sender<usize>,
}

impl Board {
    pub(super) fn new(office: Arc<Office>) -> Self {
        Self {
            office,
            table: Mutex::default(),
            changed: watch::Sender::default(),
            rescheduled: Notify::new(),
            streams: watch::Sender::default(),
        }
    }

    /// Takes a report of a monitor that is not closed. Says whether it was.
    pub(super) fn report(&self, devices: Vec<DeviceHealth>, closed: &CancellationToken) -> bool {
        let refusals = {
            let mut table = self.table();
            if closed.is_cancelled() {
                return false;
            }
            table.report(devices, Instant::now(), SystemTime::now())
        };
        self.office.reports.fetch_add(1, Ordering::Relaxed);
        self.announce();
        refusals.into_iter().for_each(|refusal| self.office.tell(refusal));
        true
    }

    /// Forgets a device for a monitor that is not closed.
    pub(super) fn forget(&self, pool: &str, device: &str, closed: &CancellationToken) {
        // There is no device whose name is not one.
        let Ok(name) = Name::new(pool, device) else { return };
        {
            let mut table = self.table();
            if closed.is_cancelled() {
                return;
            }
            table.forget(&name, Instant::now(), SystemTime::now());
        }
        self.announce();
    }

    /// The monitor failed: from here on its reporter does nothing, and nothing is known of any device.
    pub(super) fn fail(&self, error: BoxError, closed: &CancellationToken) {
        {
            let mut table = self.table();
            closed.cancel();
            table.doubt_all(&format!("the health monitor ended: {error}"), Instant::now(), SystemTime::now());
        }
        self.announce();
        self.office.tell(HealthError::Failed(error));
    }

    /// The monitor has nothing more to say.
    pub(super) fn finish(&self, closed: &CancellationToken) {
        {
            let _table = self.table();
            closed.cancel();
        }
        self.end(End::Finished);
    }

    /// Streams end.
    pub(super) fn end(&self, end: End) {
        self.changed.send_replace(Some(end));
    }

    /// Waits until a stream is open.
    pub(super) async fn wanted(&self) {
        // It fails when the sender is gone, which is `self`.
        self.streams.subscribe().wait_for(|streams| *streams > 0).await.ok();
    }

    /// Does what is due, for ever.
    pub(super) async fn keep_leases(&self) -> std::convert::Infallible {
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
            let lapsed = self.table().tick(Instant::now(), SystemTime::now());
            self.changed.send_modify(|_| {});
            if !lapsed.is_empty() {
                self.office.tell(HealthError::Lapsed(lapsed));
            }
        }
    }

    pub(super) fn summary(&self) -> HealthSummary {
        self.table().summary()
    }

    fn announce(&self) {
        self.changed.send_modify(|_| {});
        self.rescheduled.notify_one();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Board").field("summary", &self.office.count(self.summary())).finish_non_exhaustive()
    }
}

/// A stream's place at the board, given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    board: Arc<Board>,
    reader: Reader,
    changed: watch::Receiver<Option<End>>,
}

impl Subscription {
    pub(super) fn new(board: Arc<Board>) -> Self {
        let changed = board.changed.subscribe();
        let reader = board.table().open(Instant::now());
        board.office.streams.fetch_add(1, Ordering::Relaxed);
        board.streams.send_modify(|streams| *streams += 1);
        board.rescheduled.notify_one();
        Self { board, reader, changed }
    }

    /// The devices that changed since the last call, all at first; `None` when there is nothing more to come. Waits until
    /// there is something to say. May be cancelled.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Told>>, Stopped> {
        loop {
            // First, so that what is read below is all if this is the end.
            let end = *self.changed.borrow_and_update();
            if end == Some(End::Stopped) {
                return Err(Stopped);
            }
            let told = self.board.table().read(self.reader);
            match end {
                _ if !told.is_empty() => return Ok(Some(told)),
                Some(_) => return Ok(None),
                None => self.changed.changed().await.map_err(|_closed| Stopped)?,
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.board.table().close(self.reader);
        self.board.office.streams.fetch_sub(1, Ordering::Relaxed);
        self.board.streams.send_modify(|streams| *streams -= 1);
    }
}
