#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address;
mod conflict;
mod connection;
mod error;
mod event;
mod hardware;
mod link;
mod namespace;
pub mod rdma;
mod route;
mod rule;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

pub use rustix::io::Errno;

pub use self::address::{Address, AddressScope, DadState, NewAddress};
pub use self::conflict::{Conflict, ConflictMonitor, ConflictProtocol};
pub use self::connection::Connection;
pub use self::error::{Error, Result};
pub use self::event::{Event, Monitor};
pub use self::hardware::{HardwareAddress, HardwareAddressError};
pub use self::link::{
    BusAddress, Child, IpvlanFlag, IpvlanMode, Link, LinkChange, LinkKind, LinkRef, MacvlanMode, NewLink, NewLinkKind,
    OperationalState, Parent, VlanProtocol,
};
pub use self::namespace::{Namespace, NamespaceId};
pub use self::route::{NewRoute, NextHop, Route, RouteScope, RouteType, TABLE_LOCAL, TABLE_MAIN};
pub use self::rule::{NewRule, Rule};
