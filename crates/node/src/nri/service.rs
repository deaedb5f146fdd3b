//! The state of NRI in the runtime: the plugins, the pods and containers that were announced to them, and the locks.
//!
//! There are two locks, as in containerd. `fan_out` is held while an event goes to all plugins, one after the other, so that at
//! any time one event is processed on the node. `operations` is held for reading by each operation on a pod or container,
//! for all of its events, and for writing while a new plugin synchronizes: no operation is half seen by a plugin. A writer
//! that waits keeps new readers out, so a container that takes long to stop delays everything while a plugin connects.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_nri_api::v1alpha1::{Container, ContainerUpdate, PodSandbox, UpdateContainersRequest};
use tokio::net::UnixListener;
use tokio::sync::{Mutex as AsyncMutex, RwLock, RwLockReadGuard, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Config;
use super::faults::{Call, Faults};
use super::log::Log;
use super::plugin::{Plugin, RequestedUpdates};
use super::session;

/// The pods and containers of the runtime.
pub(crate) trait Inventory: Send + Sync + std::fmt::Debug {
    /// Returns all sandboxes that are not removed.
    fn pods(&self) -> Vec<PodSandbox>;
    /// Returns the containers that are created or running.
    fn containers(&self) -> Vec<Container>;
}

/// The last event about a pod or container that was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    Created,
    Running,
    Stopped,
}

/// What is protected by the lock of a fan-out.
#[derive(Debug, Default)]
pub(super) struct FanOut {
    /// The plugins that get events, in the order of their calls.
    pub(super) plugins: Vec<Arc<Plugin>>,
    /// The pods and containers that were announced, by id. A restarted runtime has forgotten them.
    pub(super) announced: HashMap<String, Announced>,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(super) config: Config,
    socket: PathBuf,
    pub(super) log: Arc<Log>,
    pub(super) faults: Arc<Faults>,
    pub(super) updates: Mutex<Vec<RequestedUpdates>>,
    pub(super) fan_out: AsyncMutex<FanOut>,
    pub(super) operations: RwLock<()>,
    pub(super) inventory: Arc<dyn Inventory>,
    /// All connections that are open, also those that are not synchronized.
    connected: Mutex<Vec<Arc<Plugin>>>,
    /// Ends the tasks of the runtime that runs now.
    running: Mutex<Option<CancellationToken>>,
    is_up: watch::Sender<bool>,
    restarts: AtomicU64,
    pub(super) tasks: TaskTracker,
}

/// An operation on a pod or container. No plugin synchronizes until it is dropped.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    service: &'a Service,
    restarts: u64,
    _guard: Option<RwLockReadGuard<'a, ()>>,
}

impl Operation<'_> {
    /// Reports whether the runtime was stopped since the operation began, which then has failed.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.service.restarts.load(Ordering::Relaxed) != self.restarts
    }
}

impl Service {
    pub(crate) fn new(config: Config, socket: PathBuf, inventory: Arc<dyn Inventory>) -> Self {
        Self {
            config,
            socket,
            log: Arc::default(),
            faults: Arc::default(),
            updates: Mutex::default(),
            fan_out: AsyncMutex::default(),
            operations: RwLock::default(),
            inventory,
            connected: Mutex::default(),
            running: Mutex::default(),
            is_up: watch::Sender::new(false),
            restarts: AtomicU64::new(0),
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Begins an operation, once the runtime runs and no plugin synchronizes.
    pub(crate) async fn operation(&self) -> Operation<'_> {
        // The sender lives as long as the service.
        let _ = self.is_up.subscribe().wait_for(|is_up| *is_up).await;
        let guard = if self.config.version.is_at_least_0_7() { Some(self.operations.read().await) } else { None };
        Operation { service: self, restarts: self.restarts.load(Ordering::Relaxed), _guard: guard }
    }

    /// Opens the socket, and accepts plugins. Does nothing if that is already so.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut running = lock(&self.running);
        if running.is_some() {
            return Ok(());
        }
        if let Some(directory) = self.socket.parent() {
            std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
                .create(directory)?;
        }
        remove_socket(&self.socket)?;
        let listener = UnixListener::bind(&self.socket)?;
        let token = CancellationToken::new();
        self.tasks.spawn(token.clone().run_until_cancelled_owned(session::accept(
            self.clone(),
            listener,
            token.clone(),
        )));
        *running = Some(token);
        self.is_up.send_replace(true);
        Ok(())
    }

    /// Ends the runtime immediately, in the middle of whatever it does: closes all connections, removes the socket, and
    /// forgets which pods and containers were announced. Operations wait until the next start.
    pub(crate) async fn stop(&self) -> io::Result<()> {
        self.kill();
        let removed = remove_socket(&self.socket);
        // Whoever has the lock has lost its connections, and is about to release it.
        *self.fan_out.lock().await = FanOut::default();
        removed
    }

    /// Ends all tasks and connections.
    pub(crate) fn kill(&self) {
        self.is_up.send_replace(false);
        self.restarts.fetch_add(1, Ordering::Relaxed);
        if let Some(token) = lock(&self.running).take() {
            token.cancel();
        }
        for plugin in self.connected() {
            plugin.close("the runtime was stopped");
        }
    }

    /// Waits until all tasks have ended, after [`kill`](Self::kill).
    pub(crate) async fn tasks_ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Reports whether plugins may add CDI devices to containers.
    pub(crate) fn has_cdi_adjustments(&self) -> bool {
        self.config.version.is_at_least_0_7()
    }

    pub(super) fn connected(&self) -> Vec<Arc<Plugin>> {
        lock(&self.connected).clone()
    }

    pub(super) fn add_connection(&self, plugin: Arc<Plugin>) {
        lock(&self.connected).push(plugin);
    }

    pub(super) fn remove_connection(&self, plugin: &Arc<Plugin>) {
        lock(&self.connected).retain(|other| !Arc::ptr_eq(other, plugin));
    }

    /// Records updates that a plugin has requested, and returns those of containers that do not exist.
    pub(super) fn record_updates(
        &self,
        plugin: &Plugin,
        call: Option<Call>,
        updates: UpdateContainersRequest,
    ) -> Vec<ContainerUpdate> {
        let containers = self.inventory.containers();
        let is_known = |update: &&ContainerUpdate| containers.iter().any(|known| known.id == update.container_id);
        let failed = updates.update.iter().filter(|update| !is_known(update)).cloned().collect();
        if !updates.update.is_empty() || !updates.evict.is_empty() {
            lock(&self.updates).push(RequestedUpdates { plugin: plugin.name().to_owned(), call, updates });
        }
        failed
    }

    pub(super) fn requested_updates(&self) -> Vec<RequestedUpdates> {
        lock(&self.updates).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove_socket(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
