//! The start of the driver, and the task that follows events and the configuration.
//!
//! 1. The configuration is read, the host is opened, and its events are followed from then on.
//! 2. A lock keeps a second instance away ([`InstanceLock`]).
//! 3. What an earlier process left is brought to an end ([`DeviceManager::recover`]), and the host is scanned.
//! 4. Its devices are published, and the kubelet is served.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_driver_kit::background::{Background, BackgroundFailure, failure_of};
use drakkar_driver_kit::config::watch::ConfigFile;
use drakkar_driver_kit::instance::{InstanceLock, LockError};
use drakkar_metadata::name::DriverName;
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::{BoxError, Handles, Helper, PluginBuilder, StartError, StopError};
use drakkar_sysfs::{ScanError, Uevent, UeventError};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};

use crate::DRIVER_NAME;
use crate::attributes::Numa;
use crate::config::{Config, ConfigError};
use crate::devices::{Devices, Scan};
use crate::driver::PciDriver;
use crate::events::{EventStream, Events};
use crate::metrics::Metrics;
use crate::plan::Held;
use crate::prepare::{DeviceManager, ManagerSettings, PrepareError};
use crate::source::{Source, SourceError};
use crate::unfinished::Unfinished;

/// How often devices are read for what the kernel sends no events about.
const REFRESH: Duration = Duration::from_secs(10);
/// The pause after a failure of the event socket.
const PAUSE: Duration = Duration::from_secs(1);

