//! Network interfaces ("links"): what the kernel tells of them, and changes.

mod change;
mod create;
mod decode;
mod kind;

use std::fmt;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage, Prop};
use serde::{Deserialize, Serialize};

pub use self::change::LinkChange;
pub use self::create::{Child, IpvlanFlag, NewLink, NewLinkKind, VlanProtocol};
pub(crate) use self::decode::decode;
pub use self::kind::{IpvlanMode, LinkKind, MacvlanMode};
use crate::connection::{Connection, encode};
use crate::error::{Error, Result};
use crate::hardware::HardwareAddress;

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWLINKPROP: u16 = 108;
const RTM_DELLINKPROP: u16 = 109;
const IFLA_ALT_IFNAME: u16 = 53;
/// The maximum length of an interface's name in bytes, without the terminating NUL.
const MAX_NAME: usize = 15;

/// A network interface.
///
/// Neither its index nor its name identifies it across namespaces: a move changes the index if that is taken at its
/// destination, and anybody can rename it. Its bus address and permanent hardware address do, and its alias goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The index in its namespace, never 0.
    pub index: u32,
    /// The name in its namespace.
    pub name: String,
    /// Further names in its namespace.
    pub alt_names: Vec<String>,
    /// The alias: a free text of the administrator.
    pub alias: Option<String>,
    /// The hardware address. Tunnels have none.
    pub address: Option<HardwareAddress>,
    /// The hardware address that the device was made with. Virtual interfaces have none.
    pub permanent_address: Option<HardwareAddress>,
    /// The device behind it, such as `pci`, `0000:03:00.0`. `None` for virtual interfaces and before Linux 5.14.
    pub device: Option<BusAddress>,
    /// The MTU.
    pub mtu: u32,
    /// The smallest MTU that can be set.
    pub min_mtu: Option<u32>,
    /// The largest MTU that can be set; `None` if there is no limit.
    pub max_mtu: Option<u32>,
    /// The kind.
    pub kind: LinkKind,
    /// The kernel's link layer type (`ARPHRD_…`): 1 for Ethernet, 32 for InfiniBand, 772 for loopback.
    pub layer: u16,
    /// The interface that this one is on top of, or the other end of a veth pair.
    pub parent: Option<Parent>,
    /// The index of the bridge, bond or VRF that it belongs to.
    pub master: Option<u32>,
    /// The operational state.
    pub state: OperationalState,
    /// Whether it is administratively up.
    pub is_up: bool,
    /// Whether it is up and has a carrier.
    pub is_running: bool,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// Whether there is a carrier. `None` if the driver does not tell.
    pub carrier: Option<bool>,
    /// Whether an XDP program is attached.
    pub has_xdp: bool,
}

/// The device behind an interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BusAddress {
    /// The bus, such as `pci` or `virtio`.
    pub bus: String,
    /// The name on that bus, such as `0000:03:00.0`.
    pub name: String,
}

/// The interface that another is on top of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Parent {
    /// Its index, in its own namespace.
    pub index: u32,
    /// The number that this namespace has for the parent's, if that is another one. -1 if it has no number for it.
    pub namespace: Option<i32>,
}

/// The operational state of an interface (RFC 2863).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationalState {
    /// The driver does not tell.
    Unknown,
    /// Something is missing, such as the device.
    NotPresent,
    /// It is down.
    Down,
    /// What it is on top of is down.
    LowerLayerDown,
    /// It is being tested.
    Testing,
    /// It waits for an event, such as authentication.
    Dormant,
    /// It is up.
    Up,
}

impl fmt::Display for OperationalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::NotPresent => "notpresent",
            Self::Down => "down",
            Self::LowerLayerDown => "lowerlayerdown",
            Self::Testing => "testing",
            Self::Dormant => "dormant",
            Self::Up => "up",
        })
    }
}

/// An interface to change: its index, and its name for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRef<'a> {
    /// The index.
    pub index: u32,
    /// The name, if it is known.
    pub name: Option<&'a str>,
}

impl From<u32> for LinkRef<'_> {
    fn from(index: u32) -> Self {
        Self { index, name: None }
    }
}

impl<'a> From<&'a Link> for LinkRef<'a> {
    fn from(link: &'a Link) -> Self {
        Self { index: link.index, name: Some(&link.name) }
    }
}

impl fmt::Display for LinkRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "interface {name} (index {})", self.index),
            None => write!(f, "interface with index {}", self.index),
        }
    }
}

impl Connection {
    /// Returns all interfaces of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let payload = encode(&question(0));
        self.socket.dump(format_args!("list interfaces"), RTM_GETLINK, &payload, |bytes| decode(bytes).map(Some))
    }

    /// Returns the interface with an index, or `None`.
    pub fn link(&mut self, index: u32) -> Result<Option<Link>> {
        let operation = format_args!("get interface with index {index}");
        self.socket.get(operation, RTM_GETLINK, &encode(&question(index)), decode)
    }

    /// Returns the interface with a name, or `None`. An alternative name counts.
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>> {
        let mut message = question(0);
        let attribute = if name.len() > MAX_NAME {
            LinkAttribute::Other(DefaultNla::new(IFLA_ALT_IFNAME, [name.as_bytes(), &[0]].concat()))
        } else {
            LinkAttribute::IfName(name.to_owned())
        };
        message.attributes.push(attribute);
        self.socket.get(format_args!("get interface {name}"), RTM_GETLINK, &encode(&message), decode)
    }

    /// Adds alternative names to an interface. Since Linux 5.5.
    pub fn add_alt_names<'a>(&mut self, link: impl Into<LinkRef<'a>>, names: &[String]) -> Result<()> {
        let link = link.into();
        let operation = format_args!("{link}: add the alternative names {}", names.join(", "));
        self.socket.change(operation, RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, &encode(&properties(link, names)))
    }

    /// Deletes alternative names of an interface.
    pub fn delete_alt_names<'a>(&mut self, link: impl Into<LinkRef<'a>>, names: &[String]) -> Result<()> {
        let link = link.into();
        let operation = format_args!("{link}: delete the alternative names {}", names.join(", "));
        self.socket.change(operation, RTM_DELLINKPROP, 0, &encode(&properties(link, names)))
    }

    /// Deletes an interface. The other end of a veth pair goes with it.
    pub fn delete_link<'a>(&mut self, link: impl Into<LinkRef<'a>>) -> Result<()> {
        let link = link.into();
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        self.socket.change(format_args!("delete {link}"), RTM_DELLINK, 0, &encode(&message))
    }
}

/// A request for an interface, or for all with index 0. Without statistics, which are most of an answer.
fn question(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// A change of the alternative names of an interface.
fn properties(link: LinkRef<'_>, names: &[String]) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    message.attributes.push(LinkAttribute::PropList(names.iter().cloned().map(Prop::AltIfName).collect()));
    message
}

/// Checks a name as the kernel does, for an error that says what is wrong.
pub(crate) fn check_name(operation: fmt::Arguments<'_>, name: &str) -> Result<()> {
    let is_valid = !matches!(name, "" | "." | "..")
        && name.len() <= MAX_NAME
        && !name.contains(|c: char| c == '/' || c == ':' || c == '\0' || c == '%' || c.is_ascii_whitespace());
    if is_valid {
        return Ok(());
    }
    let detail = format!("{name:?} is not a name for an interface: 1 to {MAX_NAME} bytes without space, /, : and %");
    Err(Error::Invalid { operation: operation.to_string(), detail })
}
