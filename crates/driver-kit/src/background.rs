//! The background task of a driver, which follows its host and its configuration and never ends.
//!
//! A process that serves claims without following the host any more must not look healthy: the end of the task, by a panic, is
//! reported to whoever runs the driver.

use std::convert::Infallible;

use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::instance::InstanceLock;

/// The background task of the driver has ended, which it never should.
#[derive(Debug, thiserror::Error)]
#[error("the background task that follows devices and configuration has ended: {0}")]
pub struct BackgroundFailure(tokio::task::JoinError);

/// The task that follows the host, and the lock of the instance. The lock belongs to the driver and not to the task: it is held
/// for as long as claims are served, so this belongs to what runs the driver, which calls [`stop`](Self::stop) last. Dropping it
/// ends the task and the lock too, but does not wait for the task.
#[derive(Debug)]
pub struct Background {
    task: AbortOnDropHandle<()>,
    lock: InstanceLock,
}

impl Background {
    /// Starts the task. Its failure is logged and sent.
    pub fn spawn(
        task: impl Future<Output = Infallible> + Send + 'static,
        failure: oneshot::Sender<BackgroundFailure>,
        lock: InstanceLock,
    ) -> Self {
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        let supervised = async move {
            let Err(error) = task.await;
            let error = BackgroundFailure(error);
            tracing::error!(%error, "background task failed");
            // Nobody listens if the driver was started by another program, which has the log.
            let _ = failure.send(error);
        };
        Self { task: AbortOnDropHandle::new(tokio::spawn(supervised)), lock }
    }

    /// Ends the task and waits for its end, then unlocks the instance: another one may start afterwards.
    pub async fn stop(self) {
        self.task.abort();
        // It was aborted, or has ended before and said so.
        let _ = self.task.await;
        drop(self.lock);
    }
}

/// Waits for a failure of the background task; forever if the driver is stopped without one.
pub async fn failure_of(failed: oneshot::Receiver<BackgroundFailure>) -> BackgroundFailure {
    match failed.await {
        Ok(failure) => failure,
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::LockError;

    #[tokio::test]
    async fn a_background_task_that_ends_is_reported_and_leaves_the_instance_locked() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("devices");
        let (failure, failed) = oneshot::channel();
        let lock = InstanceLock::acquire(&state).unwrap();
        let background = Background::spawn(async { panic!("a defect") }, failure, lock);
        let error = failure_of(failed).await;
        assert!(error.to_string().contains("a defect"), "{error}");
        assert!(matches!(InstanceLock::acquire(&state), Err(LockError::Held { .. })));
        background.stop().await;
        InstanceLock::acquire(&state).unwrap();
    }

    #[tokio::test]
    async fn a_stopped_task_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let lock = InstanceLock::acquire(&directory.path().join("devices")).unwrap();
        let held = std::sync::Arc::new(());
        let of_task = held.clone();
        let task = async move {
            let _of_task = of_task;
            std::future::pending().await
        };
        Background::spawn(task, oneshot::channel().0, lock).stop().await;
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_driver_that_is_stopped_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        let (failure, failed) = oneshot::channel();
        let lock = InstanceLock::acquire(&directory.path().join("devices")).unwrap();
        drop(Background::spawn(std::future::pending(), failure, lock));
        // The sender is gone once the task is.
        let mut failed = std::pin::pin!(failed);
        assert!(failed.as_mut().await.is_err());
    }
}
