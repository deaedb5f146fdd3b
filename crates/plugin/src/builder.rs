//! The configuration of a driver, in groups.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::NodeEnvironment;
use drakkar_metadata::path::Layout;
use drakkar_metadata::{Version, Versions};

use crate::http_endpoint::HttpDetails;
use crate::registration::Services;
use crate::server::Interceptor;

/// The kubelet's directory by default.
pub const DEFAULT_KUBELET_ROOT: &str = "/var/lib/kubelet";
/// The directory from which container runtimes read CDI specs that come and go.
pub const DEFAULT_CDI_DIRECTORY: &str = "/var/run/cdi";
/// A kubelet gives a call 45 s, and a pod has 30 s to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Ten times the minute in which a kubelet looks for claims to unprepare.
const ORPHAN_GRACE: Duration = Duration::from_secs(600);
/// Kubelets give a call 45 s.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// The claim is fetched again after the wait for its devices, which may take 30 s of the kubelet's 45.
const MAX_DEVICE_TIMEOUT: Duration = Duration::from_secs(15);
/// A control plane that is upgraded is away for minutes.
const STATUS_TIMEOUT: Duration = Duration::from_secs(600);
/// The number of claims of a call for which a driver that is not serialized is called at once.
const CONCURRENCY: usize = 16;

/// What containers see of a request for which the driver returned no devices, until its first update.
///
/// A request with a gate is also one for which the driver returned devices without metadata: containers get their CDI devices,
/// and are not created before the first update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeferredMetadata {
    /// An empty file.
    #[default]
    Placeholder,
    /// Nothing: no container that references the request can be created before the first update.
    Gate,
}

/// The configuration of a driver, and its start.
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
    pub(crate) driver: String,
    pub(crate) version: Option<String>,
    pub(crate) client: Option<kube::Client>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) node_name: Option<String>,
    pub(crate) node_uid: Option<String>,
    pub(crate) only_pool: Option<String>,
    pub(crate) publish_within: Duration,
    pub(crate) metadata_from_published: bool,
    pub(crate) pod_uid: Option<String>,
    pub(crate) kubelet_root: PathBuf,
    pub(crate) registry_directory: Option<PathBuf>,
    pub(crate) plugin_directory: Option<PathBuf>,
    pub(crate) lock_directory: Option<PathBuf>,
    pub(crate) cdi_directory: PathBuf,
    pub(crate) metadata: bool,
    pub(crate) versions: Vec<Version>,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) deferred: DeferredMetadata,
    pub(crate) serialize: bool,
    pub(crate) concurrency: usize,
    pub(crate) guard: bool,
    pub(crate) device_timeout: Duration,
    pub(crate) services: Services,
    pub(crate) drain_timeout: Duration,
    pub(crate) orphan_grace: Duration,
    pub(crate) status_timeout: Duration,
    pub(crate) http_endpoint: Option<SocketAddr>,
    pub(crate) http_details: HttpDetails,
    /// The flags of the command line that the framework does not know, for `/flagz`.
    pub(crate) shown_flags: BTreeMap<String, String>,
    pub(crate) interceptor: Option<Interceptor>,
    pub(crate) registration_interceptor: Option<Interceptor>,
}

impl std::fmt::Debug for PluginBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginBuilder").field("driver", &self.driver).finish_non_exhaustive()
    }
}

impl PluginBuilder {
    /// Configures a driver of this name: a domain name that its vendor owns, such as `gpu.example.com`. It is checked at the
    /// start.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            version: None,
            client: None,
            kubeconfig: None,
            node_name: None,
            node_uid: None,
            only_pool: None,
            publish_within: Duration::ZERO,
            metadata_from_published: false,
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
            device_timeout: DEVICE_TIMEOUT,
            services: Services::default(),
            drain_timeout: DRAIN_TIMEOUT,
            orphan_grace: ORPHAN_GRACE,
            status_timeout: STATUS_TIMEOUT,
            http_endpoint: None,
            http_details: HttpDetails::default(),
            shown_flags: BTreeMap::new(),
            interceptor: None,
            registration_interceptor: None,
        }
    }

    /// Takes over everything that an operator can set on the command line, defaults included: call it before what the driver
    /// itself insists on.
    #[cfg(feature = "clap")]
    pub fn flags(mut self, flags: &crate::Flags) -> Self {
        let flags = flags.clone();
        self.metadata = flags.enable_device_metadata;
        self.versions = flags.metadata_versions;
        self.layouts = flags.metadata_layout;
        self.kubelet_root = flags.kubelet_root_dir;
        self.cdi_directory = flags.cdi_dir;
        self.node_name = flags.node_name.filter(|name| !name.is_empty());
        self.node_uid = flags.node_uid.filter(|uid| !uid.is_empty());
        self.pod_uid = flags.pod_uid.filter(|uid| !uid.is_empty());
        self.http_endpoint = flags.http_endpoint;
        self.http_details = flags.http_details;
        #[cfg(feature = "logging")]
        self.shown_flags.extend(flags.log.values());
        self.version = flags.version.map(str::to_owned).or(self.version);
        self.kubeconfig = flags.kubeconfig.filter(|path| !path.as_os_str().is_empty());
        self
    }

    /// Sets the driver's own version, usually `env!("CARGO_PKG_VERSION")`: it is in the log, in `/statusz` and in the metric
    /// `drakkar_plugin_build_info`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }
}

