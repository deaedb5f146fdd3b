//! The tasks of a kubelet: all end when it does, and it can wait for that.

use std::future::Future;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Where tasks are spawned. A clone spawns to the same place.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Tasks {
    /// Spawns a task that is dropped, wherever it waits, when this place is closed.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.token.clone().run_until_cancelled_owned(task);
        self.tracker.spawn(async move {
            task.await;
        });
    }

    /// A place within this one, with an end of its own.
    pub(super) fn nested(&self) -> (Self, DropGuard) {
        let token = self.token.child_token();
        (Self { tracker: self.tracker.clone(), token: token.clone() }, token.drop_guard())
    }

    /// Ends all tasks, each at the next point where it waits.
    pub(super) fn cancel(&self) {
        self.token.cancel();
    }

    /// Waits for the end of all tasks.
    pub(super) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
