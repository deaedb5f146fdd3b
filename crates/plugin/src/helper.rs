//! A running driver, and the task that owns its parts.
//!
//! One task owns the servers. It stops them on request, or when one of them dies: then the driver gets a fatal error and the
//! other servers stop too, since a driver that is registered but cannot serve is worse than none. The HTTP endpoint stays until
//! the end and shows what happened.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drakkar_slices::Publisher;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::background::{Background, BackgroundError};
use crate::driver::DraPlugin;
use crate::handles::Handles;
use crate::health::HealthHub;
use crate::http_endpoint::HttpEndpoint;
use crate::metrics::Metrics;
use crate::orphans;
use crate::recent_errors::RecentErrors;
use crate::registration::{RegistrationStatus, log_waiting};
use crate::server::Endpoints;
use crate::service::Service;
use crate::status::StatusReports;
use crate::store::RecoveredClaim;

/// How long the parts that have nothing to finish may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a driver did not stop cleanly, or stopped by itself. It has stopped in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The process cannot wait for signals.
    #[error("wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// A server of the driver died while it ran.
    #[error("{0}")]
    Died(String),
    /// Calls did not finish in time, or a socket could not be removed.
    #[error("{0}")]
    Sockets(#[source] io::Error),
    /// The task that owns the driver failed.
    #[error("stop the driver: {0}")]
    Task(#[source] JoinError),
}

/// The parts of a running driver.
pub(crate) struct Running {
    pub(crate) endpoints: Endpoints,
    pub(crate) http: Option<HttpEndpoint>,
    pub(crate) health: Option<Arc<HealthHub>>,
    pub(crate) status: StatusReports,
    pub(crate) publisher: Publisher,
    /// Why a server of the driver died.
    pub(crate) fatal: watch::Sender<Option<String>>,
    pub(crate) drain_timeout: Duration,
    /// How long the kubelet has to unprepare claims that are gone.
    pub(crate) orphan_grace: Duration,
    pub(crate) background: Background,
    pub(crate) metrics: Metrics,
    pub(crate) recent: RecentErrors,
}

/// A running driver. Dropping it ends the driver at once; [`Helper::stop`] lets calls finish first.
pub struct Helper {
    handles: Handles,
    registration: watch::Receiver<RegistrationStatus>,
    fatal: watch::Receiver<Option<String>>,
    dra_socket: Option<PathBuf>,
    registration_socket: Option<PathBuf>,
    http_address: Option<SocketAddr>,
    stop: CancellationToken,
    supervisor: AbortOnDropHandle<Result<(), StopError>>,
}

impl std::fmt::Debug for Helper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helper")
            .field("dra_socket", &self.dra_socket)
            .field("registration_socket", &self.registration_socket)
            .finish_non_exhaustive()
    }
}

impl Helper {
    pub(crate) fn new<P: DraPlugin>(
        running: Running,
        handles: Handles,
        service: Arc<Service<P>>,
        recovered: Vec<RecoveredClaim>,
    ) -> Self {
        let stop = CancellationToken::new();
        Self {
            handles,
            registration: running.endpoints.registration_status(),
            fatal: running.fatal.subscribe(),
            dra_socket: running.endpoints.dra_socket().map(Path::to_owned),
            registration_socket: running.endpoints.registration_socket().map(Path::to_owned),
            http_address: running.http.as_ref().map(HttpEndpoint::local_address),
            stop: stop.clone(),
            supervisor: AbortOnDropHandle::new(tokio::spawn(supervise(running, service, recovered, stop))),
        }
    }

    /// Returns what the driver was made with: handles to publish, report and update.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Returns the last registration status that the kubelet reported, and every later one.
    pub fn registration_status(&self) -> watch::Receiver<RegistrationStatus> {
        self.registration.clone()
    }

    /// Returns the path of the DRA socket, if this process serves it.
    pub fn dra_socket(&self) -> Option<&Path> {
        self.dra_socket.as_deref()
    }

    /// Returns the path of the registration socket, if this process registers.
    pub fn registration_socket(&self) -> Option<&Path> {
        self.registration_socket.as_deref()
    }

    /// Returns the address of the HTTP endpoint, if there is one, with the port that the system chose for port 0.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Waits until a server of the driver dies, and returns why.
    pub async fn died(&mut self) -> StopError {
        match self.fatal.wait_for(Option::is_some).await {
            Ok(reason) => StopError::Died(reason.clone().unwrap_or_default()),
            Err(closed) => StopError::Died(closed.to_string()),
        }
    }

    /// Stops the driver: the registration is withdrawn first, calls in flight may finish, no socket is left behind.
    pub async fn stop(self) -> Result<(), StopError> {
        self.stop.cancel();
        match self.supervisor.await {
            Ok(stopped) => stopped,
            Err(error) => Err(StopError::Task(error)),
        }
    }

    /// Runs until SIGTERM or SIGINT or a server of the driver dies, and stops the driver.
    pub async fn run_until_signal(mut self) -> Result<(), StopError> {
        let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
        let (mut terminate, mut interrupt) = signals.map_err(StopError::Signals)?;
        let died = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            error = self.died() => Some(error),
        };
        let stopped = self.stop().await;
        died.map_or(stopped, Err)
    }
}

async fn supervise<P: DraPlugin>(
    running: Running,
    service: Arc<Service<P>>,
    recovered: Vec<RecoveredClaim>,
    stop: CancellationToken,
) -> Result<(), StopError> {
    let Running {
        mut endpoints,
        http,
        health,
        status,
        publisher,
        fatal,
        drain_timeout,
        orphan_grace,
        background,
        metrics,
        recent,
    } = running;
    let orphans = tokio::spawn(orphans::collect(service, recovered, orphan_grace, background.clone(), metrics.clone()));
    let orphans = AbortOnDropHandle::new(orphans);
    let waiting = endpoints.registration_socket().map(|socket| {
        let waiting = log_waiting(endpoints.registration_status(), socket.to_owned());
        AbortOnDropHandle::new(tokio::spawn(waiting))
    });
    let mut registration = endpoints.registration_status();
    let died = loop {
        tokio::select! {
            () = stop.cancelled() => break None,
            error = endpoints.died() => break Some(error),
            Ok(()) = registration.changed() => {
                let status = registration.borrow_and_update();
                metrics.set_registered(*status == RegistrationStatus::Registered);
                if let RegistrationStatus::Failed { error } = &*status {
                    recent.add("register with the kubelet", None, error);
                }
            }
        }
    };
    drop(orphans);
    drop(waiting);
    // Published slices stay: a kubelet removes them if no instance comes back. But this instance must not repair slices of
    // devices that it cannot serve.
    drop(publisher);
    if let Some(error) = died {
        fatal.send_replace(Some(error.to_string()));
        background(BackgroundError::fatal("serve the kubelet", error));
    }
    metrics.set_registered(false);
    let stopped = endpoints.stop(drain_timeout).await.map_err(|error| StopError::Sockets(io::Error::other(error)));
    stop.cancelled().await;
    if let Err(error) = status.stop().await {
        tracing::warn!(%error, "stopping failed");
    }
    if let Some(health) = health
        && let Err(error) = health.stop(Instant::now() + STOP_TIMEOUT).await
    {
        tracing::warn!(%error, "stopping failed");
    }
    if let Some(http) = http
        && let Err(error) = http.stop(Instant::now() + STOP_TIMEOUT).await
    {
        tracing::warn!(%error, "stopping failed");
    }
    stopped
}