/// # Where the driver runs
impl PluginBuilder {
    /// Sets client, node and directories at once: those of an embedded node, for example.
    pub fn on(mut self, node: NodeEnvironment) -> Self {
        self.client = Some(node.client);
        self.node_name = Some(node.node_name);
        self.kubelet_root = node.kubelet_root;
        self.cdi_directory = node.cdi_directory;
        self
    }

    /// Sets the client of the API server. By default it is made from the pod's service account or the user's kubeconfig.
    ///
    /// The framework retries by itself, at different times on every node, so the client should not: turn off `default_retry` in
    /// its `kube::Config`, as the default client does. The default client also probes idle connections (TCP keep-alive), so that
    /// a dead watch is noticed within half a minute and not two.
    pub fn client(mut self, client: kube::Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets the kubeconfig from which the default client is made: a file, or a list of files as in the variable `KUBECONFIG`.
    pub fn kubeconfig(mut self, file: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(file.into());
        self
    }

    /// Sets the name of the node that the driver runs on.
    pub fn node_name(mut self, node: impl Into<String>) -> Self {
        self.node_name = Some(node.into());
        self
    }

    /// Sets the UID of that node, which owns the published slices. Without it the driver looks it up, and its service account
    /// must be allowed to get nodes.
    pub fn node_uid(mut self, uid: impl Into<String>) -> Self {
        self.node_uid = Some(uid.into());
        self
    }

    /// Enables rolling updates: a new instance of the driver runs beside the old one for a while. Each has sockets of its own,
    /// named after its pod, and a lock file keeps them from working on the same claim. Needs a kubelet of 1.33 or newer.
    pub fn rolling_update(mut self, pod_uid: impl Into<String>) -> Self {
        self.pod_uid = Some(pod_uid.into());
        self
    }

    /// Sets the kubelet's directory; [`DEFAULT_KUBELET_ROOT`] by default.
    pub fn kubelet_root(mut self, directory: impl Into<PathBuf>) -> Self {
        self.kubelet_root = directory.into();
        self
    }

    /// Sets the directory in which the kubelet looks for plugins; `plugins_registry` in the kubelet's directory by default. It
    /// must exist.
    pub fn registry_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.registry_directory = Some(directory.into());
        self
    }

    /// Sets the driver's own directory; `plugins/DRIVER` in the kubelet's directory by default. It is created if missing, and
    /// must have the same path in the driver's container and on the host.
    pub fn plugin_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.plugin_directory = Some(directory.into());
        self
    }

    /// Sets the directory of the lock file for rolling updates; the driver's own directory by default.
    pub fn lock_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.lock_directory = Some(directory.into());
        self
    }

    /// Sets the directory from which the container runtime reads CDI specs; [`DEFAULT_CDI_DIRECTORY`] by default. With
    /// device metadata a start makes it if it is missing, and fails if it is not writable.
    pub fn cdi_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cdi_directory = directory.into();
        self
    }
}

/// # Device metadata (KEP-5304)
impl PluginBuilder {
    /// Writes a metadata file for each request of a claim, and mounts it into the containers that reference the request. Off by
    /// default: then nothing is written, and what was written while it was on is still removed at unprepare.
    pub fn device_metadata(mut self, on: bool) -> Self {
        self.metadata = on;
        self
    }

    /// Sets the versions in which each file is written, in this order; by default v1alpha1 alone, which every reader
    /// understands.
    pub fn metadata_versions(mut self, versions: impl IntoIterator<Item = Version>) -> Self {
        self.versions = versions.into_iter().collect();
        self
    }

    /// Sets the paths under which containers see a file; by default both layouts.
    pub fn metadata_layout(mut self, layouts: impl IntoIterator<Item = Layout>) -> Self {
        self.layouts = layouts.into_iter().collect();
        self
    }

    /// Sets what containers see of a request for which the driver returned no devices, until its first update.
    pub fn deferred_metadata(mut self, deferred: DeferredMetadata) -> Self {
        self.deferred = deferred;
        self
    }

    /// Gives a prepared device without metadata the attributes that the driver has published of it. Off by default. A prepare
    /// waits for the first publishing.
    pub fn metadata_from_published(mut self, on: bool) -> Self {
        self.metadata_from_published = on;
        self
    }
}

