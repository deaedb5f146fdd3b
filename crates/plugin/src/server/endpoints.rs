//! Both servers of a driver's instance, started and stopped in the only right order.
//!
//! Start: dead sockets of earlier instances go; the DRA server starts; then the registration server, since a kubelet that
//! sees it uses the DRA service at once. If a step fails, what was started before goes with it.
//!
//! Stop: the registration socket goes first, so that the kubelet deregisters the driver rather than find it without
//! service; then both servers end ([`super::Server::stop`]). The same when one of them dies: a driver that is registered
//! but cannot serve, or serves but cannot be found again, is worse than none.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drakkar_metadata::name::DriverName;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::service::Routes;

use super::{Server, ServerError, Watch};
use crate::registration::{Registration, RegistrationFaults, RegistrationStatus, SupportedServices};
use crate::socket::{
    PodUid, SocketError, SocketNameError, Sweep, dra_socket, listen, registration_socket, sweep_plugin_directory,
    sweep_registry,
};
use drakkar_kubelet_api::registration::registration_server::RegistrationServer;

/// Who an instance is and where its sockets go.
#[derive(Debug, Clone)]
pub(crate) struct EndpointSettings {
    /// The driver's name.
    pub(crate) driver: DriverName,
    /// The pod that the instance runs in, if there can be another instance on the node at the same time.
    pub(crate) pod_uid: Option<PodUid>,
    /// The kubelet's registry directory; must exist.
    pub(crate) registry_directory: PathBuf,
    /// The driver's own directory; must exist.
    pub(crate) plugin_directory: PathBuf,
    /// The services that the kubelet is told of.
    pub(crate) services: SupportedServices,
    /// Whether to serve DRA; off where another process does.
    pub(crate) serve_dra: bool,
    /// Whether to register with the kubelet; off where another process does.
    pub(crate) register: bool,
    /// What looks at the calls of the DRA socket.
    pub(crate) dra_watch: Watch,
    /// What looks at the calls of the registration socket.
    pub(crate) registration_watch: Watch,
}

/// Why an instance did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A directory is not fit for a socket.
    #[error(transparent)]
    Name(#[from] SocketNameError),
    /// A socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The task for file work failed.
    #[error("open the sockets of the driver: {0}")]
    Task(#[source] tokio::task::JoinError),
}

/// All that went wrong while an instance ended. It has ended nevertheless.
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

/// The running servers of an instance. The order of the fields is the order in which a drop lets go of them.
#[derive(Debug)]
pub(crate) struct Endpoints {
    registration: Option<Server>,
    dra: Option<Server>,
    status: watch::Receiver<RegistrationStatus>,
    faults: RegistrationFaults,
}

impl Endpoints {
    /// Starts both servers; `routes` are the services of the DRA socket.
    pub(crate) async fn start(settings: EndpointSettings, routes: Routes) -> Result<Self, StartError> {
        let EndpointSettings { driver, pod_uid, registry_directory, plugin_directory, .. } = settings;
        let dra_path = dra_socket(&plugin_directory, pod_uid.as_ref())?;
        let registration_path = registration_socket(&registry_directory, &driver, pod_uid.as_ref())?;

        let registration = Registration::new(&driver, &dra_path, &settings.services);
        let (status, faults) = (registration.registration_status(), registration.faults());

        let dra = match settings.serve_dra {
            true => Some(serve(&dra_path, &driver, sweep_plugin_directory, routes, settings.dra_watch).await?),
            false => None,
        };
        let registration = match settings.register {
            true => {
                let routes = Routes::new(RegistrationServer::new(registration));
                Some(serve(&registration_path, &driver, sweep_registry, routes, settings.registration_watch).await?)
            }
            false => None,
        };
        Ok(Self { registration, dra, status, faults })
    }

    /// What the kubelet last said about the registration, and all that it says later.
    pub(crate) fn registration_status(&self) -> watch::Receiver<RegistrationStatus> {
        self.status.clone()
    }

    /// Makes registration calls fail, for tests of what a kubelet does then.
    pub(crate) fn registration_faults(&self) -> RegistrationFaults {
        self.faults.clone()
    }

    /// Where the DRA socket is, if this instance has one.
    pub(crate) fn dra_socket(&self) -> Option<&Path> {
        self.dra.as_ref().map(Server::path)
    }

    /// Where the registration socket is, if this instance has one.
    pub(crate) fn registration_socket(&self) -> Option<&Path> {
        self.registration.as_ref().map(Server::path)
    }

    /// Waits until a server dies, which it should not. By then the registration is withdrawn, and both servers only finish
    /// the calls that they have; what is left is to [`Self::stop`]. May be cancelled and called again.
    pub(crate) async fn died(&mut self) -> ServerError {
        let error = tokio::select! {
            error = died(&mut self.dra) => error,
            error = died(&mut self.registration) => error,
        };
        // Without an await, so that this future cannot be dropped between the death and its consequences.
        for server in [&mut self.registration, &mut self.dra].into_iter().flatten() {
            drop(server.file.take());
            server.drain();
        }
        error
    }

    /// Ends both servers, and gives calls in flight this long to finish.
    pub(crate) async fn stop(mut self, drain: Duration) -> Result<(), StopError> {
        let deadline = Instant::now() + drain;
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

/// Removes dead sockets from the directory of a socket, listens on it and serves.
///
/// When this is cancelled, the task for file work still ends, and drops what it opened.
async fn serve(
    path: &Path,
    driver: &DriverName,
    sweep: fn(&Path, &DriverName) -> Sweep,
    routes: Routes,
    watch: Watch,
) -> Result<Server, StartError> {
    let (path, driver) = (path.to_owned(), driver.clone());
    let (listener, file) = tokio::task::spawn_blocking(move || {
        if let Some(directory) = path.parent() {
            log(&sweep(directory, &driver));
        }
        listen(&path, &driver)
    })
    .await
    .map_err(StartError::Task)??;
    Ok(Server::start(listener, file, routes, watch)?)
}

fn log(sweep: &Sweep) {
    for path in &sweep.removed {
        tracing::info!(socket = %path.display(), "removed the socket of an earlier instance");
    }
    for path in &sweep.live {
        tracing::info!(socket = %path.display(), "another instance of the driver is running");
    }
    for error in &sweep.failed {
        tracing::warn!(%error, "could not look after the sockets of earlier instances");
    }
}
