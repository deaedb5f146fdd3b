//! A gRPC server on a unix socket, with failure detection and graceful shutdown.
//!
//! A [`Server`] owns the socket's file, the task that accepts connections, and through it every connection. Promises:
//! - A panic in a handler fails that call ([`guard`]). It ends neither the connection nor the process.
//! - A server that can no longer accept connections reports it at once ([`Server::died`]). Running out of file descriptors
//!   is transient and not reported ([`mod@incoming`]).
//! - Shutdown follows this order ([`Server::stop`]): remove the file, so that no client finds the socket; stop accepting;
//!   end streams, which would never end by themselves; let calls in flight finish until a deadline; close the connections,
//!   which drops the handlers. All tasks have ended when it returns.
//! - Dropping a server removes its file and closes its connections.

mod deadline;
mod endpoints;
mod guard;
mod incoming;
mod routes;
#[cfg(test)]
mod tests;
mod unary;

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use endpoints::{EndpointSettings, Endpoints, StartError};
use guard::Guard;
pub(crate) use guard::{CallHooks, Interceptor};
use incoming::serve;
pub(crate) use routes::Routes;
pub(crate) use unary::{Message, Reply, UnaryService, unknown_method};

use crate::disk::{Disk, DiskError};
use crate::socket::{SocketError, SocketFile};

/// The limit for removing a socket's file.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit for tasks of closed connections to end. They only wait to be scheduled.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A failure of a running server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The listener could not be registered with the runtime.
    #[error("serve {}: {source}", .path.display())]
    Start { path: PathBuf, source: io::Error },
    /// The server can no longer accept connections.
    #[error("server of {}: can no longer accept connections: {source}", .path.display())]
    Died { path: PathBuf, source: io::Error },
    /// The server's task panicked or was cancelled.
    #[error("server of {}: {source}", .path.display())]
    Task { path: PathBuf, source: tokio::task::JoinError },
    /// Calls were still in flight at the deadline.
    #[error("server of {}: calls in flight did not end in time and were dropped", .path.display())]
    DrainTimeout { path: PathBuf },
    /// The file could not be removed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The thread that removes the file failed.
    #[error("server of {}: {source}", .path.display())]
    Disk { path: PathBuf, source: DiskError },
    /// Removing the file took too long.
    #[error("server of {}: its file could not be removed in time", .path.display())]
    RemovalTimeout { path: PathBuf },
}

/// A running gRPC server on a unix socket. Fields are dropped in order: the file goes before the connections.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    file: Option<SocketFile>,
    draining: CancellationToken,
    close: DropGuard,
    death: Option<oneshot::Receiver<io::Error>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts serving on a socket that already listens. Must be called within a tokio runtime.
    pub(crate) fn start(
        listener: UnixListener,
        file: SocketFile,
        routes: Routes,
        hooks: CallHooks,
    ) -> Result<Self, ServerError> {
        let path = file.path().to_owned();
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::UnixListener::from_std(listener))
            .map_err(|source| ServerError::Start { path: path.clone(), source })?;
        let draining = CancellationToken::new();
        let close = CancellationToken::new();
        let (died, death) = oneshot::channel();
        let guard = Guard::new(routes, draining.clone(), hooks);
        let task = tokio::spawn(serve(listener, guard, draining.clone(), close.clone(), died));
        Ok(Self { path, file: Some(file), draining, close: close.drop_guard(), death: Some(death), task })
    }

    /// Returns the path of the socket, also after its file was removed.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the server can no longer accept connections. Reports this once. Cancel safe.
    pub(crate) async fn died(&mut self) -> ServerError {
        let Some(death) = &mut self.death else { return std::future::pending().await };
        let source = death.await.unwrap_or_else(|_| io::Error::other("its task ended"));
        self.death = None;
        ServerError::Died { path: self.path.clone(), source }
    }

    /// Removes the socket's file, so that no new client finds the server. The listener and connections stay.
    pub(crate) async fn remove_file(&mut self) -> Result<(), ServerError> {
        let Some(file) = self.file.take() else { return Ok(()) };
        // On a thread that the runtime does not wait for: a hanging disk must not block the driver's shutdown.
        match timeout(REMOVAL_TIMEOUT, Disk::default().run(|| file.remove())).await {
            Ok(Ok(removed)) => Ok(removed?),
            Ok(Err(source)) => Err(ServerError::Disk { path: self.path.clone(), source }),
            Err(_elapsed) => Err(ServerError::RemovalTimeout { path: self.path.clone() }),
        }
    }

    /// Stops accepting connections, ends streams and lets calls in flight finish, without waiting for them.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// Stops the server in the order that the module describes. The server has ended even if errors are returned.
    pub(crate) async fn stop(mut self, deadline: Instant) -> Vec<ServerError> {
        let mut errors = vec![];
        errors.extend(self.remove_file().await.err());
        self.drain();
        let Self { path, close, mut task, .. } = self;
        let ended = match timeout_at(deadline, &mut task).await {
            Ok(ended) => Some(ended),
            Err(_) => {
                errors.push(ServerError::DrainTimeout { path: path.clone() });
                drop(close);
                timeout(CLOSE_TIMEOUT, &mut task).await.ok()
            }
        };
        match ended {
            Some(Ok(())) => {}
            Some(Err(source)) => errors.push(ServerError::Task { path, source }),
            // A handler that blocks its thread keeps its connection open: give up on it.
            None => task.abort(),
        }
        errors
    }
}
