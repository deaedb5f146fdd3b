//! Starting a driver: what can be set, what is checked, and the order in which things come up.
//!
//! 1. Everything that was set is checked: names, directories, versions. What is wrong is told with what to change.
//! 2. What earlier processes left on disk is brought in order, before anybody can ask for anything.
//! 3. The HTTP endpoint's address is taken, then the DRA server and last the registration server come up: a kubelet that
//!    sees the latter calls at once.
//! 4. In the background, claims that are on disk but gone from the API server are removed, when the kubelet has had time to
//!    unprepare them.
//!
//! If a step fails, what came up before goes with it.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_cdi::Vendor;
use drakkar_metadata::name::{DriverName, NameError};
use drakkar_metadata::path::Layout;
use drakkar_metadata::{Version, VersionError, Versions};
use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::service::Routes;

use crate::claims::ClaimSource;
use crate::driver::{BackgroundError, BoxError, DraPlugin, Panicked};
use crate::health::{HealthHub, HealthReporter, HealthV1, HealthV1alpha1};
use crate::helper::{Helper, Running};
use crate::holders::Holders;
use crate::http_endpoint::{HttpListener, Pages};
use crate::lock::Locks;
use crate::metrics::{Metrics, Severity};
use crate::proto::dra_v1::dra_plugin_server::DraPluginServer as DraV1Server;
use crate::proto::dra_v1beta1::dra_plugin_server::DraPluginServer as DraV1beta1Server;
use crate::proto::health_v1::dra_resource_health_server::DraResourceHealthServer as HealthV1Server;
use crate::proto::health_v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1Server;
use crate::registration::{Services, SupportedServices};
use crate::server::{EndpointSettings, Endpoints, Interceptor, Watch};
use crate::service::wire::{DraV1, DraV1beta1};
use crate::service::{Service, ServiceSettings, chain};
use crate::socket::PodUid;
use crate::store::{Delivery, RecoveredClaim, Settings, Store, SystemFiles};

/// The kubelet's directory, unless it was told otherwise.
pub const DEFAULT_KUBELET_ROOT: &str = "/var/lib/kubelet";
/// Where container runtimes look for CDI specs that come and go.
pub const DEFAULT_CDI_DIRECTORY: &str = "/var/run/cdi";
/// How long a start waits for another instance to finish what it does, before it leaves the disk as it is.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(10);
/// How long calls in flight have to finish when the driver stops. A kubelet gives a call 45 s, a pod has 30 s to end.
const DRAIN: Duration = Duration::from_secs(20);
/// How long the kubelet has to unprepare a claim that the API server has no more, before it is taken to have forgotten it.
/// It looks for such claims every minute.
const ORPHAN_GRACE: Duration = Duration::from_secs(600);
/// How many claims of a batch a driver that is not serialized is called for at once.
const CONCURRENCY: usize = 16;

/// What containers see of a request for which the driver returned no devices, until its first update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeferredMetadata {
    /// An empty file.
    #[default]
    Placeholder,
    /// Nothing: no container that references the request can be created before the first update.
    Gate,
}

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

/// A driver that is about to start.
///
/// ```no_run
/// # use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, PluginBuilder};
/// # struct Driver;
/// # impl DraPlugin for Driver {
/// #     async fn prepare(&self, _: &Claim) -> Result<Vec<Device>, BoxError> { Ok(vec![]) }
/// #     async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> { Ok(()) }
/// # }
/// # async fn run() -> Result<(), BoxError> {
/// let helper = PluginBuilder::new("gpu.example.com").device_metadata(true).start(Driver).await?;
/// helper.run_until_signal().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a driver does nothing before it is started"]
pub struct PluginBuilder {
    driver: String,
    client: Option<kube::Client>,
    node_name: Option<String>,
    pod_uid: Option<String>,
    kubelet_root: PathBuf,
    registry_directory: Option<PathBuf>,
    plugin_directory: Option<PathBuf>,
    lock_directory: Option<PathBuf>,
    cdi_directory: PathBuf,
    metadata: bool,
    versions: Vec<Version>,
    layouts: Vec<Layout>,
    deferred: DeferredMetadata,
    serialize: bool,
    concurrency: usize,
    guard: bool,
    services: Services,
    serve_dra: bool,
    register: bool,
    drain: Duration,
    orphan_grace: Duration,
    http_endpoint: Option<SocketAddr>,
    interceptor: Option<Interceptor>,
    registration_interceptor: Option<Interceptor>,
}

impl std::fmt::Debug for PluginBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginBuilder").field("driver", &self.driver).finish_non_exhaustive()
    }
}

