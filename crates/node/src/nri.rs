//! The runtime's side of NRI, as containerd has it, with faults on demand: for tests of plugins in any language.
//!
//! A node with NRI ([`NodeBuilder::nri`](crate::NodeBuilder::nri)) runs each pod in a sandbox with a network namespace of its own, and announces
//! pods and containers to the plugins that connect to its [socket](Nri::socket), whose path drivers get in the environment
//! variable `NRI_SOCKET`. What plugins adjust is applied to containers.
//!
//! ```no_run
//! # async fn test() -> Result<(), Box<dyn std::error::Error>> {
//! use drakkar_node::nri::{self, Event, Fault};
//! use drakkar_node::{Container, Node, Pod};
//!
//! let node = Node::builder().nri(nri::Config::default()).start().await?;
//! let mut plugin = node.spawn("net.example.com", std::process::Command::new("./my-plugin"))?;
//! node.nri()?.wait_plugin("10-my-plugin").await?;
//!
//! // The plugin gets the next RunPodSandbox, but nobody gets its answer: the pod runs without it, and it must reconnect.
//! node.nri()?.inject(Event::RunPodSandbox, Fault::CutDuring);
//! let pod = node.create_pod(Pod::new("web").container(Container::new("main", ["sleep", "infinity"]))).await?;
//! pod.running().await?;
//! for entry in node.nri()?.log() {
//!     println!("{entry}");
//! }
//!
//! // The runtime restarts, and has forgotten which pods it announced: StopPodSandbox never comes.
//! node.nri()?.restart().await?;
//! node.nri()?.wait_plugin("10-my-plugin").await?;
//! pod.delete().await?;
//! # plugin.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Semantics, all of containerd: plugins connect one after the other, register within a timeout, get `Configure` and
//! `Synchronize` (in parts, if the message is long), and then events, one at a time for all plugins of the node, in the order of
//! their indices. A plugin that does not answer in time is disconnected, and the pod goes on without it; a plugin that answers
//! with an error fails the operation. A failed `RunPodSandbox` is undone with `StopPodSandbox` and `RemovePodSandbox`, and the
//! kubelet tries again with a new sandbox, after its usual delay. A plugin that breaks the wire format, even where only
//! containerd's own reader would stumble, or that subscribes to events which the version does not have, is disconnected.
//!
//! Adjustments of annotations, mounts, environment variables, devices, CDI devices, resource limits, the OOM score and the
//! command are applied, with an OCI runtime also hooks. All others fail the container, with an error that names them. Updates
//! of containers are [recorded](Nri::updates) and have no effect.

mod connection;
mod events;
mod faults;
mod log;
mod merge;
mod mux;
mod plugin;
mod service;
mod session;
mod version;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use drakkar_nri_api as api;
pub use drakkar_nri_api::v1alpha1::Event;

pub use self::faults::{Call, Fault};
pub use self::log::{Answer, Entry};
pub(crate) use self::merge::{Adjusted, Supported};
pub use self::plugin::RequestedUpdates;
pub(crate) use self::service::{Inventory, Service};
pub use self::version::Version;
use crate::runtime::PodRuntime;

/// The configuration of NRI on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The release of NRI; the newest by default.
    pub version: Version,
    /// How long a plugin may take to register after it has connected; 5 seconds by default.
    pub registration_timeout: Duration,
    /// How long a plugin may take to answer a call; 2 seconds by default.
    pub request_timeout: Duration,
    /// The most bytes of a `Synchronize` message; 4 MiB by default. A smaller one forces several parts.
    pub max_synchronize: usize,
    /// The networks of pods.
    pub pod_network: PodNetwork,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: Version::default(),
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            max_synchronize: mux::MAX_BODY,
            pod_network: PodNetwork::default(),
        }
    }
}

impl Config {
    /// Sets the release of NRI.
    #[must_use]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// Sets how long a plugin may take to register.
    #[must_use]
    pub fn registration_timeout(mut self, timeout: Duration) -> Self {
        self.registration_timeout = timeout;
        self
    }

    /// Sets how long a plugin may take to answer a call.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets the most bytes of a `Synchronize` message.
    #[must_use]
    pub fn max_synchronize(mut self, bytes: usize) -> Self {
        self.max_synchronize = bytes;
        self
    }

    /// Sets the networks of pods.
    #[must_use]
    pub fn pod_network(mut self, network: PodNetwork) -> Self {
        self.pod_network = network;
        self
    }
}

/// The network that every pod gets before `RunPodSandbox`, where this machine allows network namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PodNetwork {
    /// A namespace with only a loopback interface, as without CNI.
    Loopback,
    /// Also an interface `eth0` with an address, as with CNI's bridge plugin. Pods reach each other and the gateway, and
    /// nothing of the host.
    Bridge {
        /// The address of the bridge; those of pods follow it.
        gateway: Ipv4Addr,
        /// The length of the network's prefix.
        prefix: u8,
    },
}

impl Default for PodNetwork {
    /// The network 10.85.0.0/20.
    fn default() -> Self {
        Self::Bridge { gateway: Ipv4Addr::new(10, 85, 0, 1), prefix: 20 }
    }
}

