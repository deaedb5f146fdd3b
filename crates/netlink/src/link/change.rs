//! Changes of an existing interface, several of them in one request.

use std::fmt;
use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use super::{LinkRef, RTM_SETLINK, check_name};
use crate::connection::{Connection, encode};
use crate::error::Result;
use crate::hardware::HardwareAddress;
use crate::namespace::Namespace;

/// The changes of one request. The kernel makes them in a fixed order, the move to another namespace first.
///
/// A request is not atomic: the kernel may refuse a part of it after it has made others. Whoever gets an error reads the
/// interface again, at both ends of a move.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkChange<'a> {
    /// Moves it to another namespace. It is down afterwards, and has lost its addresses and routes.
    pub namespace: Option<&'a Namespace>,
    /// The index after a move. Without it the kernel keeps the index if it is free there. Since Linux 5.13.
    pub index: Option<u32>,
    /// Renames it. Before Linux 6.3 only while it is down.
    pub name: Option<&'a str>,
    /// Sets the MTU.
    pub mtu: Option<u32>,
    /// Sets the hardware address.
    pub address: Option<&'a HardwareAddress>,
    /// Sets the alias; an empty text removes it.
    pub alias: Option<&'a str>,
    /// Makes it a part of a bridge, bond or VRF; 0 takes it out.
    pub master: Option<u32>,
    /// Sets it up or down.
    pub up: Option<bool>,
}

impl fmt::Display for LinkChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |text: fmt::Arguments<'_>| {
            write!(f, "{separator}{text}")?;
            separator = ", ";
            Ok(())
        };
        if let Some(namespace) = self.namespace {
            part(format_args!("move to network namespace {}", namespace.path().display()))?;
        }
        if let Some(index) = self.index {
            part(format_args!("with index {index}"))?;
        }
        if let Some(name) = self.name {
            part(format_args!("rename to {name}"))?;
        }
        if let Some(mtu) = self.mtu {
            part(format_args!("set MTU {mtu}"))?;
        }
        if let Some(address) = self.address {
            part(format_args!("set hardware address {address}"))?;
        }
        if let Some(alias) = self.alias {
            part(format_args!("set alias {alias:?}"))?;
        }
        match self.master {
            Some(0) => part(format_args!("remove from its master"))?,
            Some(master) => part(format_args!("add to the master with index {master}"))?,
            None => {}
        }
        match self.up {
            Some(true) => part(format_args!("set up"))?,
            Some(false) => part(format_args!("set down"))?,
            None => {}
        }
        Ok(())
    }
}

impl Connection {
    /// Changes an interface.
    pub fn change_link<'a>(&mut self, link: impl Into<LinkRef<'a>>, change: &LinkChange<'_>) -> Result<()> {
        let link = link.into();
        let operation = format_args!("{link}: {change}");
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let attributes = &mut message.attributes;
        if let Some(namespace) = change.namespace {
            attributes.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
        }
        if let Some(index) = change.index {
            attributes.push(LinkAttribute::NewIfIndex(index.cast_signed()));
        }
        if let Some(name) = change.name {
            check_name(operation, name)?;
            attributes.push(LinkAttribute::IfName(name.to_owned()));
        }
        if let Some(mtu) = change.mtu {
            attributes.push(LinkAttribute::Mtu(mtu));
        }
        if let Some(address) = change.address {
            attributes.push(LinkAttribute::Address(address.octets().to_vec()));
        }
        if let Some(alias) = change.alias {
            attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        }
        if let Some(master) = change.master {
            attributes.push(LinkAttribute::Controller(master));
        }
        if let Some(up) = change.up {
            message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
            message.header.change_mask = LinkFlags::Up;
        }
        self.socket.change(operation, RTM_SETLINK, 0, &encode(&message))
    }
}
