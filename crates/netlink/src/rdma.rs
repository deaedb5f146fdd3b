//! RDMA devices of a namespace, over the kernel's RDMA netlink protocol (`nldev`).
//!
//! An RDMA device can be moved to another network namespace only if the system is in exclusive mode. In shared mode every
//! namespace sees every device, and there is nothing to move.

mod encode;

use std::fmt;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use netlink_packet_core::DecodeError;
use netlink_sys::protocols::NETLINK_RDMA;
use serde::{Deserialize, Serialize};

use self::encode::Attributes;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::socket::Socket;
use crate::wire::{Attribute, attributes};

const TIMEOUT: Duration = Duration::from_secs(5);

/// The number of the `nldev` client, shifted as message types have it.
const NLDEV: u16 = 5 << 10;
const CMD_GET: u16 = NLDEV + 1;
const CMD_SET: u16 = NLDEV + 2;
const CMD_PORT_GET: u16 = NLDEV + 5;
const CMD_SYS_GET: u16 = NLDEV + 6;

const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_PORT_INDEX: u16 = 3;
const ATTR_NODE_GUID: u16 = 6;
const ATTR_PORT_STATE: u16 = 12;
const ATTR_NDEV_INDEX: u16 = 50;
const ATTR_NDEV_NAME: u16 = 51;
const ATTR_SYS_NETNS_MODE: u16 = 66;
const ATTR_DEV_PROTOCOL: u16 = 67;
const ATTR_NET_NS_FD: u16 = 68;

/// The port state "active" (`IB_PORT_ACTIVE`).
const PORT_ACTIVE: u8 = 4;

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The index, the same in every namespace.
    pub index: u32,
    /// The name, such as `mlx5_0`.
    pub name: String,
    /// The GUID of the node.
    pub node_guid: Guid,
    /// The protocol, such as `roce`, `ib` or `iw`, if the kernel tells.
    pub protocol: Option<String>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The number of the port, from 1.
    pub number: u32,
    /// The index of its network interface, if that is in the same namespace.
    pub interface: Option<u32>,
    /// The name of its network interface.
    pub interface_name: Option<String>,
    /// Whether it is active.
    pub is_active: bool,
}

/// A GUID of a node or port, written as `0002:c903:0000:0001`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32| (self.0 >> shift) & 0xffff;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", part(48), part(32), part(16), part(0))
    }
}

/// Which namespaces see an RDMA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Only the one that it is in.
    Exclusive,
    /// All.
    Shared,
}

/// A connection to the RDMA subsystem of a namespace.
#[derive(Debug)]
pub struct Rdma {
    socket: Socket,
    /// Where the socket is.
    namespace: Namespace,
}

impl Rdma {
    /// Opens a connection inside a namespace. `None` if the kernel has no RDMA.
    pub fn open(namespace: &Namespace) -> Result<Option<Self>> {
        match Socket::open(namespace, NETLINK_RDMA, TIMEOUT) {
            Ok(socket) => Ok(Some(Self { socket, namespace: namespace.try_clone()? })),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the devices that the namespace sees.
    pub fn devices(&mut self) -> Result<Vec<Device>> {
        let operation = format_args!("list RDMA devices");
        self.socket.dump(operation, CMD_GET, &[], |bytes| device(bytes).map(Some))
    }

    /// Returns a device by its index, or `None`.
    pub fn device(&mut self, index: u32) -> Result<Option<Device>> {
        let payload = Attributes::default().u32(ATTR_DEV_INDEX, index).finish();
        let found = self.socket.get(format_args!("get RDMA device with index {index}"), CMD_GET, &payload, device);
        match found {
            // The kernel's answer to an index that does not exist in this namespace.
            Err(error) if error.errno() == Some(crate::Errno::INVAL) => Ok(None),
            found => found,
        }
    }

    /// Returns the ports of a device.
    pub fn ports(&mut self, device: &Device) -> Result<Vec<Port>> {
        let payload = Attributes::default().u32(ATTR_DEV_INDEX, device.index).finish();
        let operation = format_args!("list ports of RDMA device {}", device.name);
        self.socket.dump(operation, CMD_PORT_GET, &payload, |bytes| port(bytes).map(Some))
    }

    /// Returns the system's mode. Kernels without modes (before 5.2) are in shared mode.
    pub fn mode(&mut self) -> Result<Mode> {
        let read = |bytes: &[u8]| mode(bytes);
        match self.socket.get(format_args!("get the RDMA network namespace mode"), CMD_SYS_GET, &[], read) {
            Ok(mode) => Ok(mode.unwrap_or(Mode::Shared)),
            Err(error) if error.errno() == Some(crate::Errno::INVAL) || error.is_unsupported() => Ok(Mode::Shared),
            Err(error) => Err(error),
        }
    }

    /// Moves a device to another namespace. Only in exclusive mode.
    ///
    /// The kernel closes what processes have open of the device.
    pub fn move_to(&mut self, device: &Device, namespace: &Namespace) -> Result<()> {
        let descriptor = namespace.as_fd().as_raw_fd().cast_unsigned();
        let payload = Attributes::default().u32(ATTR_DEV_INDEX, device.index).u32(ATTR_NET_NS_FD, descriptor).finish();
        let operation = format!("move RDMA device {} to network namespace {}", device.name, namespace.path().display());
        // The kernel looks for the device in the namespace of the thread, and not in that of the socket.
        let Self { socket, namespace: from } = self;
        from.run(|| socket.change(format_args!("{operation}"), CMD_SET, 0, &payload))?
    }
}

pub(crate) fn device(payload: &[u8]) -> Result<Device, DecodeError> {
    let mut device = Device { index: 0, name: String::new(), node_guid: Guid(0), protocol: None };
    for attribute in attributes(payload, 0) {
        let attribute = attribute?;
        match attribute.kind {
            ATTR_DEV_INDEX => device.index = attribute.u32()?,
            ATTR_DEV_NAME => device.name = attribute.text(),
            ATTR_NODE_GUID => device.node_guid = guid(attribute)?,
            ATTR_DEV_PROTOCOL => device.protocol = Some(attribute.text()),
            _ => {}
        }
    }
    Ok(device)
}

fn guid(attribute: Attribute<'_>) -> Result<Guid, DecodeError> {
    attribute.u64().map(Guid)
}

pub(crate) fn port(payload: &[u8]) -> Result<Port, DecodeError> {
    let mut port = Port { number: 0, interface: None, interface_name: None, is_active: false };
    for attribute in attributes(payload, 0) {
        let attribute = attribute?;
        match attribute.kind {
            ATTR_PORT_INDEX => port.number = attribute.u32()?,
            ATTR_NDEV_INDEX => port.interface = Some(attribute.u32()?),
            ATTR_NDEV_NAME => port.interface_name = Some(attribute.text()),
            ATTR_PORT_STATE => port.is_active = attribute.u8()? == PORT_ACTIVE,
            _ => {}
        }
    }
    Ok(port)
}

pub(crate) fn mode(payload: &[u8]) -> Result<Mode, DecodeError> {
    for attribute in attributes(payload, 0) {
        let attribute = attribute?;
        if attribute.kind == ATTR_SYS_NETNS_MODE && attribute.u8()? == 0 {
            return Ok(Mode::Exclusive);
        }
    }
    Ok(Mode::Shared)
}