/// The sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sandbox {
    /// The id, new for each attempt to run the pod.
    pub id: String,
    /// The UID of the pod.
    pub pod_uid: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod_name: String,
    /// Whether it runs; else it is stopped, and not removed yet.
    pub is_ready: bool,
    /// The path of its network namespace; `None` for the host's network, and when it is stopped.
    pub network: Option<PathBuf>,
    /// The addresses of `eth0`.
    pub ips: Vec<String>,
}

/// A plugin that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectedPlugin {
    /// Index and name, as in `10-example`; empty if it has not registered.
    pub name: String,
    /// A bit for each event that it has subscribed to; 0 before `Configure`.
    pub events: i32,
    /// Whether it has synchronized, and gets events.
    pub is_active: bool,
}

/// A plugin has not connected in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NRI plugin {name} is not connected and synchronized after {waited:?}: {state}")]
pub struct NotConnected {
    name: String,
    waited: Duration,
    state: String,
}

/// The runtime's side of NRI on a node.
#[derive(Debug, Clone, Copy)]
pub struct Nri<'a>(&'a PodRuntime);

impl<'a> Nri<'a> {
    pub(crate) fn new(runtime: &'a PodRuntime) -> Self {
        Self(runtime)
    }

    fn service(self) -> &'a std::sync::Arc<Service> {
        self.0.nri()
    }

    /// Returns the path of the socket, `/var/run/nri/nri.sock` on a real node.
    pub fn socket(self) -> &'a Path {
        self.service().socket()
    }

    /// Returns the plugins that are connected.
    pub fn plugins(self) -> Vec<ConnectedPlugin> {
        let info = |plugin: &std::sync::Arc<plugin::Plugin>| ConnectedPlugin {
            name: plugin.name().to_owned(),
            events: plugin.events(),
            is_active: plugin.is_active(),
        };
        self.service().connected().iter().map(info).collect()
    }

    /// Waits until a plugin, by index and name as in `10-example`, has connected and synchronized.
    pub async fn wait_plugin(self, name: &str) -> Result<(), NotConnected> {
        let deadline = crate::Deadline::default();
        while !self.plugins().iter().any(|plugin| plugin.name == name && plugin.is_active) {
            deadline.pause().await.map_err(|waited| {
                let lines: Vec<String> = self.log().iter().map(ToString::to_string).collect();
                let state = format!("connected: {:?}; log: {}", self.plugins(), lines.join("; "));
                NotConnected { name: name.to_owned(), waited, state }
            })?;
        }
        Ok(())
    }

    /// Returns all sandboxes that are not removed.
    pub fn sandboxes(self) -> Vec<Sandbox> {
        self.0.sandboxes()
    }

    /// Returns why pods have no network namespaces of their own; `None` if they have.
    pub fn network_problem(self) -> Option<String> {
        self.0.network_problem()
    }

    /// Returns the calls to plugins and the ends of their connections, the oldest first.
    pub fn log(self) -> Vec<Entry> {
        self.service().log.all()
    }

    /// Empties the log.
    pub fn clear_log(self) {
        self.service().log.clear();
    }

    /// Returns the updates of containers that plugins have requested, by calls or in answers, the oldest first.
    pub fn updates(self) -> Vec<RequestedUpdates> {
        self.service().requested_updates()
    }

    /// Cuts the connection of a plugin, now, in the middle of whatever it does. Returns whether there was one.
    pub fn cut(self, plugin: &str) -> bool {
        let connected = self.service().connected();
        let mut found = connected.iter().filter(|other| other.name() == plugin).peekable();
        let any = found.peek().is_some();
        found.for_each(|plugin| plugin.close("cut by the test"));
        any
    }

    /// Makes something go wrong with the next call of a kind, to whichever plugin. Several are used up in their order.
    pub fn inject(self, call: impl Into<Call>, fault: Fault) {
        self.service().faults.inject(call.into(), fault);
    }

    /// Makes something go wrong with all calls of a kind that have no fault of their own.
    pub fn inject_always(self, call: impl Into<Call>, fault: Fault) {
        self.service().faults.inject_always(call.into(), fault);
    }

    /// Removes all faults that have not occurred.
    pub fn clear_faults(self) {
        self.service().faults.clear();
    }

    /// Stops the runtime, in the middle of whatever it does: the socket and all connections are gone. Containers keep running;
    /// operations of the kubelet wait for the next [start](Self::start).
    pub async fn stop(self) -> std::io::Result<()> {
        self.service().stop().await
    }

    /// Starts the runtime after a [stop](Self::stop). It has forgotten which pods it has announced, so plugins never get
    /// `StopPodSandbox` and `RemovePodSandbox` for them, as with containerd.
    pub fn start(self) -> std::io::Result<()> {
        self.service().start()
    }

    /// [Stops](Self::stop) and [starts](Self::start) the runtime.
    pub async fn restart(self) -> std::io::Result<()> {
        self.stop().await?;
        self.start()
    }
}
