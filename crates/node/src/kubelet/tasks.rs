//! The tasks of a kubelet: all end with it, and it can wait for them.

use std::future::Future;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Spawns the tasks of a kubelet. Clones share the tasks.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Tasks {
    /// Spawns a task that is dropped, at its next await point, when the tasks are cancelled.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.token.clone().run_until_cancelled_owned(task);
        self.tracker.spawn(async move {
            task.await;
        });
    }

    /// Returns a subset of tasks that can be cancelled on its own, by dropping the guard.
    pub(super) fn nested(&self) -> (Self, DropGuard) {
        let token = self.token.child_token();
        (Self { tracker: self.tracker.clone(), token: token.clone() }, token.drop_guard())
    }

    /// Cancels all tasks, each at its next await point.
    pub(super) fn cancel(&self) {
        self.token.cancel();
    }

    /// Waits until all tasks have ended.
    pub(super) async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
