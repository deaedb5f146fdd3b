//! The kinds of interfaces: the attribute `type`, and what the kernel can do with each.

use std::fmt;

use drakkar_netlink::{Link, LinkKind};

/// The kind of an interface, as users select by it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A device's interface.
    Physical,
    /// The interface of a virtual function.
    VirtualFunction,
    /// The loopback interface.
    Loopback,
    /// An interface that the kernel made, by the kernel's name of its kind: `dummy`, `veth`, `vlan`, `macvlan`, `bond` …
    Virtual(String),
}

impl Kind {
    /// The kinds that a rule can name.
    pub const WORDS: [&'static str; 12] = [
        "physical",
        "vf",
        "dummy",
        "veth",
        "vlan",
        "macvlan",
        "macvtap",
        "ipvlan",
        "bridge",
        "bond",
        "team",
        "netdevsim",
    ];

    /// Returns the kind of an interface.
    pub(super) fn of(link: &Link, is_virtual_function: impl FnOnce() -> bool) -> Self {
        match &link.kind {
            LinkKind::Device if link.is_loopback => Self::Loopback,
            LinkKind::Device if is_virtual_function() => Self::VirtualFunction,
            LinkKind::Device => Self::Physical,
            kind => Self::Virtual(kind.name().to_owned()),
        }
    }

    /// Returns the value of the attribute.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Physical => "physical",
            Self::VirtualFunction => "vf",
            Self::Loopback => "loopback",
            Self::Virtual(name) => name,
        }
    }

    /// Returns whether the kernel refuses to move such an interface to another network namespace.
    pub fn is_fixed(&self) -> bool {
        matches!(self.as_str(), "loopback" | "bridge" | "bond" | "team" | "vrf" | "openvswitch" | "batadv")
    }

    /// Returns whether it is an end of a tunnel: packets come out of it that other interfaces have received.
    pub fn is_tunnel(&self) -> bool {
        let tunnels = [
            "vxlan",
            "geneve",
            "gre",
            "gretap",
            "ip6gre",
            "ip6gretap",
            "erspan",
            "ip6erspan",
            "ipip",
            "sit",
            "ip6tnl",
            "vti",
            "vti6",
            "xfrm",
            "wireguard",
            "tun",
            "gtp",
            "bareudp",
            "l2tp",
            "amt",
        ];
        tunnels.contains(&self.as_str())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