impl PluginBuilder {
    /// A driver of this name: a domain name that its vendor owns, such as `gpu.example.com`. It is checked at the start.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            client: None,
            node_name: None,
            pod_uid: None,
            kubelet_root: DEFAULT_KUBELET_ROOT.into(),
            registry_directory: None,
            plugin_directory: None,
            lock_directory: None,
            cdi_directory: DEFAULT_CDI_DIRECTORY.into(),
            metadata: false,
            versions: Versions::default().as_slice().to_vec(),
            layouts: vec![Layout::Kep, Layout::Kubernetes],
            deferred: DeferredMetadata::default(),
            serialize: true,
            concurrency: CONCURRENCY,
            guard: true,
            services: Services { v1: true, v1beta1: true, health_v1: true, health_v1alpha1: true },
            serve_dra: true,
            register: true,
            drain: DRAIN,
            orphan_grace: ORPHAN_GRACE,
            http_endpoint: None,
            interceptor: None,
            registration_interceptor: None,
        }
    }

    /// Takes over what an operator has set on the command line, also where that is a default: to be called before what the
    /// driver itself insists on.
    #[cfg(feature = "clap")]
    pub fn flags(mut self, flags: &crate::Flags) -> Self {
        let flags = flags.clone();
        self.metadata = flags.enable_device_metadata;
        self.versions = flags.metadata_versions;
        self.layouts = flags.metadata_layout;
        self.kubelet_root = flags.kubelet_root_dir;
        self.cdi_directory = flags.cdi_dir;
        self.node_name = flags.node_name;
        self.pod_uid = flags.pod_uid;
        self.http_endpoint = flags.http_endpoint;
        self
    }

    /// How to reach the API server. By default as in the pod's service account or the user's kubeconfig.
    pub fn client(mut self, client: kube::Client) -> Self {
        self.client = Some(client);
        self
    }

    /// The node that the driver runs on.
    pub fn node_name(mut self, node: impl Into<String>) -> Self {
        self.node_name = Some(node.into());
        self
    }

    /// Lets a new instance of the driver come up beside the old one: both have sockets of their own, named after the pod
    /// that they run in, and take turns by a file lock. Needs a kubelet of 1.33 or newer.
    pub fn rolling_update(mut self, pod_uid: impl Into<String>) -> Self {
        self.pod_uid = Some(pod_uid.into());
        self
    }

    /// The kubelet's directory; [`DEFAULT_KUBELET_ROOT`] by default.
    pub fn kubelet_root(mut self, directory: impl Into<PathBuf>) -> Self {
        self.kubelet_root = directory.into();
        self
    }

    /// Where the kubelet looks for plugins; `plugins_registry` in the kubelet's directory by default. Must exist.
    pub fn registry_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.registry_directory = Some(directory.into());
        self
    }

    /// The driver's own directory; `plugins/DRIVER` in the kubelet's directory by default. Made if it is not there.
    /// It must have the same path in the driver's container and on the host.
    pub fn plugin_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.plugin_directory = Some(directory.into());
        self
    }

    /// Where the lock file for rolling updates is; the driver's own directory by default.
    pub fn lock_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.lock_directory = Some(directory.into());
        self
    }

    /// Where the container runtime looks for CDI specs; [`DEFAULT_CDI_DIRECTORY`] by default. Made when it is needed.
    pub fn cdi_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cdi_directory = directory.into();
        self
    }

    /// Whether containers are told what devices they got (KEP-5304). Off by default: then no file is written, but what
    /// was written while it was on is still looked after and removed.
    pub fn device_metadata(mut self, on: bool) -> Self {
        self.metadata = on;
        self
    }

    /// The versions that each metadata file is written in, in this order; v1alpha1 by default, which everybody reads.
    pub fn metadata_versions(mut self, versions: impl IntoIterator<Item = Version>) -> Self {
        self.versions = versions.into_iter().collect();
        self
    }

    /// The paths under which containers see a metadata file; by default both that there are.
    pub fn metadata_layout(mut self, layouts: impl IntoIterator<Item = Layout>) -> Self {
        self.layouts = layouts.into_iter().collect();
        self
    }

    /// What containers see of a request for which the driver returned no devices, until its first update.
    pub fn deferred_metadata(mut self, deferred: DeferredMetadata) -> Self {
        self.deferred = deferred;
        self
    }

    /// Whether the driver's prepare and unprepare are called one at a time. On by default. File work and API requests of
    /// the framework are done for many claims at once in any case.
    pub fn serialize(mut self, on: bool) -> Self {
        self.serialize = on;
        self
    }

    /// For how many claims of one call of the kubelet a driver that is not serialized is called at once; 16 by default.
    pub fn concurrency(mut self, claims: usize) -> Self {
        self.concurrency = claims;
        self
    }

    /// Whether a claim is refused while another claim is still prepared with one of its devices. On by default; devices
    /// with admin access and different shares of a device do not count.
    pub fn double_allocation_guard(mut self, on: bool) -> Self {
        self.guard = on;
        self
    }

    /// Whether to serve DRA v1 (kubelets from 1.34 on). On by default.
    pub fn dra_v1(mut self, on: bool) -> Self {
        self.services.v1 = on;
        self
    }

    /// Whether to serve DRA v1beta1 (kubelets from 1.32 on). On by default.
    pub fn dra_v1beta1(mut self, on: bool) -> Self {
        self.services.v1beta1 = on;
        self
    }

    /// Whether to serve health v1 (kubelets from 1.37 on), if the driver has health. On by default.
    pub fn health_v1(mut self, on: bool) -> Self {
        self.services.health_v1 = on;
        self
    }

    /// Whether to serve health v1alpha1 (kubelets up to 1.36), if the driver has health. On by default.
    pub fn health_v1alpha1(mut self, on: bool) -> Self {
        self.services.health_v1alpha1 = on;
        self
    }

    /// Whether to serve the DRA socket. On by default; off where another process does.
    pub fn dra_service(mut self, on: bool) -> Self {
        self.serve_dra = on;
        self
    }

    /// Whether to register with the kubelet. On by default; off where another process does.
    pub fn registration_service(mut self, on: bool) -> Self {
        self.register = on;
        self
    }

    /// How long calls in flight have to finish when the driver stops; 20 s by default.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// How long the kubelet has, after the start, to unprepare a claim that was prepared earlier and is gone from the API
    /// server since. Then what is left of it is removed, and its devices are free. 10 minutes by default; claims that were
    /// prepared before the machine was last booted have no containers, and do not wait.
    pub fn orphan_grace(mut self, grace: Duration) -> Self {
        self.orphan_grace = grace;
        self
    }

    /// Where to serve metrics and the state of the driver by HTTP. Nowhere by default.
    pub fn http_endpoint(mut self, address: SocketAddr) -> Self {
        self.http_endpoint = Some(address);
        self
    }

    /// Lets a function look at the gRPC method and headers of every call on the DRA socket before it is served, and refuse it.
    pub fn interceptor(
        mut self,
        interceptor: impl Fn(&str, &http::HeaderMap) -> Result<(), tonic::Status> + Send + Sync + 'static,
    ) -> Self {
        self.interceptor = Some(Arc::new(interceptor));
        self
    }

    /// The same, for the registration socket.
    pub fn registration_interceptor(
        mut self,
        interceptor: impl Fn(&str, &http::HeaderMap) -> Result<(), tonic::Status> + Send + Sync + 'static,
    ) -> Self {
        self.registration_interceptor = Some(Arc::new(interceptor));
        self
    }

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
        let (store, locks) = checked.open().await?;
        let client = match self.client {
            Some(client) => client,
            None => kube::Client::try_default().await.map_err(|error| StartError::Client(Box::new(error)))?,
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

        let holders = Arc::new(Holders::default());
        let recovered = recover(&store, &locks, &metrics, &background).await?;
        for found in &recovered {
            holders.restore(&found.claim, &found.uses);
        }
        metrics.set_prepared_claims(holders.len());

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
        };
        let claims = ClaimSource::new(client, checked.driver.clone(), metrics.clone());
        let service = Arc::new(Service::new(plugin.clone(), settings, claims, holders, locks, store, metrics.clone()));
        let health = hub(&plugin, &background)?;
        if let Some(health) = &health {
            let health = Arc::downgrade(health);
            metrics.ask_for_health(move || health.upgrade().map(|health| health.summary()).unwrap_or_default());
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
            dra_watch: Watch { metrics: metrics.clone(), interceptor: self.interceptor },
            registration_watch: Watch { metrics: metrics.clone(), interceptor: self.registration_interceptor },
        };
        let status = status_lines(&checked, &settings, self.node_name.as_deref(), self.metadata);
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
                metrics: metrics.clone(),
                status,
            })
        });
        let running = Running {
            endpoints,
            http,
            health,
            fatal,
            drain: self.drain,
            orphan_grace: self.orphan_grace,
            has_peers: checked.pod_uid.is_some(),
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
    lock_file: PathBuf,
    store: Settings,
}

impl Checked {
    /// Looks at the directories, and opens what is on disk.
    async fn open(&self) -> Result<(Arc<Store<SystemFiles>>, Locks), StartError> {
        let mut settings = self.store.clone();
        let registry = self.is_registered_here.then(|| self.registry_directory.clone());
        let lock_file = self.pod_uid.is_some().then(|| self.lock_file.clone());
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
            std::fs::create_dir_all(&settings.plugin_directory).map_err(unusable)?;
            settings.boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .map(|id| id.trim().to_owned())
                .map_err(|source| StartError::Directory {
                what: "the boot id",
                path: "/proc/sys/kernel/random/boot_id".into(),
                source,
                remedy: "mount /proc",
            })?;
            let locks = match lock_file {
                Some(path) => Locks::shared(&path).map_err(|error| StartError::Lock(error.into()))?,
                None => Locks::in_process(),
            };
            let path = settings.plugin_directory.clone();
            let store = Store::open(SystemFiles, settings).map_err(|error| StartError::Directory {
                what: "the driver's directory",
                path,
                source: io::Error::other(error),
                remedy: "mount it into the driver's container under the path that it has on the host",
            })?;
            Ok((Arc::new(store), locks))
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
