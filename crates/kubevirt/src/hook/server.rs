//! The hook's servers: listening, serving and ending.
//!
//! A hook ends when virt-launcher says that the VM has ended, or when it is stopped (SIGTERM). In this order: no new
//! connections; calls in flight finish, for [`DRAIN_TIMEOUT`] at most; the socket files are removed. As a sidecar the process
//! must then end, since the pod of a VM ends with its last container.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::service::{DomainMutator, Services};
use super::socket::{SocketError, SocketFile, listen};

/// The directory that KubeVirt mounts in the container of a hook sidecar: its own part of the directory that virt-launcher
/// watches.
const SIDECAR_DIRECTORY: &str = "/var/run/kubevirt-hooks";
/// The limit for calls in flight when the hook ends. No call of the hook takes longer than reading a few files.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A failure of a hook's server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket could not be created.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// There is no socket to serve.
    #[error("hook: no socket to serve: name a sidecar's socket or a plugin's")]
    NoSocket,
    /// The listener could not be registered with the runtime.
    #[error("hook socket {}: {source}", .path.display())]
    Listener {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A server ended with an error.
    #[error("hook server: {0}")]
    Server(#[source] tonic::transport::Error),
    /// A server's task panicked.
    #[error("hook server: {0}")]
    Task(#[source] tokio::task::JoinError),
}

/// Returns the default socket of a hook sidecar. virt-launcher tells sidecars apart by the names of their sockets, so the
/// name has that of the container, which KubeVirt puts into the environment variable `CONTAINER_NAME`.
#[must_use]
pub fn sidecar_socket(container: Option<&str>) -> PathBuf {
    let is_plain = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let name =
        container.filter(is_plain).map_or_else(|| "drakkar.sock".to_owned(), |name| format!("drakkar-{name}.sock"));
    Path::new(SIDECAR_DIRECTORY).join(name)
}

/// A hook that listens on its sockets.
pub struct HookServer {
    sockets: Vec<(PathBuf, UnixListener, SocketFile)>,
    services: Services,
    ended: CancellationToken,
}

impl HookServer {
    /// Listens on each socket. All of them serve all services, so one process can be sidecar and plugin.
    ///
    /// Must be called within a tokio runtime. Calls are accepted at once and answered when [`serve`](Self::serve) runs.
    pub fn listen(sockets: &[PathBuf], mutator: Arc<dyn DomainMutator>) -> Result<Self, ServeError> {
        if sockets.is_empty() {
            return Err(ServeError::NoSocket);
        }
        let sockets = sockets.iter().map(|path| {
            let (listener, file) = listen(path)?;
            let failed = |source| ServeError::Listener { path: path.clone(), source };
            Ok((path.clone(), UnixListener::from_std(listener).map_err(failed)?, file))
        });
        let sockets = sockets.collect::<Result<_, ServeError>>()?;
        let ended = CancellationToken::new();
        Ok(Self { sockets, services: Services::new(mutator, ended.clone()), ended })
    }

    /// Serves until virt-launcher calls `Shutdown` or `stop` is cancelled. The socket files are gone when it returns.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), ServeError> {
        let Self { sockets, services, ended } = self;
        let mut files = vec![];
        let mut servers = JoinSet::new();
        for (path, listener, file) in sockets {
            tracing::info!(path = %path.display(), "hook serving");
            files.push(file);
            servers.spawn(tonic::transport::Server::builder().serve_with_incoming_shutdown(
                services.routes().prepare(),
                incoming(listener),
                ended.clone().cancelled_owned(),
            ));
        }
        let first = tokio::select! {
            () = stop.cancelled() => None,
            () = ended.cancelled() => None,
            // A server ends by itself only when it has failed.
            first = servers.join_next() => first,
        };
        ended.cancel();
        let drained = async {
            let mut outcome = first.map_or(Ok(()), finished);
            while let Some(server) = servers.join_next().await {
                outcome = outcome.and(finished(server));
            }
            outcome
        };
        let outcome = tokio::time::timeout(DRAIN_TIMEOUT, drained).await.unwrap_or_else(|_elapsed| {
            tracing::warn!("calls in flight did not end in time");
            Ok(())
        });
        drop(files);
        tracing::info!("hook ended");
        outcome
    }
}

impl fmt::Debug for HookServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sockets: Vec<&PathBuf> = self.sockets.iter().map(|(path, ..)| path).collect();
        f.debug_struct("HookServer").field("sockets", &sockets).finish_non_exhaustive()
    }
}

fn finished(server: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>) -> Result<(), ServeError> {
    server.map_err(ServeError::Task)?.map_err(ServeError::Server)
}

/// Accepts connections for ever. A failed accept is not the listener's end: tonic accepts again.
fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        if let Err(error) = &accepted {
            tracing::warn!(%error, "accepting a connection failed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Some((accepted, listener))
    })
}

#[cfg(test)]
mod tests;
