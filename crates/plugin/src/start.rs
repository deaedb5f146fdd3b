//! Starting a driver: what is checked, and the order in which things come up.
//!
//! 1. Everything that was set is checked: names, directories, versions. What is wrong is told with what to change.
//! 2. What earlier processes left on disk is brought in order, before anybody can ask for anything.
//! 3. The HTTP endpoint's address is taken, then the DRA server and last the registration server come up: a kubelet that
//!    sees the latter calls at once.
//! 4. In the background, claims that are on disk but gone from the API server are unprepared, when the kubelet has had time to
//!    do so.
//!
//! If a step fails, what came up before goes with it.

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_cdi::Vendor;
use drakkar_client::DraClient;
use drakkar_metadata::name::{DriverName, NameError};
use drakkar_metadata::{VersionError, Versions};
use drakkar_slices::{ELECTION_FILE, GENERATIONS_FILE, Publisher, PublisherConfig};
use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::service::Routes;

use crate::builder::{DeferredMetadata, PluginBuilder};
use crate::claims::ClaimSource;
use crate::disk::{Disk, Medium};
use crate::driver::{BackgroundError, BoxError, DraPlugin, Panicked};
use crate::health::{HealthHub, HealthReporter, HealthV1, HealthV1alpha1};
use crate::helper::{Helper, Running};
use crate::http_endpoint::{HttpListener, Pages, RuntimeProbe};
use crate::ledger::DeviceLedger;
use crate::lock::Locks;
use crate::metrics::{Metrics, Severity};
use crate::publishing::PublishObserver;
use crate::registration::{Services, SupportedServices};
use crate::server::{CallHooks, EndpointSettings, Endpoints};
use crate::service::wire::{DraV1, DraV1beta1};
use crate::service::{Rooms, Service, ServiceSettings, chain};
use crate::socket::{PodUid, dra_socket, ensure_not_live};
use crate::status::StatusReports;
use crate::store::{Delivery, PLUGIN_DIRECTORY_MODE, RecoveredClaim, Settings, Store, SystemFiles, make_directories};
use drakkar_kubelet_api::dra_v1::dra_plugin_server::DraPluginServer as DraV1Server;
use drakkar_kubelet_api::dra_v1beta1::dra_plugin_server::DraPluginServer as DraV1beta1Server;
use drakkar_kubelet_api::health_v1::dra_resource_health_server::DraResourceHealthServer as HealthV1Server;
use drakkar_kubelet_api::health_v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1Server;

/// How long a start waits for another instance to finish what it does, before it leaves the disk as it is.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(10);

