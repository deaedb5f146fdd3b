//! IP addresses of interfaces.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netlink_packet_core::{DecodeError, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope as KernelScope,
};
use serde::{Deserialize, Serialize};

use crate::connection::{Connection, encode};
use crate::error::Result;
use crate::link::LinkRef;
use crate::wire::{attributes, u8_at, u32_at};

pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;

const FLAG_SECONDARY: u32 = 0x01;
const FLAG_NODAD: u32 = 0x02;
const FLAG_OPTIMISTIC: u32 = 0x04;
const FLAG_DADFAILED: u32 = 0x08;
const FLAG_TENTATIVE: u32 = 0x40;
const FLAG_PERMANENT: u32 = 0x80;
const FLAG_NOPREFIXROUTE: u32 = 0x200;

/// The pause between two looks at the state of duplicate address detection.
const DAD_INTERVAL: Duration = Duration::from_millis(10);

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The index of the interface.
    pub index: u32,
    /// The address with its prefix length.
    pub address: IpNet,
    /// The other end of a point-to-point interface.
    pub peer: Option<IpAddr>,
    /// The broadcast address.
    pub broadcast: Option<Ipv4Addr>,
    /// The scope.
    pub scope: AddressScope,
    /// The label, which is the interface's name or begins with it. IPv4 only.
    pub label: Option<String>,
    /// Whether it has no lifetime: it was configured, not learned from a router or a DHCP server.
    pub is_permanent: bool,
    /// Whether it is a further address of a network in which the interface has another one.
    pub is_secondary: bool,
    /// Whether there is no route to its network because of it.
    pub no_prefix_route: bool,
    /// Whether it was configured without duplicate address detection.
    pub no_dad: bool,
    /// The state of duplicate address detection. Always done for IPv4.
    pub dad: DadState,
}

/// The state of IPv6 duplicate address detection (RFC 4862) of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DadState {
    /// The address can be used.
    Done,
    /// The kernel is looking whether another host has it, or waits for a carrier. It cannot be used yet.
    Tentative,
    /// The kernel is looking, and the address can be used meanwhile.
    Optimistic,
    /// Another host has it. It cannot be used.
    Failed,
}

/// The scope in which an address is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressScope {
    /// Everywhere.
    Global,
    /// Within the site.
    Site,
    /// On the link.
    Link,
    /// On this host.
    Host,
    /// Another scope, by its number.
    Other(u8),
}

/// An address to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewAddress {
    /// The address with its prefix length.
    pub address: IpNet,
    /// The other end of a point-to-point interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// The broadcast address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Ipv4Addr>,
    /// The scope.
    pub scope: AddressScope,
    /// The label. It has to begin with the interface's name. IPv4 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Adds no route to its network.
    #[serde(default)]
    pub no_prefix_route: bool,
    /// Does no duplicate address detection: the address can be used at once. IPv6 only.
    #[serde(default)]
    pub no_dad: bool,
}

impl NewAddress {
    /// A global address with all defaults.
    pub fn new(address: IpNet) -> Self {
        let scope = AddressScope::Global;
        Self { address, peer: None, broadcast: None, scope, label: None, no_prefix_route: false, no_dad: false }
    }

    /// Skips duplicate address detection.
    pub fn without_dad(self) -> Self {
        Self { no_dad: true, ..self }
    }
}

impl From<&Address> for NewAddress {
    fn from(address: &Address) -> Self {
        Self {
            address: address.address,
            peer: address.peer,
            broadcast: address.broadcast,
            scope: address.scope,
            label: address.label.clone(),
            no_prefix_route: address.no_prefix_route,
            no_dad: address.no_dad,
        }
    }
}