/// # Publishing
impl PluginBuilder {
    /// Publishes this pool alone, for other nodes too: its slices do not name the driver's node, but belong to it and are
    /// deleted with it. The pool selects its nodes with [`crate::NodeSelection`]. Needs an admission policy that lets the driver
    /// write slices without a node's name.
    pub fn reconcile_pool_with_name(mut self, pool: impl Into<String>) -> Self {
        self.only_pool = Some(pool.into());
        self
    }

    /// Starts the first publishing of a process at a random moment within this time; at once by default, and at most after an
    /// hour. For clusters of thousands of nodes whose drivers may all start in the same second, after a power failure for
    /// example: `docs/SCALE.md`. [`Self::metadata_from_published`] does not wait for it.
    pub fn publish_within(mut self, time: Duration) -> Self {
        self.publish_within = time.min(Duration::from_secs(3600));
        self
    }
}

/// # Calls of the driver
impl PluginBuilder {
    /// Calls the driver's prepare and unprepare one at a time. On by default. File work and API requests of the framework are
    /// done for many claims at once in any case.
    pub fn serialize(mut self, on: bool) -> Self {
        self.serialize = on;
        self
    }

    /// Sets the number of claims of one kubelet call for which a driver that is not serialized is called at once; 16 by default.
    pub fn concurrency(mut self, claims: usize) -> Self {
        self.concurrency = claims;
        self
    }

    /// Refuses a claim while another claim has one of its devices. On by default. Devices with admin access and different
    /// shares of a device do not conflict. The claim is refused after [a timeout](Self::device_timeout), unless the other
    /// claim is gone from the API server or has other devices there: then the other claim is unprepared.
    pub fn double_allocation_guard(mut self, on: bool) -> Self {
        self.guard = on;
        self
    }
}

/// # Timeouts
impl PluginBuilder {
    /// Sets how long a prepare waits for the kubelet to unprepare a claim that still has one of its devices; 10 s by default,
    /// and at most 15.
    ///
    /// A pod that is removed by force is gone for the scheduler a moment before this node has unprepared its claim. Kubelets
    /// wait 45 s for an answer, and retry a refused claim after a minute or more.
    pub fn device_timeout(mut self, timeout: Duration) -> Self {
        self.device_timeout = timeout.min(MAX_DEVICE_TIMEOUT);
        self
    }

    /// Sets how long calls in flight have to finish when the driver stops; 20 s by default.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets how long a report of a device's status is retried while the API server does not take it; 10 minutes by default.
    /// Then it is dropped, and the driver gets the error.
    pub fn status_timeout(mut self, timeout: Duration) -> Self {
        self.status_timeout = timeout;
        self
    }

    /// Sets how long the kubelet has, after the start, to unprepare a claim of an earlier process that is gone from the API
    /// server; 10 minutes by default, and up to half of it more (jitter, since all drivers of a cluster may have started at
    /// once). Then the driver unprepares it, which removes its files and frees its devices. Claims that were prepared before
    /// the machine was last booted have no containers, and are unprepared at once.
    pub fn orphan_grace(mut self, grace: Duration) -> Self {
        self.orphan_grace = grace;
        self
    }
}

/// # Services
impl PluginBuilder {
    /// Sets the services that this process serves to the kubelet; all by default.
    pub fn services(mut self, services: Services) -> Self {
        self.services = services;
        self
    }

    /// Sets the address at which metrics and the state of the driver are served by HTTP; nowhere by default.
    pub fn http_endpoint(mut self, address: SocketAddr) -> Self {
        self.http_endpoint = Some(address);
        self
    }

    /// Sets who may see the pages of the HTTP endpoint that name claims, pods, devices and settings; clients on the same machine
    /// or in the same pod by default.
    pub fn http_details(mut self, details: HttpDetails) -> Self {
        self.http_details = details;
        self
    }

    /// Calls a function with the gRPC method and headers of every call on the DRA socket before it is served. An error is
    /// answered instead.
    pub fn interceptor(
        mut self,
        interceptor: impl Fn(&str, &http::HeaderMap) -> Result<(), tonic::Status> + Send + Sync + 'static,
    ) -> Self {
        self.interceptor = Some(Arc::new(interceptor));
        self
    }

    /// Calls a function with the gRPC method and headers of every call on the registration socket before it is served. An error
    /// is answered instead: for tests of a kubelet whose registration fails.
    pub fn registration_interceptor(
        mut self,
        interceptor: impl Fn(&str, &http::HeaderMap) -> Result<(), tonic::Status> + Send + Sync + 'static,
    ) -> Self {
        self.registration_interceptor = Some(Arc::new(interceptor));
        self
    }
}
