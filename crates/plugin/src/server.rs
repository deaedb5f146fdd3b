//! A gRPC server on a unix socket: serving, the death of a server, and the end of one.
//!
//! A [`Server`] owns the socket's file, the task that accepts connections, and through it every connection. Promises:
//! - A panic in a handler is an error of that call ([`guard`]). It ends neither the connection nor the process.
//! - A server that cannot accept connections any more says so at once ([`Server::died`]); being out of file descriptors for a
//!   while is no reason to die ([`mod@incoming`]).
//! - The end, in this order ([`Server::stop`]): the file goes, so that nobody finds the socket; nothing is accepted any more;
//!   streams that would never end are ended; calls in flight may finish until a deadline; then connections are closed, which
//!   drops the handlers. All tasks have ended when it returns.
//! - A server that is dropped takes its file and its connections along.

mod endpoints;
mod guard;
mod incoming;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::Routes;

pub(crate) use endpoints::{EndpointSettings, Endpoints, StartError};
use guard::Guard;
pub(crate) use guard::{Interceptor, Watch};
use incoming::incoming;

use crate::disk::Disk;
use crate::socket::{SocketError, SocketFile};

/// How long the removal of a socket's file may take.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long closed connections may take to be gone. They have nothing to wait for but their turn.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What can go wrong with a running server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The runtime did not take the listener.
    #[error("serve {}: {source}", .path.display())]
    Start { path: PathBuf, source: io::Error },
    /// The server ended although nobody asked it to.
    #[error("server of {}: cannot accept connections any more: {source}", .path.display())]
    Died { path: PathBuf, source: io::Error },
    /// The server's task failed.
    #[error("server of {}: {source}", .path.display())]
    Task { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    /// Calls were still running at the deadline.
    #[error("server of {}: calls in flight did not end in time and were dropped", .path.display())]
    CutOff { path: PathBuf },
    /// The file could not be removed.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// A running gRPC server on a unix socket. The order of the fields is the order in which a drop lets go of them.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    file: Option<SocketFile>,
    draining: CancellationToken,
    close: DropGuard,
    death: Option<oneshot::Receiver<io::Error>>,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Server {
    /// Serves on a socket that listens already. Must be called in a tokio runtime.
    pub(crate) fn start(
        listener: UnixListener,
        file: SocketFile,
        routes: Routes,
        watch: Watch,
    ) -> Result<Self, ServerError> {
        let path = file.path().to_owned();
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::UnixListener::from_std(listener))
            .map_err(|source| ServerError::Start { path: path.clone(), source })?;
        let (draining, close) = (CancellationToken::new(), CancellationToken::new());
        let (died, death) = oneshot::channel();
        let task = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming_shutdown(
            Guard::new(routes.prepare(), draining.clone(), watch),
            incoming(listener, close.clone(), died),
            draining.clone().cancelled_owned(),
        ));
        Ok(Self { path, file: Some(file), draining, close: close.drop_guard(), death: Some(death), task })
    }

    /// Where the socket is, or was.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the server dies, which it should not. Tells it once; may be cancelled and called again.
    pub(crate) async fn died(&mut self) -> ServerError {
        let Some(death) = &mut self.death else { return std::future::pending().await };
        let source = death.await.unwrap_or_else(|_| io::Error::other("its task ended"));
        self.death = None;
        ServerError::Died { path: self.path.clone(), source }
    }

    /// Removes the socket's file, so that nobody finds the server any more; connections and the listener stay.
    pub(crate) async fn remove_file(&mut self) -> Result<(), ServerError> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let task = |source| ServerError::Task { path: self.path.clone(), source };
        // On a thread that nobody waits for: a disk that hangs must not hold up the end of the driver.
        match timeout(REMOVAL_TIMEOUT, Disk::default().run(|| file.remove())).await {
            Ok(Ok(removed)) => Ok(removed?),
            Ok(Err(source)) => Err(task(source.into())),
            Err(_elapsed) => Err(task("its file could not be removed in time".into())),
        }
    }

    /// Accepts no more connections, ends endless streams, and lets calls in flight finish. Does not wait for them.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// Ends the server: see the order above. Returns all that went wrong; the server has ended in any case.
    pub(crate) async fn stop(mut self, deadline: Instant) -> Vec<ServerError> {
        let mut errors = vec![];
        errors.extend(self.remove_file().await.err());
        self.drain();
        let Self { path, close, mut task, .. } = self;
        let ended = match timeout_at(deadline, &mut task).await {
            Ok(ended) => Some(ended),
            Err(_) => {
                errors.push(ServerError::CutOff { path: path.clone() });
                drop(close);
                timeout(CLOSE_TIMEOUT, &mut task).await.ok()
            }
        };
        match ended {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(source))) => errors.push(ServerError::Task { path, source: source.into() }),
            Some(Err(source)) => errors.push(ServerError::Task { path, source: source.into() }),
            // Connections whose handlers block a thread cannot be waited for.
            None => task.abort(),
        }
        errors
    }
}
