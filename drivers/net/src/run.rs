//! The start of the driver, and its background task.
//!
//! 1. The configuration is read, the host is opened, and its events are followed from then on.
//! 2. A lock keeps a second instance away: what is recovered next must not be what another process is working on.
//! 3. What an earlier process left is brought to an end ([`Claims::recover`]), and the host is scanned.
//! 4. Its interfaces are published, and the kubelet is served.
//! 5. The container runtime is connected. Until it is synchronized the driver is not ready: pods start without it, and their
//!    containers wait at the gate.
//!
//! At the end the kubelet is no longer served first, then the runtime: a pod that was prepared finds its hook for as long as possible.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_driver_kit::background::{Background, BackgroundFailure, failure_of};
use drakkar_driver_kit::config::watch::ConfigFile;
use drakkar_driver_kit::instance::{InstanceLock, LockError};
use drakkar_metadata::name::DriverName;
use drakkar_netlink::Namespace;
use drakkar_nri::{Event as NriEvent, Events as NriEvents, Plugin};
use drakkar_pci::{ManagerSettings, PrepareError};
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::{BoxError, DeferredMetadata, Handles, Helper, PluginBuilder, StartError, StopError};
use drakkar_sysfs::{Roots, Sysfs};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use crate::DRIVER_NAME;
use crate::attributes::Numa;
use crate::binder::PciBinder;
use crate::claims::{Claims, Recovery};
use crate::config::{Config, ConfigError};
use crate::driver::NetDriver;
use crate::events::{Events, EventsError};
use crate::follow::Following;
use crate::health::Subjects;
use crate::hooks::Hooks;
use crate::interfaces::{Interfaces, Settings};
use crate::inventory::{Host, Inventory, InventoryError};
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::rdma_nodes::RdmaNodes;

/// How often is looked for interfaces that have to be brought back or attached.
const REPAIR: Duration = Duration::from_secs(10);

/// The host's `/dev` as the container runtime sees it.
const HOST_DEV: &str = "/dev";

/// What the driver works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file, which is followed.
    pub config: PathBuf,
    /// The network namespace of the host.
    pub host_namespace: PathBuf,
    /// The file systems of the kernel.
    pub roots: Roots,
    /// The form of the attribute for NUMA nodes.
    pub numa: NumaForm,
    /// The addresses of the node, whose interfaces are never handed out unless they are named.
    pub node_addresses: Vec<IpAddr>,
    /// The directory of the driver's journals.
    pub state_directory: PathBuf,
    /// The directory of CDI specs.
    pub cdi_directory: PathBuf,
    /// The socket of the runtime for NRI plugins. `None`: that of `NRI_SOCKET`, or the usual one.
    pub nri_socket: Option<PathBuf>,
    /// The place among the NRI plugins of the node, from 0 to 99.
    pub nri_index: u8,
}

