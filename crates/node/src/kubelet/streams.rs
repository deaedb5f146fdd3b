//! What the API server asks of a kubelet: the logs of containers, and programs in them.

mod log;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use drakkar_apiserver::{ContainerRef, ExecOptions, ExecSession, KubeletError, LogOptions, LogStream};
use futures::future::BoxFuture;

use super::containers::{Containers, is_running};
use crate::runner::ContainerInfo;

/// The part of a kubelet that answers the API server.
pub(super) struct Streams {
    containers: Arc<dyn Containers>,
}

impl Streams {
    pub(super) fn new(containers: Arc<dyn Containers>) -> Self {
        Self { containers }
    }

    /// Returns the runs of a container, the newest last.
    fn runs(&self, of: &ContainerRef) -> Vec<ContainerInfo> {
        let mut runs = self.containers.list(&of.pod_uid);
        runs.retain(|info| info.name == of.container);
        runs.sort_by_key(|info| info.started);
        runs
    }
}

impl drakkar_apiserver::Kubelet for Streams {
    fn logs(&self, of: ContainerRef, options: LogOptions) -> BoxFuture<'_, Result<LogStream, KubeletError>> {
        Box::pin(async move {
            let ContainerRef { pod, container, .. } = &of;
            let mut runs = self.runs(&of);
            let newest = runs.pop();
            let run = if options.previous {
                let missing = || format!("previous terminated container {container:?} in pod {pod:?} not found");
                runs.pop().ok_or_else(|| KubeletError::BadRequest(missing()))?
            } else {
                let waiting =
                    || format!("container {container:?} in pod {pod:?} is waiting to start: ContainerCreating");
                newest.ok_or_else(|| KubeletError::BadRequest(waiting()))?
            };
            let failed = |error| KubeletError::Internal(format!("read the log of container {container:?}: {error}"));
            log::read(Arc::clone(&self.containers), &run, &options).await.map_err(failed)
        })
    }

    fn exec(&self, of: ContainerRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        Box::pin(async move {
            let running = self.runs(&of).into_iter().rfind(is_running);
            let missing = || KubeletError::Internal(format!("container not found ({:?})", of.container));
            self.containers.exec(&running.ok_or_else(missing)?.id, options).await.map_err(KubeletError::Internal)
        })
    }
}