/// What the driver works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file, which is followed.
    pub config: PathBuf,
    /// Where devices come from.
    pub source: Source,
    /// The form of the attribute for NUMA nodes.
    pub numa: NumaForm,
    /// How long to wait for the kernel to return from a write. A kubelet gives a prepare 45 seconds.
    pub write_timeout: Duration,
    /// The directory of the driver's journal.
    pub state_directory: PathBuf,
    /// The directory of CDI specs.
    pub cdi_directory: PathBuf,
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
    /// The host cannot be opened.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The driver's state on this node is not to be had: another instance runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The driver's name is not valid.
    #[error("driver name: {0}")]
    Name(#[from] drakkar_metadata::name::NameError),
    /// What an earlier process left cannot be read.
    #[error("recover what an earlier process left: {0}")]
    Recover(#[from] PrepareError),
    /// The devices of the host cannot be listed.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A thread of the start has failed.
    #[error("start: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The framework did not start.
    #[error(transparent)]
    Plugin(#[from] StartError),
    /// The framework has started without a driver, which is a defect.
    #[error("the driver was not made")]
    NotMade,
}

/// Why the driver could not be made.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("the name of the node is missing: set --node-name or NODE_NAME")]
    NoNode,
    #[error(transparent)]
    Events(#[from] UeventError),
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
    background: Background,
}

impl Running {
    /// Returns the framework's part.
    pub fn helper(&self) -> &Helper {
        &self.helper
    }

    /// Stops the driver: the kubelet is no longer served. Another one may start afterwards.
    pub async fn stop(self) -> Result<(), StopError> {
        let stopped = self.helper.stop().await;
        self.background.stop().await;
        stopped
    }

    async fn run_until_signal(self, failed: oneshot::Receiver<BackgroundFailure>) -> Result<(), BoxError> {
        let Self { helper, background } = self;
        let outcome = tokio::select! {
            stopped = helper.run_until_signal() => stopped.map_err(BoxError::from),
            // A process that serves claims without following the host any more must not look healthy.
            error = failure_of(failed) => return Err(error.into()),
        };
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
    let opened = tokio::task::spawn_blocking(move || Opened::new(options)).await??;
    // The manager keeps calls for the same devices apart, and those for different ones need not wait for each other.
    let builder = builder.serialize(false);
    let mut made = None;
    let helper = builder.start_with(|handles| {
        let (driver, background) = opened.make(handles, failure)?;
        made = Some(background);
        Ok(driver)
    });
    let helper = helper.await?;
    // It is made if the start has succeeded.
    let Some(background) = made else { return Err(RunError::NotMade) };
    Ok(Running { helper, background })
}

/// What is opened before the framework starts.
struct Opened {
    file: ConfigFile<Config>,
    config: Arc<Config>,
    scan: Scan,
    events: Events,
    numa: Numa,
    manager: Arc<DeviceManager>,
    lock: InstanceLock,
}

impl Opened {
    fn new(options: Options) -> Result<Self, RunError> {
        let Options { config: path, source, numa, write_timeout, state_directory, cdi_directory } = options;
        let opened = ConfigFile::open(&path);
        let (file, config) = opened.map_err(|source| RunError::Config { path, source })?;
        let is_simulated = !matches!(source, Source::Host(_));
        let (sysfs, events) = source.open()?;
        let sysfs = sysfs.with_write_timeout(write_timeout);
        let lock = InstanceLock::acquire(&state_directory)?;
        let host_dev = if is_simulated { sysfs.roots().dev.clone() } else { PathBuf::from("/dev") };
        let driver = DriverName::new(DRIVER_NAME)?;
        let settings = ManagerSettings { driver, state_directory, cdi_directory, host_dev };
        let manager = Arc::new(DeviceManager::open(sysfs.clone(), &settings)?);
        recover(&manager)?;
        let numa = Numa::new(&sysfs.roots().sys, numa);
        Ok(Self { file, config, scan: Scan::new(sysfs)?, events, numa, manager, lock })
    }

    /// Makes the driver: publishes the devices, and follows the host from then on.
    fn make(
        self,
        handles: Handles,
        failure: oneshot::Sender<BackgroundFailure>,
    ) -> Result<(PciDriver, Background), MakeError> {
        let node = handles.node_name().ok_or(MakeError::NoNode)?.to_owned();
        let metrics = Metrics::register(&handles);
        let manager = self.manager.clone();
        let holdings = move || {
            let held = manager.held().into_iter().map(|held| {
                let made = Held { address: held.address, uuid: held.mdev_uuid, is_prepared: held.is_prepared };
                (held.target, made)
            });
            let held = held.collect();
            (held, manager.former_drivers())
        };
        let publisher = handles.clone();
        let publish = move |resources| {
            if let Err(error) = publisher.publish_resources(resources) {
                tracing::error!(%error, "publishing failed");
            }
        };
        let devices = Devices::new(self.scan, &node, self.config, self.numa, metrics.clone(), holdings, publish);
        devices.publish();
        let devices = Arc::new(devices);
        let events = self.events.into_stream()?;
        let unfinished = Unfinished::new(self.manager.clone(), devices.clone());
        let following = Following { devices: devices.clone(), unfinished, events, file: self.file, metrics };
        let background = Background::spawn(following.run(), failure, self.lock);
        Ok((PciDriver { devices, manager: self.manager, handles, node }, background))
    }
}

/// Brings to an end what an earlier process left. Which claims exist is not asked: the kubelet unprepares those that do not, and
/// so does the framework where no kubelet will.
fn recover(manager: &DeviceManager) -> Result<(), PrepareError> {
    let recovery = manager.recover(|_| true)?;
    for claim in &recovery.prepared {
        tracing::info!(%claim, "claim of an earlier process kept");
    }
    for claim in recovery.taken_back.iter().chain(&recovery.earlier_boot) {
        tracing::info!(%claim, "unfinished claim of an earlier process taken back");
    }
    for problem in &recovery.problems {
        tracing::error!(%problem, "claim of an earlier process not recovered");
    }
    for address in &recovery.unexplained {
        tracing::error!(%address, "device bound to vfio-pci for no known claim; unbind it by hand, or reboot");
    }
    Ok(())
}

/// Follows events, the configuration and the clock.
struct Following {
    devices: Arc<Devices>,
    unfinished: Unfinished,
    events: EventStream,
    file: ConfigFile<Config>,
    metrics: Metrics,
}

impl Following {
    async fn run(mut self) -> Infallible {
        let mut ticks = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_events = true;
        loop {
            tokio::select! {
                events = self.events.next(), if has_events => match events {
                    Ok(events) if events.is_empty() => has_events = false,
                    Ok(events) => self.apply(events).await,
                    Err(error) => {
                        tracing::error!(%error, "events of the kernel lost, scanning again");
                        tokio::time::sleep(PAUSE).await;
                        self.apply(vec![Uevent::Overflow]).await;
                    }
                },
                config = self.file.changed() => self.configure(config).await,
                _ = ticks.tick() => {
                    self.unfinished.retry();
                    self.blocking(|devices| {
                        if let Err(error) = devices.refresh() {
                            tracing::warn!(%error, "devices not read");
                        }
                    }).await;
                },
            }
        }
    }

    async fn apply(&self, events: Vec<Uevent>) {
        self.blocking(move |devices| {
            if let Err(error) = devices.apply(&events) {
                tracing::warn!(%error, "events not handled");
            }
        })
        .await;
    }

    /// Takes over a new configuration, or says why the old one stays.
    async fn configure(&self, config: Result<Arc<Config>, ConfigError>) {
        self.metrics.reloaded(config.is_ok());
        match config {
            Ok(config) => {
                tracing::info!(rules = config.devices.len(), "configuration replaced");
                self.blocking(move |devices| devices.set_config(config)).await;
            }
            Err(error) => tracing::error!(%error, "new configuration refused, the old one stays in use"),
        }
    }

    async fn blocking(&self, work: impl FnOnce(&Devices) + Send + 'static) {
        let devices = self.devices.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || work(&devices)).await {
            tracing::error!(%error, "keeping devices up to date failed");
        }
    }
}
