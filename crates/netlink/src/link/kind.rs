//! The kinds of interfaces, with what a driver needs to know of each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// No kind: a device's driver made it, or it is the loopback interface.
    Device,
    /// An end of a virtual cable.
    Veth,
    /// An interface that drops what is sent.
    Dummy,
    /// A VLAN of its parent.
    Vlan {
        /// The VLAN id.
        id: u16,
    },
    /// An interface with a hardware address of its own on its parent.
    Macvlan {
        /// How it communicates with its siblings.
        mode: MacvlanMode,
    },
    /// An interface with its parent's hardware address and addresses of its own.
    Ipvlan {
        /// How packets get to it.
        mode: IpvlanMode,
    },
    /// A bridge.
    Bridge,
    /// A bond.
    Bond,
    /// A VXLAN tunnel.
    Vxlan,
    /// A TUN or TAP interface.
    Tun,
    /// Another kind, by the kernel's name.
    Other(String),
}

impl LinkKind {
    /// Returns the kernel's name of the kind, or an empty text for a device.
    pub fn name(&self) -> &str {
        match self {
            Self::Device => "",
            Self::Veth => "veth",
            Self::Dummy => "dummy",
            Self::Vlan { .. } => "vlan",
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan { .. } => "ipvlan",
            Self::Bridge => "bridge",
            Self::Bond => "bond",
            Self::Vxlan => "vxlan",
            Self::Tun => "tun",
            Self::Other(name) => name,
        }
    }

    /// Returns whether the kernel deletes such an interface with its namespace. Others return to the initial namespace.
    pub fn dies_with_its_namespace(&self) -> bool {
        *self != Self::Device
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Device { "device" } else { self.name() })
    }
}

/// How a macvlan interface communicates with the others of its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MacvlanMode {
    /// Not at all.
    Private,
    /// Through the switch that the parent is connected to.
    Vepa,
    /// Directly.
    Bridge,
    /// It is the only one, and takes over the parent.
    Passthru,
    /// By a list of allowed source addresses.
    Source,
}

/// How packets get to an ipvlan interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum IpvlanMode {
    /// Switched, with broadcast and multicast.
    L2,
    /// Routed by the parent's namespace.
    L3,
    /// Routed, and seen by the netfilter hooks of the parent's namespace.
    L3s,
}

impl MacvlanMode {
    pub(crate) fn from_kernel(number: u32) -> Option<Self> {
        [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru, Self::Source]
            .into_iter()
            .find(|mode| u32::from(netlink_packet_route::link::MacVlanMode::from(*mode)) == number)
    }
}

impl IpvlanMode {
    pub(crate) fn from_kernel(number: u16) -> Option<Self> {
        [Self::L2, Self::L3, Self::L3s]
            .into_iter()
            .find(|mode| u16::from(netlink_packet_route::link::IpVlanMode::from(*mode)) == number)
    }
}

impl From<MacvlanMode> for netlink_packet_route::link::MacVlanMode {
    fn from(mode: MacvlanMode) -> Self {
        match mode {
            MacvlanMode::Private => Self::Private,
            MacvlanMode::Vepa => Self::Vepa,
            MacvlanMode::Bridge => Self::Bridge,
            MacvlanMode::Passthru => Self::Passthrough,
            MacvlanMode::Source => Self::Source,
        }
    }
}

impl From<IpvlanMode> for netlink_packet_route::link::IpVlanMode {
    fn from(mode: IpvlanMode) -> Self {
        match mode {
            IpvlanMode::L2 => Self::L2,
            IpvlanMode::L3 => Self::L3,
            IpvlanMode::L3s => Self::L3S,
        }
    }
}
