//! The two servers of a driver instance, DRA and registration, started and stopped in a fixed order.
//!
//! Start: remove stale sockets of earlier instances; start the DRA server; then start the registration server, since a
//! kubelet that sees it uses the DRA service at once. If a step fails, the earlier ones are undone.
//!
//! Stop: remove the registration socket first, so that the kubelet deregisters the driver before its service is gone; then
//! stop both servers ([`super::Server::stop`]). The same happens when one of them dies: a driver that is registered but
//! cannot serve, or that serves but cannot be registered again, is worse than none.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drakkar_metadata::name::DriverName;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{CallHooks, Routes, Server, ServerError};
use crate::registration::{Registration, RegistrationStatus, SupportedServices};
use crate::socket::{
    PodUid, SocketError, SocketNameError, Sweep, dra_socket, listen, registration_socket, sweep_plugin_directory,
    sweep_registry,
};

/// The identity of an instance and the location of its sockets.
#[derive(Debug, Clone)]
pub(crate) struct EndpointSettings {
    /// The driver's name.
    pub(crate) driver: DriverName,
    /// The pod of the instance, if several instances may run on the node at the same time.
    pub(crate) pod_uid: Option<PodUid>,
    /// The kubelet's registry directory; must exist.
    pub(crate) registry_directory: PathBuf,
    /// The driver's own directory; must exist.
    pub(crate) plugin_directory: PathBuf,
    /// The services that are announced to the kubelet.
    pub(crate) services: SupportedServices,
    /// Whether this process serves DRA.
    pub(crate) serve_dra: bool,
    /// Whether this process registers the driver with the kubelet.
    pub(crate) register: bool,
    /// Metrics and interceptor of the DRA socket's calls.
    pub(crate) dra_hooks: CallHooks,
    /// Metrics and interceptor of the registration socket's calls.
    pub(crate) registration_hooks: CallHooks,
}

/// A failure to start an instance.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A directory cannot have a socket.
    #[error(transparent)]
    Name(#[from] SocketNameError),
    /// Listening on a socket failed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The task for file work failed.
    #[error("open the sockets of the driver: {0}")]
    Task(#[source] tokio::task::JoinError),
}

/// All errors of an instance's shutdown. The instance has ended nevertheless.
#[derive(Debug)]
pub(crate) struct StopError(pub(crate) Vec<ServerError>);

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for StopError {}

/// The running servers of an instance. Fields are dropped in order: the registration goes before the service.
#[derive(Debug)]
pub(crate) struct Endpoints {
    registration: Option<Server>,
    dra: Option<Server>,
    status: watch::Receiver<RegistrationStatus>,
}

impl Endpoints {
    /// Starts both servers. `routes` are the services of the DRA socket.
    pub(crate) async fn start(settings: EndpointSettings, routes: Routes) -> Result<Self, StartError> {
        let EndpointSettings { driver, pod_uid, registry_directory, plugin_directory, .. } = settings;
        let dra_path = dra_socket(&plugin_directory, pod_uid.as_ref())?;
        let registration_path = registration_socket(&registry_directory, &driver, pod_uid.as_ref())?;

        let registration = Registration::new(&driver, &dra_path, &settings.services);
        let status = registration.registration_status();

        let dra = if settings.serve_dra {
            Some(serve(&dra_path, &driver, sweep_plugin_directory, routes, settings.dra_hooks).await?)
        } else {
            None
        };
        let registration = if settings.register {
            let routes = Routes::default().with_unary(Arc::new(registration));
            Some(serve(&registration_path, &driver, sweep_registry, routes, settings.registration_hooks).await?)
        } else {
            None
        };
        Ok(Self { registration, dra, status })
    }

    /// Watches the registration status that the kubelet reported last.
    pub(crate) fn registration_status(&self) -> watch::Receiver<RegistrationStatus> {
        self.status.clone()
    }

    /// Returns the path of the DRA socket, if this instance has one.
    pub(crate) fn dra_socket(&self) -> Option<&Path> {
        self.dra.as_ref().map(Server::path)
    }

    /// Returns the path of the registration socket, if this instance has one.
    pub(crate) fn registration_socket(&self) -> Option<&Path> {
        self.registration.as_ref().map(Server::path)
    }

    /// Waits until a server can no longer accept connections. When this returns, the driver is deregistered and both servers
    /// are draining; call [`Self::stop`] next. Cancel safe.
    pub(crate) async fn died(&mut self) -> ServerError {
        let error = tokio::select! {
            error = died(&mut self.dra) => error,
            error = died(&mut self.registration) => error,
        };
        // No await from here on: cancellation must not separate the failure from its consequences.
        for server in [&mut self.registration, &mut self.dra].into_iter().flatten() {
            drop(server.file.take());
            server.drain();
        }
        error
    }

    /// Stops both servers. Calls in flight may finish within `drain_timeout`.
    pub(crate) async fn stop(mut self, drain_timeout: Duration) -> Result<(), StopError> {
        let deadline = Instant::now() + drain_timeout;
        let mut errors = vec![];
        if let Some(registration) = &mut self.registration {
            errors.extend(registration.remove_file().await.err());
        }
        let (registration, dra) = tokio::join!(stop(self.registration, deadline), stop(self.dra, deadline));
        errors.extend(registration.into_iter().chain(dra));
        if errors.is_empty() { Ok(()) } else { Err(StopError(errors)) }
    }
}

#[cfg(test)]
impl Endpoints {
    pub(super) fn dra_mut(&mut self) -> &mut Option<Server> {
        &mut self.dra
    }

    pub(super) fn registration_mut(&mut self) -> &mut Option<Server> {
        &mut self.registration
    }
}

async fn died(server: &mut Option<Server>) -> ServerError {
    match server {
        Some(server) => server.died().await,
        None => std::future::pending().await,
    }
}

async fn stop(server: Option<Server>, deadline: Instant) -> Vec<ServerError> {
    match server {
        Some(server) => server.stop(deadline).await,
        None => vec![],
    }
}

/// Removes stale sockets from the socket's directory, then listens on the socket and serves.
///
/// When this is cancelled, the blocking task still runs to its end and drops the socket that it opened.
async fn serve(
    path: &Path,
    driver: &DriverName,
    sweep: fn(&Path, &DriverName) -> Sweep,
    routes: Routes,
    hooks: CallHooks,
) -> Result<Server, StartError> {
    let path = path.to_owned();
    let driver = driver.clone();
    let (listener, file) = tokio::task::spawn_blocking(move || {
        if let Some(directory) = path.parent() {
            log_sweep(&sweep(directory, &driver));
        }
        listen(&path, &driver)
    })
    .await
    .map_err(StartError::Task)??;
    Ok(Server::start(listener, file, routes, hooks)?)
}

fn log_sweep(sweep: &Sweep) {
    for path in &sweep.removed {
        tracing::info!(socket = %path.display(), "removed stale socket of an earlier instance");
    }
    for path in &sweep.live {
        tracing::info!(socket = %path.display(), "another instance of the driver is running");
    }
    for error in &sweep.failed {
        tracing::warn!(%error, "could not remove stale sockets");
    }
}
