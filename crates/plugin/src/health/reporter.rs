//! The reporter through which a driver's monitor reports health.

use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use super::DeviceHealth;
use super::shared_table::SharedTable;

/// Reports device health on behalf of a driver's [`HealthMonitor`](crate::HealthMonitor). Cheap to clone, for the driver's own tasks and threads.
///
/// A report may cover some of the devices: the others keep their health until their lease expires. So a driver reports
/// each device again before that, changed or not; kubelets get only what has changed.
#[derive(Debug, Clone)]
pub struct HealthReporter {
    // Weak, because a driver may keep its reporter, and the table references the driver: its error handler.
    table: Weak<SharedTable>,
    closed: CancellationToken,
}

impl HealthReporter {
    pub(super) fn new(table: &Arc<SharedTable>) -> Self {
        Self { table: Arc::downgrade(table), closed: CancellationToken::new() }
    }

    /// Creates a closed reporter that discards all reports.
    #[cfg(test)]
    pub(crate) fn already_closed() -> Self {
        let closed = CancellationToken::new();
        closed.cancel();
        Self { table: Weak::new(), closed }
    }

    /// Reports the health of some devices. Changes are sent to all streams at once.
    ///
    /// Never waits for a kubelet; it only yields to other tasks. Devices that a kubelet would not accept (an invalid name,
    /// more than 16384 devices) are skipped, and reported to the driver's `handle_error`. After the end of its
    /// monitor a reporter does nothing ([`Self::closed`]).
    pub async fn report(&self, devices: impl IntoIterator<Item = DeviceHealth>) {
        let devices = devices.into_iter().collect();
        let applied = self.table.upgrade().is_some_and(|table| table.report(devices, &self.closed));
        if !applied {
            tracing::debug!("ignored health report of a monitor that has ended");
        }
        yield_to_woken_tasks().await;
    }

    /// Forgets a device that no longer exists. Kubelets get its health as unknown one last time.
    pub async fn forget(&self, pool_name: &str, device_name: &str) {
        if let Some(table) = self.table.upgrade() {
            table.forget(pool_name, device_name, &self.closed);
        }
        yield_to_woken_tasks().await;
    }

    /// Waits until the reporter is closed: its monitor has ended, or the driver is stopping. For the driver's own
    /// tasks that report health.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Whether the reporter is closed: see [`Self::closed`].
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Returns the token that closes this reporter and all of its clones.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.closed
    }
}

/// Yields to the tasks that a report has woken.
///
/// tokio runs the task that was woken last on the same thread, and no other thread can steal it. If the monitor then
/// blocked its thread, that task, for example the one that watches the leases, would be blocked too.
async fn yield_to_woken_tasks() {
    tokio::task::yield_now().await;
}