impl Connection {
    /// Returns the addresses of all interfaces.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        self.dump_addresses(0)
    }

    /// Returns the addresses of an interface. Those of one that does not exist are none.
    pub fn addresses_of(&mut self, index: u32) -> Result<Vec<Address>> {
        self.dump_addresses(index)
    }

    fn dump_addresses(&mut self, index: u32) -> Result<Vec<Address>> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        let operation = format_args!("list addresses");
        let dump = self.socket.dump(operation, RTM_GETADDR, &encode(&message), |bytes| {
            // The kernel filters by interface; nothing relies on that.
            decode(bytes).map(|address| address.filter(|address| index == 0 || address.index == index))
        });
        match dump {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            dump => dump,
        }
    }

    /// Adds an address. One that is there already is an error ([`already_exists`](crate::Error::already_exists)).
    pub fn add_address<'a>(&mut self, link: impl Into<LinkRef<'a>>, address: &NewAddress) -> Result<()> {
        let link = link.into();
        let operation = format_args!("{link}: add address {}", address.address);
        let mut message = message(link.index, address.address, address.peer);
        message.header.scope = address.scope.into();
        let mut flags = AddressFlags::empty();
        flags.set(AddressFlags::Nodad, address.no_dad);
        flags.set(AddressFlags::Noprefixroute, address.no_prefix_route);
        message.header.flags = AddressHeaderFlags::from_bits_retain(flags.bits() as u8);
        message.attributes.push(AddressAttribute::Flags(flags));
        message.attributes.extend(address.broadcast.map(AddressAttribute::Broadcast));
        message.attributes.extend(address.label.clone().map(AddressAttribute::Label));
        self.socket.change(operation, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &encode(&message))
    }

    /// Deletes an address.
    pub fn delete_address<'a>(
        &mut self,
        link: impl Into<LinkRef<'a>>,
        address: IpNet,
        peer: Option<IpAddr>,
    ) -> Result<()> {
        let link = link.into();
        let operation = format_args!("{link}: delete address {address}");
        self.socket.change(operation, RTM_DELADDR, 0, &encode(&message(link.index, address, peer)))
    }

    /// Waits until duplicate address detection is over for each address of an interface, and returns all addresses.
    ///
    /// At the deadline, addresses that are still tentative are among them: without a carrier that state does not end.
    pub fn wait_for_dad(&mut self, index: u32, deadline: Instant) -> Result<Vec<Address>> {
        loop {
            let addresses = self.addresses_of(index)?;
            let is_over = addresses.iter().all(|address| address.dad != DadState::Tentative);
            if is_over || Instant::now() >= deadline {
                return Ok(addresses);
            }
            std::thread::sleep(DAD_INTERVAL.min(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

fn message(index: u32, address: IpNet, peer: Option<IpAddr>) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = if address.addr().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(address.addr()));
    message.attributes.push(AddressAttribute::Address(peer.unwrap_or(address.addr())));
    message
}

/// Reads an address. `None` for those of other protocols than IP.
pub(crate) fn decode(payload: &[u8]) -> Result<Option<Address>, DecodeError> {
    let prefix = u8_at(payload, 1)?;
    let mut flags = u32::from(u8_at(payload, 2)?);
    let mut local = None;
    let mut address = None;
    let mut broadcast = None;
    let mut label = None;
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            IFA_ADDRESS => address = attribute.ip().ok(),
            IFA_LOCAL => local = attribute.ip().ok(),
            IFA_BROADCAST => broadcast = attribute.ip().ok(),
            IFA_LABEL => label = Some(attribute.text()),
            IFA_FLAGS => flags = attribute.u32()?,
            _ => {}
        }
    }
    // Without a local address, IPv6's own is the only one. With both, the other one is the peer's unless it is the same.
    let Some(own) = local.or(address) else { return Ok(None) };
    let own_net =
        IpNet::new(own, prefix).map_err(|error| DecodeError::from(format!("prefix length {prefix}: {error}")))?;
    let is_set = |flag: u32| flags & flag != 0;
    Ok(Some(Address {
        index: u32_at(payload, 4)?,
        address: own_net,
        peer: address.filter(|address| *address != own),
        broadcast: broadcast.and_then(|broadcast| if let IpAddr::V4(v4) = broadcast { Some(v4) } else { None }),
        scope: KernelScope::from(u8_at(payload, 3)?).into(),
        label,
        is_permanent: is_set(FLAG_PERMANENT),
        is_secondary: is_set(FLAG_SECONDARY) && own.is_ipv4(),
        no_prefix_route: is_set(FLAG_NOPREFIXROUTE),
        no_dad: is_set(FLAG_NODAD),
        dad: if is_set(FLAG_DADFAILED) {
            DadState::Failed
        } else if is_set(FLAG_OPTIMISTIC) {
            DadState::Optimistic
        } else if is_set(FLAG_TENTATIVE) {
            DadState::Tentative
        } else {
            DadState::Done
        },
    }))
}

impl From<KernelScope> for AddressScope {
    fn from(scope: KernelScope) -> Self {
        match scope {
            KernelScope::Universe => Self::Global,
            KernelScope::Site => Self::Site,
            KernelScope::Link => Self::Link,
            KernelScope::Host => Self::Host,
            other => Self::Other(other.into()),
        }
    }
}

impl From<AddressScope> for KernelScope {
    fn from(scope: AddressScope) -> Self {
        match scope {
            AddressScope::Global => Self::Universe,
            AddressScope::Site => Self::Site,
            AddressScope::Link => Self::Link,
            AddressScope::Host => Self::Host,
            AddressScope::Other(number) => number.into(),
        }
    }
}
