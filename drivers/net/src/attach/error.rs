//! Why a device could not be attached.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use drakkar_netlink::HardwareAddress;

use super::identity::Identity;

/// A device that could not be attached, and whether everything is as it was.
#[derive(Debug)]
pub struct AttachError {
    /// The reason.
    pub cause: AttachFailure,
    /// What could not be taken back. A later [`restore`](crate::restore::restore) tries again.
    pub undo: Option<String>,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        self.undo.as_ref().map_or(Ok(()), |undo| write!(f, "; and it could not be taken back: {undo}"))
    }
}

impl std::error::Error for AttachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.cause)
    }
}

impl From<AttachFailure> for AttachError {
    fn from(cause: AttachFailure) -> Self {
        Self { cause, undo: None }
    }
}

/// The reason for which a device could not be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachFailure {
    /// The interface is not on the host.
    #[error("{0} is not on the host: it was removed, or is in another network namespace")]
    NotFound(Box<Identity>),
    /// The runtime says that the pod's network namespace is the one of the host.
    #[error(
        "network namespace {} is the host's own, and the interface cannot be in the pod alone: the runtime must give the pod a network \
         namespace; see its CNI configuration, or remove hostNetwork or the claim",
        .path.display()
    )]
    HostNamespace {
        /// The path that the runtime gave.
        path: PathBuf,
    },
    /// The pod has another interface of that name.
    #[error("the pod already has an interface {name}: choose another interfaceName")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The address is in use.
    #[error("address {address} is already in use by {holder}")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Who uses it.
        holder: Holder,
    },
    /// Duplicate address detection was not over in time.
    #[error("address {address}: duplicate address detection was not over in time")]
    AddressUndecided {
        /// The address.
        address: IpAddr,
    },
    /// Nobody can be asked for an address.
    #[error(
        "address {address}: cannot ask who has it: the driver has no permission for packet sockets; give it the capability \
         NET_RAW, or set duplicateDetection to quick or off"
    )]
    NotAsked {
        /// The address.
        address: IpAddr,
    },
    /// The route is there already, over another interface.
    #[error(
        "the pod already has a route to {destination} in table {table} over another interface: set a metric or a table"
    )]
    RouteTaken {
        /// The destination.
        destination: ipnet::IpNet,
        /// The table.
        table: u32,
    },
    /// An RDMA device cannot be moved.
    #[error("RDMA device {name}: {problem}")]
    Rdma {
        /// The device.
        name: String,
        /// What is wrong, and the remedy.
        problem: &'static str,
    },
    /// The interface is not as it was configured: something else changes it.
    #[error("interface {name} in network namespace {}: it is gone right after it was moved there", .namespace.display())]
    Vanished {
        /// The name in the pod.
        name: String,
        /// The pod's namespace.
        namespace: PathBuf,
    },
    /// The kernel refused a call.
    #[error(transparent)]
    Kernel(#[from] drakkar_netlink::Error),
}

/// Who uses an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Another interface of the pod.
    Interface(String),
    /// Another host on the network, with its hardware address if it is known.
    OtherHost(Option<HardwareAddress>),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => write!(f, "interface {name} of the pod"),
            Self::OtherHost(Some(address)) => write!(f, "another host on the network, {address}"),
            Self::OtherHost(None) => f.write_str("another host on the network"),
        }
    }
}

impl AttachFailure {
    /// Returns the reason in one word, for a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) | Self::Vanished { .. } => "InterfaceNotFound",
            Self::HostNamespace { .. } => "HostNetwork",
            Self::NameTaken { .. } => "InterfaceNameInUse",
            Self::AddressTaken { .. } => "AddressInUse",
            Self::AddressUndecided { .. } | Self::NotAsked { .. } => "AddressUndecided",
            Self::RouteTaken { .. } => "RouteInUse",
            Self::Rdma { .. } => "RdmaDeviceNotMoved",
            Self::Kernel(drakkar_netlink::Error::Timeout { .. }) => "Timeout",
            Self::Kernel(_) => "KernelError",
        }
    }
}
