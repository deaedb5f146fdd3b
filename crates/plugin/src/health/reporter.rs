//! The driver's end: what a monitor reports with.

use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use super::DeviceHealth;
use super::board::Board;

/// What a driver's `watch_health` reports with. Cheap to clone, for tasks and threads of the driver's own.
///
/// Reports may be about some of the devices only: what is not mentioned stays as it was, until its lease passes. So a
/// driver reports each device again before that, changed or not; kubelets are told only what they need to know.
#[derive(Debug, Clone)]
pub struct HealthReporter {
    // Not strong: a driver may keep its reporter, and the board leads back to the driver.
    board: Weak<Board>,
    closed: CancellationToken,
}

impl HealthReporter {
    pub(super) fn new(board: &Arc<Board>) -> Self {
        Self { board: Arc::downgrade(board), closed: CancellationToken::new() }
    }

    /// Reports how some devices are. All streams are told of what is new, at once.
    ///
    /// Never waits for a kubelet; it only lets other tasks have their turn. What cannot be told to a kubelet (a name that
    /// is not one, more than 16384 devices) is left out, and told to the driver's `handle_error`. After the end of the
    /// `watch_health` that it was made for, a reporter does nothing ([`Self::closed`]).
    pub async fn report(&self, devices: impl IntoIterator<Item = DeviceHealth>) {
        let devices = devices.into_iter().collect();
        let taken = self.board.upgrade().is_some_and(|board| board.report(devices, &self.closed));
        if !taken {
            tracing::debug!("a report on health came after the end of its monitor, and is ignored");
        }
        let_others_run().await;
    }

    /// Forgets a device that does not exist any more. Kubelets are told that its health is unknown, for the last time.
    pub async fn forget(&self, pool_name: &str, device_name: &str) {
        if let Some(board) = self.board.upgrade() {
            board.forget(pool_name, device_name, &self.closed);
        }
        let_others_run().await;
    }

    /// Waits until reports are of no use any more: the `watch_health` that this was made for has ended, or the driver
    /// stops. For tasks and threads that a driver has report on their own.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Whether reports are of no use any more: see [`Self::closed`].
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Closes it, and all of its clones, when the token says so.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.closed
    }
}

/// Gives way to the tasks that were woken by a report.
///
/// tokio runs the task that was woken last on the same thread, and no other thread can take it. If the monitor went on,
/// and blocked its thread, that task would wait with it: the one that watches over the leases, for example.
async fn let_others_run() {
    tokio::task::yield_now().await;
}