/// Why a driver did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The driver's name is not one.
    #[error("{0}; a driver's name is a domain name that its vendor owns, such as gpu.example.com")]
    DriverName(#[source] NameError),
    /// The driver's name cannot be the vendor of a CDI device.
    #[error(
        "driver name {driver}: device metadata needs a name that CDI can carry as a vendor: {source}, or turn device \
         metadata off"
    )]
    CdiVendor {
        /// The name.
        driver: DriverName,
        /// What CDI refuses.
        source: BoxError,
    },
    /// The pod's UID is not one.
    #[error("{0}")]
    PodUid(#[source] BoxError),
    /// The versions of metadata files cannot be written.
    #[error("metadata versions: {0}")]
    Versions(#[source] VersionError),
    /// Containers would not see metadata files.
    #[error("metadata layout: there is none; use kep, kubernetes or both")]
    NoLayout,
    /// No version of the DRA service is on.
    #[error("{0}")]
    NoService(#[source] BoxError),
    /// A directory is not there or cannot be used.
    #[error("{what} {}: {source}; {remedy}", .path.display())]
    Directory {
        /// What the directory is for.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// There is no way to the API server.
    #[error("find the API server: {0}; in a pod a service account is needed, elsewhere a kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// The lock file for rolling updates cannot be used.
    #[error("{0}")]
    Lock(#[source] BoxError),
    /// The HTTP endpoint cannot be served.
    #[error("{0}")]
    Http(#[source] BoxError),
    /// A socket cannot be served.
    #[error("{0}")]
    Endpoints(#[source] BoxError),
    /// The driver cannot say whether it watches the health of its devices.
    #[error("ask the driver whether it watches health: {0}")]
    Health(#[source] BoxError),
    /// A task of the start failed.
    #[error("start the driver: {0}")]
    Task(#[source] tokio::task::JoinError),
}

impl PluginBuilder {
    /// Starts the driver, runs it until the process is told to end (SIGTERM, SIGINT), and stops it: all that is left to do
    /// for a `main`. What goes wrong is written to standard error, and makes the exit code 1.
    pub async fn run<P: DraPlugin>(self, plugin: P) -> ExitCode {
        let outcome = match self.start(plugin).await {
            Ok(helper) => helper.run_until_signal().await.map_err(BoxError::from),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {}", chain(&*error));
                ExitCode::FAILURE
            }
        }
    }

    /// Starts the driver. When this returns, its sockets are there; the kubelet registers it when it has seen them.
    pub async fn start<P: DraPlugin>(self, plugin: P) -> Result<Helper, StartError> {
        let checked = self.check()?;
        let (store, locks, medium) = checked.open().await?;
        let client = match self.client {
            Some(client) => client,
            None => drakkar_client::connect().await.map_err(|error| StartError::Client(Box::new(error)))?,
        };
        let plugin = Arc::new(plugin);
        let metrics = Metrics::new(&checked.driver);
        let background: Background = {
            let (plugin, metrics) = (plugin.clone(), metrics.clone());
            Arc::new(move |error: BackgroundError| {
                metrics.background_error(if error.is_fatal() { Severity::Fatal } else { Severity::Recoverable });
                let told = std::panic::catch_unwind(AssertUnwindSafe(|| plugin.handle_error(&error)));
                if told.is_err() {
                    tracing::error!(%error, "the driver panicked when it was told of this");
                }
            })
        };

        let ledger = Arc::new(DeviceLedger::default());
        let recovered = match self.serve_dra {
            true => recover(&store, &locks, &metrics, &background).await?,
            // The files are those of the process that serves.
            false => Vec::new(),
        };
        for found in &recovered {
            ledger.restore(&found.claim, &found.uses);
        }
        {
            let ledger = Arc::downgrade(&ledger);
            metrics.set_claims_source(move || ledger.upgrade().map(|ledger| ledger.counts()).unwrap_or_default());
        }

        let settings = ServiceSettings {
            driver: checked.driver.clone(),
            metadata: self.metadata,
            deferred: match self.deferred {
                DeferredMetadata::Placeholder => Delivery::Later,
                DeferredMetadata::Gate => Delivery::Gated,
            },
            serialize: self.serialize,
            concurrency: self.concurrency,
            guard: self.guard,
            device_patience: self.device_patience,
        };
        let client = DraClient::new(client);
        let publisher = {
            let lock_directory = checked.lock_file.parent().unwrap_or(&checked.store.plugin_directory);
            let mut config = PublisherConfig::new(checked.driver.as_str())
                .start_within(self.publish_within)
                .generations_file(checked.store.plugin_directory.join(GENERATIONS_FILE));
            if let Some(node) = &self.node_name {
                config = config.node(node);
            }
            if let Some(uid) = self.node_uid {
                config = config.node_uid(uid);
            }
            if let Some(pool) = self.only_pool {
                config = config.only_pool(pool);
            }
            if checked.pod_uid.is_some() {
                config = config.election_file(lock_directory.join(ELECTION_FILE));
            }
            let observer = PublishObserver { metrics: metrics.clone(), background: background.clone() };
            Publisher::start(client.clone(), config, Arc::new(observer))
        };
        let claims = ClaimSource::new(client, checked.driver.clone(), metrics.clone());
        let (patience, tell) = (self.status_patience, background.clone());
        let status = StatusReports::start(claims.clone(), &checked.driver, patience, tell, metrics.clone());
        let published = self.metadata_from_published.then(|| publisher.attributes());
        let disk = Disk::on(medium);
        let rooms = Rooms { claims, ledger, locks, store, disk, reporter: status.reporter(), published };
        let service = Arc::new(Service::new(plugin.clone(), settings, rooms, metrics.clone()));
        let health = hub(&plugin, &background)?;
        if let Some(health) = &health {
            let health = Arc::downgrade(health);
            metrics.set_health_source(move || health.upgrade().map(|health| health.summary()).unwrap_or_default());
        }
        let services = Services {
            health_v1: self.services.health_v1 && health.is_some(),
            health_v1alpha1: self.services.health_v1alpha1 && health.is_some(),
            ..self.services
        };
        let settings = EndpointSettings {
            driver: checked.driver.clone(),
            pod_uid: checked.pod_uid.clone(),
            registry_directory: checked.registry_directory.clone(),
            plugin_directory: checked.store.plugin_directory.clone(),
            services: SupportedServices::new(services).map_err(|error| StartError::NoService(error.into()))?,
            serve_dra: self.serve_dra,
            register: self.register,
            dra_hooks: CallHooks { metrics: metrics.clone(), interceptor: self.interceptor },
            registration_hooks: CallHooks { metrics: metrics.clone(), interceptor: self.registration_interceptor },
        };
        let lines = status_lines(&checked, &settings, self.node_name.as_deref(), self.metadata);
        let routes = routes(&service, health.as_ref(), services);
        let http = self.http_endpoint.map(HttpListener::bind).transpose();
        let http = http.map_err(|error| StartError::Http(error.into()))?;
        let endpoints =
            Endpoints::start(settings, routes).await.map_err(|error| StartError::Endpoints(error.into()))?;
        let (fatal, is_fatal) = watch::channel(None);
        let http = http.map(|listener| {
            listener.serve(Pages {
                driver: checked.driver.clone(),
                registration: endpoints.registration_status(),
                fatal: is_fatal,
                runtime: RuntimeProbe::new(tokio::runtime::Handle::current()),
                metrics: metrics.clone(),
                publishing: publisher.overview(),
                status: lines,
            })
        });
        let http = http.transpose().map_err(|error| StartError::Http(error.into()))?;
        let running = Running {
            endpoints,
            http,
            health,
            status,
            publisher,
            fatal,
            drain: self.drain,
            orphan_grace: self.orphan_grace,
            background,
            metrics,
        };
        Ok(Helper::new(running, service, recovered))
    }

    /// What was set, as far as it can be right or wrong by itself.
    fn check(&self) -> Result<Checked, StartError> {
        let driver = DriverName::new(self.driver.as_str()).map_err(StartError::DriverName)?;
        if self.metadata
            && let Err(source) = Vendor::try_from(&driver)
        {
            return Err(StartError::CdiVendor { driver, source: source.into() });
        }
        if self.metadata && self.layouts.is_empty() {
            return Err(StartError::NoLayout);
        }
        SupportedServices::new(self.services).map_err(|error| StartError::NoService(error.into()))?;
        let versions = Versions::new(self.versions.iter().copied()).map_err(StartError::Versions)?;
        let pod_uid = self.pod_uid.as_deref().map(PodUid::new).transpose();
        let kubelet_plugins = self.kubelet_root.join("plugins");
        let plugin_directory = self.plugin_directory.clone().unwrap_or_else(|| kubelet_plugins.join(driver.as_str()));
        Ok(Checked {
            pod_uid: pod_uid.map_err(|error| StartError::PodUid(error.into()))?,
            registry_directory: self
                .registry_directory
                .clone()
                .unwrap_or_else(|| self.kubelet_root.join("plugins_registry")),
            lock_file: self.lock_directory.as_ref().unwrap_or(&plugin_directory).join(crate::lock::FILE),
            is_registered_here: self.register,
            is_served_here: self.serve_dra,
            store: Settings {
                driver: driver.clone(),
                plugin_directory,
                cdi_directory: self.cdi_directory.clone(),
                versions,
                layouts: self.layouts.clone(),
                boot: String::new(),
            },
            driver,
        })
    }
}

/// What is told of trouble in the background.
pub(crate) type Background = Arc<dyn Fn(BackgroundError) + Send + Sync>;

/// What was set, and is right by itself.
struct Checked {
    driver: DriverName,
    pod_uid: Option<PodUid>,
    registry_directory: PathBuf,
    is_registered_here: bool,
    is_served_here: bool,
    lock_file: PathBuf,
    store: Settings,
}

impl Checked {
    /// Looks at the directories, and opens what is on disk.
    async fn open(&self) -> Result<(Arc<Store<SystemFiles>>, Locks, Medium), StartError> {
        let mut settings = self.store.clone();
        let registry = self.is_registered_here.then(|| self.registry_directory.clone());
        let lock_file = self.pod_uid.is_some().then(|| self.lock_file.clone());
        let dra_socket = match (self.is_served_here, &self.pod_uid) {
            (true, None) => {
                let path = dra_socket(&settings.plugin_directory, None);
                Some(path.map_err(|error| StartError::Endpoints(error.into()))?)
            }
            _ => None,
        };
        let opened = tokio::task::spawn_blocking(move || {
            if let Some(registry) = registry {
                directory(&registry).map_err(|source| StartError::Directory {
                    what: "the kubelet's registry directory",
                    path: registry,
                    source,
                    remedy: "is --kubelet-root-dir the kubelet's directory, and mounted into the driver's container \
                             under the same path?",
                })?;
            }
            let unusable = |source| StartError::Directory {
                what: "the driver's directory",
                path: settings.plugin_directory.clone(),
                source,
                remedy: "mount it into the driver's container under the path that it has on the host",
            };
            make_directories(&settings.plugin_directory, PLUGIN_DIRECTORY_MODE).map_err(unusable)?;
            settings.boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .map(|id| id.trim().to_owned())
                .map_err(|source| StartError::Directory {
                what: "the boot id",
                path: "/proc/sys/kernel/random/boot_id".into(),
                source,
                remedy: "mount /proc",
            })?;
            if let Some(socket) = dra_socket {
                // What is on disk is about to be brought in order, which nobody may be working on.
                ensure_not_live(&socket).map_err(|error| StartError::Endpoints(error.into()))?;
            }
            let locks = match lock_file {
                Some(path) => Locks::shared(&path).map_err(|error| StartError::Lock(error.into()))?,
                None => Locks::in_process(),
            };
            let medium = Medium::of([settings.plugin_directory.as_path(), &settings.cdi_directory]);
            let path = settings.plugin_directory.clone();
            let store = Store::open(SystemFiles, settings).map_err(|error| StartError::Directory {
                what: "the driver's directory",
                path,
                source: io::Error::other(error),
                remedy: "mount it into the driver's container under the path that it has on the host",
            })?;
            Ok((Arc::new(store), locks, medium))
        });
        opened.await.map_err(StartError::Task)?
    }
}

fn directory(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Brings in order what earlier processes left, and tells which claims are prepared.
///
/// Nothing that is found keeps the driver from starting: what cannot be brought in order is reported.
async fn recover(
    store: &Arc<Store<SystemFiles>>,
    locks: &Locks,
    metrics: &Metrics,
    background: &Background,
) -> Result<Vec<RecoveredClaim>, StartError> {
    const WHAT: &str = "bring in order what an earlier instance left";
    let guard = match timeout(RECOVERY_PATIENCE, locks.everything()).await {
        Ok(Ok(guard)) => guard,
        Ok(Err(error)) => return Err(StartError::Lock(error.into())),
        Err(_) => {
            let error = "another instance has been busy all the time; the next start does it";
            background(BackgroundError::recoverable(WHAT, error));
            return Ok(Vec::new());
        }
    };
    let store = store.clone();
    let recovery = tokio::task::spawn_blocking(move || {
        let recovery = store.recover();
        drop(guard);
        recovery
    });
    let recovery = recovery.await.map_err(StartError::Task)?;
    metrics.recovered(recovery.claims.len(), recovery.problems.len(), 0);
    for problem in recovery.problems {
        background(BackgroundError::recoverable(WHAT, problem));
    }
    Ok(recovery.claims)
}

/// The health of devices, if the driver watches it.
fn hub<P: DraPlugin>(plugin: &Arc<P>, background: &Background) -> Result<Option<Arc<HealthHub>>, StartError> {
    let probed =
        std::panic::catch_unwind(AssertUnwindSafe(|| plugin.watch_health(HealthReporter::to_nobody()).is_some()));
    if !probed.map_err(|panic| StartError::Health(Panicked::from(&*panic).into()))? {
        return Ok(None);
    }
    let (plugin, background) = (plugin.clone(), background.clone());
    let monitor = move |reports: HealthReporter| {
        let plugin = plugin.clone();
        async move {
            match plugin.watch_health(reports) {
                Some(watch) => watch.await,
                None => Ok(()),
            }
        }
        .boxed()
    };
    Ok(Some(Arc::new(HealthHub::new(monitor, move |error| background(error)))))
}

fn routes<P: DraPlugin>(service: &Arc<Service<P>>, health: Option<&Arc<HealthHub>>, on: Services) -> Routes {
    let mut routes = Routes::default();
    if on.v1 {
        routes = routes.add_service(DraV1Server::new(DraV1(service.clone())));
    }
    if on.v1beta1 {
        routes = routes.add_service(DraV1beta1Server::new(DraV1beta1(service.clone())));
    }
    if let Some(hub) = health.filter(|_| on.health_v1) {
        routes = routes.add_service(HealthV1Server::new(HealthV1(hub.clone())));
    }
    if let Some(hub) = health.filter(|_| on.health_v1alpha1) {
        routes = routes.add_service(HealthV1alpha1Server::new(HealthV1alpha1(hub.clone())));
    }
    routes
}

/// What does not change while the driver runs, for people to look at.
fn status_lines(
    checked: &Checked,
    endpoints: &EndpointSettings,
    node: Option<&str>,
    metadata: bool,
) -> Vec<(String, String)> {
    let layouts: Vec<String> = checked.store.layouts.iter().map(ToString::to_string).collect();
    let metadata = match metadata {
        true => format!("on ({}; {})", checked.store.versions, layouts.join(",")),
        false => "off".to_owned(),
    };
    let lines = [
        ("Driver", checked.driver.to_string()),
        ("Node", node.unwrap_or("not given").to_owned()),
        ("Services", endpoints.services.names().join(", ")),
        ("Device metadata", metadata),
        ("Plugin directory", checked.store.plugin_directory.display().to_string()),
        ("Registry directory", checked.registry_directory.display().to_string()),
        ("CDI directory", checked.store.cdi_directory.display().to_string()),
        ("Rolling update", checked.pod_uid.as_ref().map_or_else(|| "off".to_owned(), |uid| format!("as pod {uid}"))),
    ];
    lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
