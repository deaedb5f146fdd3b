//! The seam between the bookkeeping of claims and the kernel: [`attach`](crate::attach) and [`restore`](crate::restore).

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drakkar_netlink::{Namespace, NamespaceId};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::attach::{
    self, AttachError, AttachFailure, Attached, Attachment, InterfacePlan, Limits, PodNamespace, RdmaIdentity,
};
use crate::kernel::Kernel;
use crate::restore::{self, Restored, locate};

/// The time to wait for the kernel to end a namespace and give its interfaces back.
const NAMESPACE_END: Duration = Duration::from_millis(500);

/// The sandbox of a pod, where interfaces are attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    /// The id that the runtime gave it. Every attempt to start a pod has another one.
    pub(crate) id: String,
    /// The UID of the pod.
    pub(crate) pod_uid: String,
    /// The pod as `namespace/name`, for messages.
    pub(crate) pod: String,
    /// The path of its network namespace.
    pub(crate) namespace: PathBuf,
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandbox {} of pod {}", self.id, self.pod)
    }
}

/// An interface in a pod, as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodInterface {
    /// Its name.
    pub(crate) name: String,
    /// Its index. `None`: it was recorded by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<u32>,
    /// Its hardware address. Some kinds have none.
    pub(crate) hardware_address: Option<String>,
    /// Its MTU.
    pub(crate) mtu: u32,
    /// Its addresses that are valid beyond the link.
    pub(crate) addresses: Vec<IpNet>,
}

impl From<Attached> for PodInterface {
    fn from(attached: Attached) -> Self {
        Self {
            addresses: attached.ips(),
            name: attached.name,
            index: Some(attached.index),
            hardware_address: attached.hardware_address.map(|address| address.to_string()),
            mtu: attached.mtu,
        }
    }
}

/// An attached interface, as it is found in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPod {
    /// The pod's namespace is gone.
    NoNamespace,
    /// The interface is not in the pod.
    Missing,
    /// It is there.
    Found {
        is_up: bool,
        /// `None`: its driver does not tell.
        carrier: Option<bool>,
    },
}

/// Attaches interfaces to pods, and brings them back. All methods block.
pub(crate) trait Attacher: fmt::Debug + Send + Sync + 'static {
    /// Returns what has to be in the journal before an interface is attached. Changes nothing.
    fn inspect(
        &self,
        plan: &InterfacePlan,
        namespace: &Path,
        deadline: Option<Instant>,
    ) -> Result<Attachment, AttachFailure>;

    /// Attaches an interface, and returns it as the kernel then describes it. If it fails, it is taken back, or the error says
    /// that it could not be.
    fn attach(&self, attachment: &Attachment, deadline: Option<Instant>) -> Result<PodInterface, AttachError>;

    /// Brings an interface back to the host as it was, from any point at which attaching has stopped.
    fn restore(&self, attachment: &Attachment) -> drakkar_netlink::Result<Restored>;

    /// Takes note of an interface that is, or is about to be, in a pod, also since before a restart of the driver: it must not end with
    /// the pod's namespace. A complete restore ends that.
    fn keep(&self, _attachment: &Attachment) {}

    /// Looks for an attached interface in its pod.
    fn look(&self, attachment: &Attachment) -> drakkar_netlink::Result<InPod>;

    /// Returns an RDMA device of the host by name.
    fn rdma(&self, name: &str) -> drakkar_netlink::Result<Option<RdmaIdentity>>;

    /// Returns which network namespace is at a path, if there is one.
    fn namespace(&self, path: &Path) -> Option<NamespaceId>;

    /// Returns whether a network namespace still is where it was.
    fn is_there(&self, namespace: &PodNamespace) -> bool {
        self.namespace(&namespace.path) == Some(namespace.id)
    }
}

impl Attacher for Kernel {
    fn inspect(
        &self,
        plan: &InterfacePlan,
        namespace: &Path,
        deadline: Option<Instant>,
    ) -> Result<Attachment, AttachFailure> {
        Attachment::inspect(self, plan.clone(), namespace, &limits(deadline))
    }

    fn attach(&self, attachment: &Attachment, deadline: Option<Instant>) -> Result<PodInterface, AttachError> {
        attach::attach(self, attachment, &limits(deadline)).map(PodInterface::from)
    }

    fn restore(&self, attachment: &Attachment) -> drakkar_netlink::Result<Restored> {
        let restored = restore::restore_within(self, attachment, NAMESPACE_END)?;
        if restored.is_complete() {
            self.release(attachment);
        }
        Ok(restored)
    }

    fn keep(&self, attachment: &Attachment) {
        Self::keep(self, attachment);
    }

    fn look(&self, attachment: &Attachment) -> drakkar_netlink::Result<InPod> {
        let PodNamespace { path, id } = &attachment.namespace;
        let Some(mut pod) = self.pod_if_there(path, *id)? else { return Ok(InPod::NoNamespace) };
        let found = locate::in_pod(&mut pod, attachment)?;
        Ok(found.map_or(InPod::Missing, |link| InPod::Found { is_up: link.is_up, carrier: link.carrier }))
    }

    fn rdma(&self, name: &str) -> drakkar_netlink::Result<Option<RdmaIdentity>> {
        let Some(mut rdma) = self.host(None)?.rdma()? else { return Ok(None) };
        let devices = rdma.devices()?;
        let found = devices.into_iter().find(|device| device.name == name);
        Ok(found.map(|device| RdmaIdentity { name: device.name, node_guid: device.node_guid }))
    }

    fn namespace(&self, path: &Path) -> Option<NamespaceId> {
        Namespace::identify(path).ok().flatten()
    }
}

fn limits(deadline: Option<Instant>) -> Limits {
    Limits { deadline, ..Limits::default() }
}
