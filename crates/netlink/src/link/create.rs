//! Makes virtual interfaces, here or directly in another namespace.

use std::fmt;
use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{
    InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVeth, InfoVlan, IpVlanFlags, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, VlanProtocol as KernelVlanProtocol,
};

use super::{IpvlanMode, MacvlanMode, RTM_NEWLINK, check_name};
use crate::connection::{Connection, encode};
use crate::error::Result;
use crate::hardware::HardwareAddress;
use crate::namespace::Namespace;

/// An interface to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// The name in the namespace where it is made.
    pub name: &'a str,
    /// The kind.
    pub kind: NewLinkKind<'a>,
    /// The namespace in which it is made, if not that of the connection. A parent is in that of the connection.
    pub namespace: Option<&'a Namespace>,
    /// The MTU, if not the kind's own.
    pub mtu: Option<u32>,
    /// The hardware address, if not a random one.
    pub address: Option<&'a HardwareAddress>,
    /// Whether it is made in state "up".
    pub up: bool,
}

/// The kind of an interface to be made.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum NewLinkKind<'a> {
    /// A virtual cable.
    Veth {
        /// The name of the other end.
        peer: &'a str,
        /// The namespace of the other end, if not that of the connection.
        peer_namespace: Option<&'a Namespace>,
    },
    /// A dummy.
    Dummy,
    /// A bridge.
    Bridge,
    /// An interface on top of a parent.
    Child {
        /// The index of the parent in the namespace of the connection.
        parent: u32,
        /// Its kind.
        child: Child,
    },
}

/// The kind of an interface on top of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Child {
    /// A VLAN.
    Vlan {
        /// The VLAN id, 1 to 4094.
        id: u16,
        /// The protocol of the tag.
        #[serde(default)]
        protocol: VlanProtocol,
    },
    /// A macvlan interface.
    Macvlan {
        /// The mode.
        mode: MacvlanMode,
    },
    /// An ipvlan interface.
    Ipvlan {
        /// The mode.
        mode: IpvlanMode,
        /// How the interfaces of the parent reach each other.
        #[serde(default)]
        flag: IpvlanFlag,
    },
}

/// The protocol of a VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum VlanProtocol {
    /// Customer tags.
    #[default]
    #[serde(rename = "802.1Q")]
    Dot1Q,
    /// Provider tags.
    #[serde(rename = "802.1ad")]
    Dot1Ad,
}

/// How the ipvlan interfaces of a parent reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanFlag {
    /// Directly.
    #[default]
    Bridge,
    /// Not at all.
    Private,
    /// Through the switch outside.
    Vepa,
}

impl<'a> NewLink<'a> {
    /// An interface of a kind with all defaults, in the namespace of the connection.
    pub fn new(name: &'a str, kind: NewLinkKind<'a>) -> Self {
        Self { name, kind, namespace: None, mtu: None, address: None, up: false }
    }
}

impl fmt::Display for NewLinkKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Veth { .. } => f.write_str("veth"),
            Self::Dummy => f.write_str("dummy"),
            Self::Bridge => f.write_str("bridge"),
            Self::Child { parent, child } => write!(f, "{child} on the interface with index {parent}"),
        }
    }
}

impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vlan { id, .. } => write!(f, "vlan {id}"),
            Self::Macvlan { .. } => f.write_str("macvlan"),
            Self::Ipvlan { .. } => f.write_str("ipvlan"),
        }
    }
}

impl Connection {
    /// Makes an interface. An existing one of that name is an error ([`already_exists`](crate::Error::already_exists)).
    pub fn create_link(&mut self, link: &NewLink<'_>) -> Result<()> {
        let operation = format_args!("create interface {} ({})", link.name, link.kind);
        check_name(operation, link.name)?;
        let mut message = LinkMessage::default();
        if link.up {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        }
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(link.name.to_owned()));
        if let Some(namespace) = link.namespace {
            attributes.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
        }
        if let Some(mtu) = link.mtu {
            attributes.push(LinkAttribute::Mtu(mtu));
        }
        if let Some(address) = link.address {
            attributes.push(LinkAttribute::Address(address.octets().to_vec()));
        }
        if let NewLinkKind::Child { parent, .. } = link.kind {
            attributes.push(LinkAttribute::Link(parent));
        }
        if let NewLinkKind::Veth { peer, .. } = link.kind {
            check_name(operation, peer)?;
        }
        attributes.push(LinkAttribute::LinkInfo(info(&link.kind)));
        self.socket.change(operation, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &encode(&message))
    }
}

fn info(kind: &NewLinkKind<'_>) -> Vec<LinkInfo> {
    match *kind {
        NewLinkKind::Dummy => vec![LinkInfo::Kind(InfoKind::Dummy)],
        NewLinkKind::Bridge => vec![LinkInfo::Kind(InfoKind::Bridge)],
        NewLinkKind::Veth { peer, peer_namespace } => {
            let mut message = LinkMessage::default();
            message.attributes.push(LinkAttribute::IfName(peer.to_owned()));
            if let Some(namespace) = peer_namespace {
                message.attributes.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
            }
            vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(message)))]
        }
        NewLinkKind::Child { child: Child::Vlan { id, protocol }, .. } => {
            let protocol = match protocol {
                VlanProtocol::Dot1Q => KernelVlanProtocol::Ieee8021Q,
                VlanProtocol::Dot1Ad => KernelVlanProtocol::Ieee8021Ad,
            };
            let data = vec![InfoVlan::Id(id), InfoVlan::Protocol(protocol)];
            vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(InfoData::Vlan(data))]
        }
        NewLinkKind::Child { child: Child::Macvlan { mode }, .. } => {
            let data = vec![InfoMacVlan::Mode(mode.into())];
            vec![LinkInfo::Kind(InfoKind::MacVlan), LinkInfo::Data(InfoData::MacVlan(data))]
        }
        NewLinkKind::Child { child: Child::Ipvlan { mode, flag }, .. } => {
            let flags = match flag {
                IpvlanFlag::Bridge => IpVlanFlags::empty(),
                IpvlanFlag::Private => IpVlanFlags::Private,
                IpvlanFlag::Vepa => IpVlanFlags::Vepa,
            };
            let data = vec![InfoIpVlan::Mode(mode.into()), InfoIpVlan::Flags(flags)];
            vec![LinkInfo::Kind(InfoKind::IpVlan), LinkInfo::Data(InfoData::IpVlan(data))]
        }
    }
}
