//! Registering the plugins behind the sockets of the registry, and deregistering them when their sockets are gone.
//!
//! A loop compares what is there with what is registered. What it finds to do runs beside it, one thing at a time for each
//! socket path; a failure makes the path wait, also when another socket has taken the name since.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use prost::Message;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tonic::Status;

use super::h2::Connection;
use super::plugins::Plugins;
use super::registry::{Sockets, Version};
use super::tasks::Tasks;
use super::timing::Timing;
use drakkar_client::Retry;

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
/// The only type of plugin that this kubelet has a use for.
const DRA_PLUGIN: &str = "DRAPlugin";

/// What is registered, by socket. A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct Registrar {
    sockets: Sockets,
    plugins: Plugins,
    timing: Timing,
    tasks: Tasks,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    registered: HashMap<PathBuf, Registered>,
    operations: HashMap<PathBuf, Operation>,
}

#[derive(Debug, Clone)]
struct Registered {
    version: Version,
    driver: String,
    endpoint: PathBuf,
}

/// What is being done to a socket path, or went wrong there.
#[derive(Debug)]
enum Operation {
    Running(Option<Retry>),
    Failed { retry: Retry, until: Instant },
}

/// Why a plugin was not registered.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("{0}")]
    Dial(Status),
    #[error("GetInfo: {0}")]
    GetInfo(Status),
    #[error("no handler for plugins of type {kind:?}")]
    UnknownType { kind: String },
    #[error("{0}")]
    Register(#[from] super::plugins::RegisterError),
    #[error("NotifyRegistrationStatus: {0}")]
    Notify(Status),
}

impl Registrar {
    pub(super) fn new(sockets: Sockets, plugins: Plugins, timing: Timing, tasks: Tasks) -> Self {
        Self { sockets, plugins, timing, tasks, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn run(self) {
        let mut ticks = interval(self.timing.registration_loop);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.reconcile();
        }
    }

    fn reconcile(&self) {
        let desired = self.sockets.snapshot();
        let registered = self.lock().registered.clone();
        for (path, plugin) in &registered {
            if desired.get(path) != Some(&plugin.version) && self.begin(path) {
                let (registrar, path, plugin) = (self.clone(), path.clone(), plugin.clone());
                self.tasks.spawn(async move {
                    registrar.forget(&path, &plugin);
                    registrar.end(&path, true);
                });
            }
        }
        for (path, version) in desired {
            let is_registered = registered.get(&path).is_some_and(|plugin| plugin.version == version);
            if !is_registered && self.begin(&path) {
                let registrar = self.clone();
                self.tasks.spawn(async move {
                    let outcome = registrar.attempt(&path, version).await;
                    if let Err(error) = &outcome {
                        tracing::warn!(socket = %path.display(), %error, "kubelet: a plugin is not registered");
                    }
                    registrar.end(&path, outcome.is_ok());
                });
            }
        }
    }

    /// Takes a path for an operation, if nobody has it and it need not wait.
    fn begin(&self, path: &Path) -> bool {
        let mut state = self.lock();
        let retry = match state.operations.remove(path) {
            None => None,
            Some(Operation::Failed { retry, until }) if until <= Instant::now() => Some(retry),
            Some(busy) => {
                state.operations.insert(path.to_owned(), busy);
                return false;
            }
        };
        state.operations.insert(path.to_owned(), Operation::Running(retry));
        true
    }

    fn end(&self, path: &Path, succeeded: bool) {
        let mut state = self.lock();
        let before = state.operations.remove(path);
        if !succeeded {
            let mut retry = match before {
                Some(Operation::Running(Some(retry)) | Operation::Failed { retry, .. }) => retry,
                Some(Operation::Running(None)) | None => self.timing.registration_backoff.retry(),
            };
            let until = Instant::now() + retry.next_delay();
            state.operations.insert(path.to_owned(), Operation::Failed { retry, until });
        }
    }

    fn forget(&self, path: &Path, plugin: &Registered) {
        self.plugins.deregister(&plugin.driver, &plugin.endpoint);
        self.lock().registered.remove(path);
        tracing::info!(driver = plugin.driver, socket = %path.display(), "kubelet: a plugin is deregistered");
    }

    /// One attempt to register. The connection ends with it.
    async fn attempt(&self, path: &Path, version: Version) -> Result<(), AttemptError> {
        let timing = &self.timing;
        let dialled = Connection::dial(path, timing.dial_deadline, timing.connect_backoff).await;
        let mut connection = dialled.map_err(AttemptError::Dial)?;
        let info = get_info(&mut connection, timing.get_info_deadline).await.map_err(AttemptError::GetInfo)?;
        let recorded = self.record(path, version, &info);
        let told = recorded.as_ref().map(drop).map_err(ToString::to_string);
        let notified = notify(&mut connection, told, timing.notify_deadline).await;
        match (recorded, notified) {
            (Ok(_), Ok(())) => {
                tracing::info!(driver = info.name, socket = %path.display(), "kubelet: a plugin is registered");
                Ok(())
            }
            (Ok(plugin), Err(status)) => {
                self.forget(path, &plugin);
                Err(AttemptError::Notify(status))
            }
            // What the plugin says to bad news changes nothing.
            (Err(error), _) => Err(error),
        }
    }

    /// Checks a plugin and takes it. What fails leaves no record.
    fn record(&self, path: &Path, version: Version, info: &PluginInfo) -> Result<Registered, AttemptError> {
        if info.r#type != DRA_PLUGIN {
            return Err(AttemptError::UnknownType { kind: info.r#type.clone() });
        }
        let endpoint = if info.endpoint.is_empty() { path.to_owned() } else { PathBuf::from(&info.endpoint) };
        self.plugins.validate(&info.supported_versions)?;
        let plugin = Registered { version, driver: info.name.clone(), endpoint };
        self.lock().registered.insert(path.to_owned(), plugin.clone());
        if let Err(error) = self.plugins.register(&plugin.driver, &plugin.endpoint, &info.supported_versions) {
            self.lock().registered.remove(path);
            return Err(error.into());
        }
        Ok(plugin)
    }
}

/// Asks a plugin who it is.
pub(super) async fn get_info(connection: &mut Connection, within: Duration) -> Result<PluginInfo, Status> {
    let answer = connection.call(GET_INFO, &InfoRequest {}.encode_to_vec(), within).await?;
    decode(&answer)
}

/// Tells a plugin what became of its registration.
pub(super) async fn notify(
    connection: &mut Connection,
    outcome: Result<(), String>,
    within: Duration,
) -> Result<(), Status> {
    let status = RegistrationStatus { plugin_registered: outcome.is_ok(), error: outcome.err().unwrap_or_default() };
    let answer = connection.call(NOTIFY, &status.encode_to_vec(), within).await?;
    decode::<RegistrationStatusResponse>(&answer).map(drop)
}

fn decode<T: Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes).map_err(|error| Status::internal(format!("the answer cannot be read: {error}")))
}

#[cfg(test)]
mod tests;
