//! Registers the plugins behind the sockets in the registry, and deregisters them when their sockets are gone.
//!
//! A loop compares the sockets with the registered plugins. Each operation runs as a task of its own, one at a time for each
//! socket path. A failure delays the next operation on the path, also if another socket has taken the name since.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_client::Retry;
use drakkar_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use prost::Message;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tonic::Status;

use super::h2::Connection;
use super::plugins::Plugins;
use super::registry::{Sockets, Version};
use super::rpc_error::RpcError;
use super::tasks::Tasks;
use super::timing::Timing;

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
/// The only type of plugin that this kubelet supports.
const DRA_PLUGIN: &str = "DRAPlugin";

/// The registered plugins by socket. Clones share them.
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
    /// Why the last attempt on a socket failed.
    failures: BTreeMap<PathBuf, String>,
}

#[derive(Debug, Clone)]
struct Registered {
    version: Version,
    driver: String,
    endpoint: PathBuf,
}

/// The operation that runs on a socket path, or has failed there.
#[derive(Debug)]
enum Operation {
    Running(Option<Retry>),
    Failed { retry: Retry, until: Instant },
}

/// Why a plugin could not be registered.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("{}", RpcError(.0))]
    Dial(Status),
    #[error("GetInfo: {}", RpcError(.0))]
    GetInfo(Status),
    #[error("no handler for plugins of type {kind:?}")]
    UnknownType { kind: String },
    #[error("{0}")]
    Register(#[from] super::plugins::RegisterError),
    #[error("NotifyRegistrationStatus: {}", RpcError(.0))]
    Notify(Status),
}

impl Registrar {
    pub(super) fn new(sockets: Sockets, plugins: Plugins, timing: Timing, tasks: Tasks) -> Self {
        Self { sockets, plugins, timing, tasks, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sockets whose plugins could not be registered, each with the last error.
    pub(super) fn failures(&self) -> Vec<(PathBuf, String)> {
        self.lock().failures.clone().into_iter().collect()
    }

    pub(super) async fn run(self) {
        let mut ticks = interval(self.timing.registration_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.reconcile();
        }
    }

    fn reconcile(&self) {
        let desired = self.sockets.snapshot();
        self.lock().failures.retain(|path, _| desired.contains_key(path));
        let registered = self.lock().registered.clone();
        for (path, plugin) in &registered {
            if desired.get(path) != Some(&plugin.version) && self.begin(path) {
                let registrar = self.clone();
                let path = path.clone();
                let plugin = plugin.clone();
                self.tasks.spawn(async move {
                    registrar.deregister(&path, &plugin);
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
                    match &outcome {
                        Ok(()) => drop(registrar.lock().failures.remove(&path)),
                        Err(error) => {
                            tracing::warn!(socket = %path.display(), %error, "kubelet: registering a plugin failed");
                            registrar.lock().failures.insert(path.clone(), error.to_string());
                        }
                    }
                    registrar.end(&path, outcome.is_ok());
                });
            }
        }
    }

    /// Starts an operation on a path, unless one is running or the delay after a failure has not passed.
    fn begin(&self, path: &Path) -> bool {
        let mut state = self.lock();
        let retry = match state.operations.remove(path) {
            None => None,
            Some(Operation::Failed { retry, until }) if until <= Instant::now() => Some(retry),
            Some(operation) => {
                state.operations.insert(path.to_owned(), operation);
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

    fn deregister(&self, path: &Path, plugin: &Registered) {
        self.plugins.deregister(&plugin.driver, &plugin.endpoint);
        self.lock().registered.remove(path);
        tracing::info!(driver = plugin.driver, socket = %path.display(), "kubelet: plugin deregistered");
    }

    /// Tries once to register a plugin, on a connection of its own.
    async fn attempt(&self, path: &Path, version: Version) -> Result<(), AttemptError> {
        let timing = &self.timing;
        let dialled = Connection::dial(path, timing.dial_timeout, timing.connect_backoff).await;
        let mut connection = dialled.map_err(AttemptError::Dial)?;
        let info = get_info(&mut connection, timing.get_info_timeout).await.map_err(AttemptError::GetInfo)?;
        let recorded = self.record(path, version, &info);
        let outcome = recorded.as_ref().map(drop).map_err(ToString::to_string);
        let notified = notify(&mut connection, outcome, timing.notify_timeout).await;
        match (recorded, notified) {
            (Ok(_), Ok(())) => {
                tracing::info!(driver = info.name, socket = %path.display(), "kubelet: plugin registered");
                Ok(())
            }
            (Ok(plugin), Err(status)) => {
                self.deregister(path, &plugin);
                Err(AttemptError::Notify(status))
            }
            // The plugin's answer to a failed registration does not matter.
            (Err(error), _) => Err(error),
        }
    }

    /// Checks and records a plugin. A failure leaves no record.
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

/// Calls `GetInfo`.
pub(super) async fn get_info(connection: &mut Connection, timeout: Duration) -> Result<PluginInfo, Status> {
    let response = connection.call(GET_INFO, &InfoRequest {}.encode_to_vec(), timeout).await?;
    decode(&response)
}

/// Calls `NotifyRegistrationStatus`.
pub(super) async fn notify(
    connection: &mut Connection,
    outcome: Result<(), String>,
    timeout: Duration,
) -> Result<(), Status> {
    let status = RegistrationStatus { plugin_registered: outcome.is_ok(), error: outcome.err().unwrap_or_default() };
    let response = connection.call(NOTIFY, &status.encode_to_vec(), timeout).await?;
    decode::<RegistrationStatusResponse>(&response).map(drop)
}

fn decode<T: Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes).map_err(|error| Status::internal(format!("decode the response: {error}")))
}

#[cfg(test)]
mod tests;
