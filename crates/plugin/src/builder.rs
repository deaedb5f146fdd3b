//! What can be set before a driver is started.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::NodeEnvironment;
use drakkar_metadata::path::Layout;
use drakkar_metadata::{Version, Versions};

use crate::registration::Services;
use crate::server::Interceptor;

/// The kubelet's directory, unless it was told otherwise.
pub const DEFAULT_KUBELET_ROOT: &str = "/var/lib/kubelet";
/// Where container runtimes look for CDI specs that come and go.
pub const DEFAULT_CDI_DIRECTORY: &str = "/var/run/cdi";
/// How long calls in flight have to finish when the driver stops. A kubelet gives a call 45 s, a pod has 30 s to end.
const DRAIN: Duration = Duration::from_secs(20);
/// How long the kubelet has to unprepare a claim that the API server has no more, before it is taken to have forgotten it.
/// It looks for such claims every minute.
const ORPHAN_GRACE: Duration = Duration::from_secs(600);
/// How long a prepare waits for a device that another claim still has. Kubelets give a call 45 s.
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);
/// It is not longer than this: the claim is fetched again after it, which may take 30 s.
const LONGEST_DEVICE_PATIENCE: Duration = Duration::from_secs(15);
/// How long the status of a device is tried to be reported. A control plane that is upgraded is away for minutes.
const STATUS_PATIENCE: Duration = Duration::from_secs(600);
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
    pub(crate) driver: String,
    pub(crate) client: Option<kube::Client>,
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
    pub(crate) device_patience: Duration,
    pub(crate) services: Services,
    pub(crate) serve_dra: bool,
    pub(crate) register: bool,
    pub(crate) drain: Duration,
    pub(crate) orphan_grace: Duration,
    pub(crate) status_patience: Duration,
    pub(crate) http_endpoint: Option<SocketAddr>,
    pub(crate) interceptor: Option<Interceptor>,
    pub(crate) registration_interceptor: Option<Interceptor>,
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
            device_patience: DEVICE_PATIENCE,
            services: Services { v1: true, v1beta1: true, health_v1: true, health_v1alpha1: true },
            serve_dra: true,
            register: true,
            drain: DRAIN,
            orphan_grace: ORPHAN_GRACE,
            status_patience: STATUS_PATIENCE,
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
        self.node_name = flags.node_name.filter(|name| !name.is_empty());
        self.node_uid = flags.node_uid.filter(|uid| !uid.is_empty());
        self.pod_uid = flags.pod_uid.filter(|uid| !uid.is_empty());
        self.http_endpoint = flags.http_endpoint;
        self
    }

    /// How to reach the API server. By default as in the pod's service account or the user's kubeconfig.
    ///
    /// The framework itself tries again what failed, and differently on every node. A client had better not do so too: turn off
    /// `default_retry` in its `kube::Config`, as the default client has it. The default client also has its connections probed
    /// by TCP, so that a watch whose other end is gone is noticed within half a minute, not two.
    pub fn client(mut self, client: kube::Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets client, node and directories at once: those of an embedded node, for example.
    pub fn on(mut self, node: NodeEnvironment) -> Self {
        self.client = Some(node.client);
        self.node_name = Some(node.node_name);
        self.kubelet_root = node.kubelet_root;
        self.cdi_directory = node.cdi_directory;
        self
    }

    /// The node that the driver runs on.
    pub fn node_name(mut self, node: impl Into<String>) -> Self {
        self.node_name = Some(node.into());
        self
    }

    /// The UID of that node, to which published slices belong. It is looked up if it is not given, for which the driver's
    /// service account must be allowed to get nodes.
    pub fn node_uid(mut self, uid: impl Into<String>) -> Self {
        self.node_uid = Some(uid.into());
        self
    }

    /// Publishes this pool alone, for other nodes too: its slices do not name the driver's node, though they belong to it and
    /// go with it. The pool says with [`crate::NodeSelection`] which nodes have its devices. Needs an admission policy that
    /// lets the driver write slices without a node's name.
    pub fn reconcile_pool_with_name(mut self, pool: impl Into<String>) -> Self {
        self.only_pool = Some(pool.into());
        self
    }

    /// Lets the first publishing of a process begin some time within so long, by chance; at once by default. For clusters of
    /// thousands of nodes whose drivers may all start in the same second, after a power failure for example: `docs/SCALE.md`.
    /// At most an hour. [`Self::metadata_from_published`] does not wait for it.
    pub fn publish_within(mut self, time: Duration) -> Self {
        self.publish_within = time.min(Duration::from_secs(3600));
        self
    }

    /// Whether a prepared device for which the driver gives no metadata gets the attributes that the driver has published of
    /// it. Off by default. A prepare waits for the driver to publish for the first time.
    pub fn metadata_from_published(mut self, on: bool) -> Self {
        self.metadata_from_published = on;
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

    /// Whether a claim is refused while another claim has one of its devices. On by default; devices with admin access and
    /// different shares of a device do not count. It is refused after [a while](Self::device_patience), unless the other
    /// claim is gone from the API server or has other devices there: then that one is unprepared.
    pub fn double_allocation_guard(mut self, on: bool) -> Self {
        self.guard = on;
        self
    }

    /// How long a prepare waits for the kubelet to unprepare a claim that still has one of its devices; 10 s by default, and at most
    /// 15. A pod that is removed by force is gone for the scheduler before this node has unprepared its claim, which takes a
    /// moment more. Kubelets wait 45 s for an
    /// answer, and come back after a minute or more if a claim is refused.
    pub fn device_patience(mut self, patience: Duration) -> Self {
        self.device_patience = patience.min(LONGEST_DEVICE_PATIENCE);
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
    /// server since; by chance up to half as long again, since all drivers of a cluster may have started at once. Then the
    /// driver unprepares it, what is left of it is removed, and its devices are free. 10 minutes by default; claims that were
    /// prepared before the machine was last booted have no containers, and do not wait.
    pub fn orphan_grace(mut self, grace: Duration) -> Self {
        self.orphan_grace = grace;
        self
    }

    /// How long a report of a device's status is tried again while the API server cannot take it; 10 minutes by default. Then
    /// it is given up, and the driver is told.
    pub fn status_patience(mut self, patience: Duration) -> Self {
        self.status_patience = patience;
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
}
