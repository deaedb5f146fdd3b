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
/// for as long as claims are served. Dropping this ends the task.
#[derive(Debug)]
pub struct Background {
    _task: AbortOnDropHandle<()>,
    _lock: InstanceLock,
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
        Self { _task: AbortOnDropHandle::new(tokio::spawn(supervised)), _lock: lock }
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
        drop(background);
        InstanceLock::acquire(&state).unwrap();
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