/// Why the driver did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error("configuration {}: {source}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The error.
        source: ConfigError,
    },
    /// The host's network namespace cannot be opened.
    #[error("the host's network: {0}")]
    Namespace(#[from] drakkar_netlink::Error),
    /// The events of the host cannot be followed.
    #[error(transparent)]
    Events(#[from] EventsError),
    /// Another instance of the driver runs on the node.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// What an earlier process left cannot be read.
    #[error("recover what an earlier process left: {0}")]
    Recover(BoxError),
    /// The interfaces of the host cannot be listed.
    #[error(transparent)]
    Scan(#[from] InventoryError),
    /// A thread of the start has failed.
    #[error("start: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The framework did not start.
    #[error(transparent)]
    Plugin(#[from] StartError),
    /// The plugin of the runtime did not start.
    #[error("NRI: {0}")]
    Nri(#[from] drakkar_nri::StartError),
}

impl From<PrepareError> for RunError {
    fn from(error: PrepareError) -> Self {
        Self::Recover(error.into())
    }
}

/// Runs the driver until SIGTERM or SIGINT. An error is printed and makes the exit code 1.
pub async fn run(builder: PluginBuilder, options: Options) -> ExitCode {
    let (failure, failed) = oneshot::channel();
    let outcome = match start_reporting(builder, options, failure).await {
        Ok(running) => running.run_until_signal(failed).await,
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the driver with the builder of a plugin, whose name must be [`DRIVER_NAME`].
pub async fn start(builder: PluginBuilder, options: Options) -> Result<Running, RunError> {
    start_reporting(builder, options, oneshot::channel().0).await
}

/// A driver that runs.
#[derive(Debug)]
pub struct Running {
    helper: Helper,
    nri: drakkar_nri::Handle,
    hooks: Hooks,
    background: Background,
    _connection: AbortOnDropHandle<()>,
}

impl Running {
    /// Returns the framework's part.
    pub fn helper(&self) -> &Helper {
        &self.helper
    }

    /// Returns the connection to the runtime.
    pub fn nri(&self) -> &drakkar_nri::Handle {
        &self.nri
    }

    /// Stops the driver: the kubelet is no longer served, then the runtime. Another one may start afterwards.
    pub async fn stop(self) -> Result<(), StopError> {
        let stopped = self.helper.stop().await;
        self.nri.stop().await;
        self.hooks.finish().await;
        self.background.stop().await;
        stopped
    }

    async fn run_until_signal(self, failed: oneshot::Receiver<BackgroundFailure>) -> Result<(), BoxError> {
        let Self { helper, nri, hooks, background, _connection } = self;
        let outcome = tokio::select! {
            stopped = helper.run_until_signal() => stopped.map_err(BoxError::from),
            // A process that serves claims without following the host any more must not look healthy.
            error = failure_of(failed) => return Err(error.into()),
        };
        nri.stop().await;
        hooks.finish().await;
        background.stop().await;
        outcome
    }
}

/// Starts the driver, which sends a failure of its background task.
async fn start_reporting(
    builder: PluginBuilder,
    options: Options,
    failure: oneshot::Sender<BackgroundFailure>,
) -> Result<Running, RunError> {
    let events = NriEvents::POD_LIFECYCLE | NriEvent::CreateContainer;
    let mut plugin = Plugin::new(DRIVER_NAME, options.nri_index).events(events);
    if let Some(socket) = &options.nri_socket {
        plugin = plugin.socket(socket);
    }
    let opened = tokio::task::spawn_blocking(move || Opened::new(options)).await??;
    // Calls for the same claim are kept apart, and those for different ones need not wait for each other. The gate keeps
    // containers from starting without their network, so that there must be metadata.
    let builder = builder.serialize(false).device_metadata(true).deferred_metadata(DeferredMetadata::Gate);
    let mut made = None;
    let helper = builder.start_with(|handles| {
        let (driver, hooks, metrics, background) = opened.make(handles, failure)?;
        made = Some((hooks, metrics, background));
        Ok(driver)
    });
    let helper = helper.await?;
    // It is made if the start has succeeded.
    let Some((hooks, metrics, background)) = made else {
        return Err(RunError::Recover("the driver was not made".into()));
    };
    let nri = plugin.start(Arc::new(hooks.clone()))?;
    let connection = follow_connection(nri.state(), helper.handles().clone(), hooks.clone(), metrics);
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    Ok(Running { helper, nri, hooks, background, _connection: connection })
}

/// Shows whether the runtime is connected, in metrics and readiness, and to the hooks when it no longer is.
async fn follow_connection(
    mut state: tokio::sync::watch::Receiver<drakkar_nri::State>,
    handles: Handles,
    hooks: Hooks,
    metrics: Metrics,
) {
    loop {
        let not_ready = match &*state.borrow_and_update() {
            drakkar_nri::State::Synchronized { .. } => None,
            drakkar_nri::State::Registered => Some("waiting for the container runtime to synchronize".to_owned()),
            drakkar_nri::State::Disconnected { error, .. } => {
                let reason = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
                Some(format!("the container runtime is not connected{reason}"))
            }
        };
        let is_connected = not_ready.is_none();
        metrics.connected(is_connected);
        handles.set_not_ready(not_ready);
        if !is_connected {
            hooks.disconnected();
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// What is opened before the framework starts.
struct Opened {
    file: ConfigFile<Config>,
    events: Events,
    host: Host,
    inventory: Inventory,
    config: Arc<Config>,
    numa: Numa,
    node_addresses: Vec<IpAddr>,
    kernel: Arc<Kernel>,
    binder: Arc<PciBinder>,
    rdma_nodes: Arc<RdmaNodes>,
    claims: Arc<Claims>,
    recovery: Recovery,
    lock: InstanceLock,
}

impl Opened {
    fn new(options: Options) -> Result<Self, RunError> {
        let opened = ConfigFile::open(&options.config);
        let (file, config) = opened.map_err(|source| RunError::Config { path: options.config.clone(), source })?;
        let namespace = Namespace::open(&options.host_namespace)?;
        let events = Events::open(&namespace)?;
        let lock = InstanceLock::acquire(&options.state_directory)?;
        let sysfs = Sysfs::at(options.roots.clone());
        let kernel = Kernel::new(&options.host_namespace).with_sysfs(&options.roots.sys);
        let kernel = Arc::new(kernel.with_settings(options.roots.proc.join("sys")));
        let binder = Arc::new(open_binder(&options, sysfs.clone())?);
        let directory = options.state_directory.join("claims");
        let claims = Claims::open(kernel.clone(), binder.clone(), directory, &options.roots.proc);
        let claims = claims.map_err(|error| RunError::Recover(error.into()))?;
        let recovery = claims.recover().map_err(|error| RunError::Recover(error.into()))?;
        log(&recovery);
        let rdma_nodes = Arc::new(open_rdma_nodes(&options, &claims).map_err(RunError::Recover)?);
        let numa = Numa::new(&options.roots.sys, options.numa);
        let mut host = Host::open(&namespace, sysfs)?;
        let inventory = host.scan()?;
        let claims = Arc::new(claims);
        let node_addresses = options.node_addresses;
        Ok(Self {
            file,
            events,
            host,
            inventory,
            config,
            numa,
            node_addresses,
            kernel,
            binder,
            rdma_nodes,
            claims,
            recovery,
            lock,
        })
    }

    /// Makes the driver: publishes the interfaces, and follows the host from then on.
    fn make(
        self,
        handles: Handles,
        failure: oneshot::Sender<BackgroundFailure>,
    ) -> Result<(NetDriver, Hooks, Metrics, Background), BoxError> {
        let node =
            handles.node_name().ok_or("the name of the node is missing: set --node-name or NODE_NAME")?.to_owned();
        let metrics = Metrics::register(&handles);
        handles.set_not_ready(Some("the container runtime is not connected".to_owned()));
        metrics.held(self.claims.count());
        let pool = node.clone();
        let settings = Settings { node, config: self.config, numa: self.numa, node_addresses: self.node_addresses };
        let held = {
            let claims = self.claims.clone();
            move || claims.held()
        };
        let publish = {
            let handles = handles.clone();
            move |resources| {
                if let Err(error) = handles.publish_resources(resources) {
                    tracing::error!(%error, "publishing failed");
                }
            }
        };
        let interfaces = Arc::new(Interfaces::new(self.host, self.inventory, settings, held, publish));
        interfaces.publish();
        let reports = Arc::new(handles);
        let hooks =
            Hooks::new(self.claims.clone(), self.kernel.clone(), interfaces.clone(), reports.clone(), metrics.clone());
        hooks.close_gates(self.recovery.restored);
        let following =
            Following { interfaces: interfaces.clone(), events: self.events.into_stream()?, file: self.file };
        let task = follow(following, hooks.clone(), self.binder, metrics.clone());
        let background = Background::spawn(task, failure, self.lock);
        let health = Subjects {
            interfaces: interfaces.clone(),
            claims: self.claims.clone(),
            attacher: self.kernel.clone(),
            node: pool,
        };
        let driver = NetDriver {
            claims: self.claims,
            attacher: self.kernel,
            published: interfaces,
            reports,
            hooks: hooks.clone(),
            rdma_nodes: self.rdma_nodes,
            metrics: metrics.clone(),
            health: Some(health),
        };
        Ok((driver, hooks, metrics, background))
    }
}

/// Opens what binds devices for user space, and brings to an end what an earlier process has left.
fn open_binder(options: &Options, sysfs: Sysfs) -> Result<PciBinder, RunError> {
    let driver = DriverName::new(DRIVER_NAME).map_err(|error| RunError::Recover(error.into()))?;
    let settings = ManagerSettings {
        driver,
        state_directory: options.state_directory.join("functions"),
        cdi_directory: options.cdi_directory.clone(),
        host_dev: HOST_DEV.into(),
    };
    let (binder, recovery) = PciBinder::open(sysfs, &settings)?;
    for problem in &recovery.problems {
        tracing::error!(%problem, "device for user space of an earlier process not recovered");
    }
    Ok(binder)
}

/// Opens the specs with device nodes of RDMA devices, and removes those that an earlier process has left.
fn open_rdma_nodes(options: &Options, claims: &Claims) -> Result<RdmaNodes, BoxError> {
    let driver = DriverName::new(DRIVER_NAME)?;
    let nodes = RdmaNodes::open(&options.roots, driver, options.cdi_directory.clone(), HOST_DEV.into())?;
    nodes.remove_orphans(&claims.uids())?;
    Ok(nodes)
}

/// Logs what was found at the start.
fn log(recovery: &Recovery) {
    for claim in &recovery.kept {
        tracing::info!(%claim, "claim of an earlier process kept");
    }
    for claim in &recovery.restored {
        tracing::info!(%claim, "interfaces of an earlier process brought back");
    }
    for claim in &recovery.earlier_boot {
        tracing::info!(%claim, "claim of an earlier boot dropped");
    }
    for problem in &recovery.problems {
        tracing::error!(%problem, "claim of an earlier process not recovered");
    }
    for error in &recovery.errors {
        tracing::error!(%error, "interfaces of an earlier process not brought back, trying again");
    }
}

/// Follows the host, the configuration and the clock.
async fn follow(following: Following, hooks: Hooks, binder: Arc<PciBinder>, metrics: Metrics) -> Infallible {
    tokio::select! {
        never = following.run(move |is_valid| metrics.reloaded(is_valid)) => never,
        never = repair(hooks, binder) => never,
    }
}

/// Tries again what could not be done before.
async fn repair(hooks: Hooks, binder: Arc<PciBinder>) -> Infallible {
    let mut ticks = tokio::time::interval_at(Instant::now() + REPAIR, REPAIR);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        hooks.retry().await;
        hooks.repair().await;
        let binder = binder.clone();
        // What it could not do is logged by the calls that ask for it.
        let _ =
            tokio::task::spawn_blocking(move || binder.manager().has_unfinished().then(|| binder.manager().retry()))
                .await;
    }
}
