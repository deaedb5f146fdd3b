//! Reads an interface from a message of the kernel.

use netlink_packet_core::DecodeError;

use super::{BusAddress, IpvlanMode, Link, LinkKind, MacvlanMode, OperationalState, Parent};
use crate::hardware::HardwareAddress;
use crate::wire::{Attribute, attributes, u16_at, u32_at};

const HEADER: usize = 16;

const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 1 << 3;
const IFF_RUNNING: u32 = 1 << 6;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_MIN_MTU: u16 = 50;
const IFLA_MAX_MTU: u16 = 51;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;

const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;

pub(crate) fn decode(payload: &[u8]) -> Result<Link, DecodeError> {
    let flags = u32_at(payload, 8)?;
    let is_set = |flag: u32| flags & flag != 0;
    let mut link = Link {
        index: u32_at(payload, 4)?,
        name: String::new(),
        alt_names: Vec::new(),
        alias: None,
        address: None,
        permanent_address: None,
        device: None,
        mtu: 0,
        min_mtu: None,
        max_mtu: None,
        kind: LinkKind::Device,
        layer: u16_at(payload, 2)?,
        parent: None,
        master: None,
        state: OperationalState::Unknown,
        is_up: is_set(IFF_UP),
        is_running: is_set(IFF_RUNNING),
        is_loopback: is_set(IFF_LOOPBACK),
        carrier: None,
        has_xdp: false,
    };
    let mut parent = None;
    let mut parent_namespace = None;
    let mut device = BusAddress { bus: String::new(), name: String::new() };
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_IFNAME => link.name = attribute.text(),
            IFLA_ADDRESS => link.address = HardwareAddress::new(attribute.value).ok(),
            IFLA_PERM_ADDRESS => link.permanent_address = permanent(attribute),
            IFLA_MTU => link.mtu = attribute.u32()?,
            IFLA_MIN_MTU => link.min_mtu = Some(attribute.u32()?),
            IFLA_MAX_MTU => link.max_mtu = Some(attribute.u32()?).filter(|mtu| *mtu != 0),
            IFLA_LINK => parent = Some(attribute.u32()?),
            IFLA_LINK_NETNSID => parent_namespace = Some(attribute.i32()?),
            IFLA_MASTER => link.master = Some(attribute.u32()?),
            IFLA_OPERSTATE => link.state = operational(attribute.u8()?),
            IFLA_CARRIER => link.carrier = Some(attribute.u8()? != 0),
            IFLA_IFALIAS => link.alias = Some(attribute.text()).filter(|alias| !alias.is_empty()),
            IFLA_LINKINFO => link.kind = kind(attribute)?,
            IFLA_PROP_LIST => link.alt_names = alt_names(attribute)?,
            IFLA_PARENT_DEV_NAME => device.name = attribute.text(),
            IFLA_PARENT_DEV_BUS_NAME => device.bus = attribute.text(),
            IFLA_XDP => link.has_xdp = xdp(attribute)?,
            _ => {}
        }
    }
    // A tunnel's parent is 0 if it has none.
    let parent = parent.filter(|index| *index != 0 && (*index != link.index || parent_namespace.is_some()));
    link.parent = parent.map(|index| Parent { index, namespace: parent_namespace });
    link.device = Some(device).filter(|device| !device.name.is_empty());
    Ok(link)
}

fn permanent(attribute: Attribute<'_>) -> Option<HardwareAddress> {
    HardwareAddress::new(attribute.value).ok().filter(|address| !address.is_zero())
}

fn alt_names(attribute: Attribute<'_>) -> Result<Vec<String>, DecodeError> {
    let mut names = Vec::new();
    for property in attribute.nested() {
        let property = property?;
        if property.kind == IFLA_ALT_IFNAME {
            names.push(property.text());
        }
    }
    Ok(names)
}

fn xdp(attribute: Attribute<'_>) -> Result<bool, DecodeError> {
    for part in attribute.nested() {
        let part = part?;
        if part.kind == IFLA_XDP_ATTACHED {
            return Ok(part.u8()? != 0);
        }
    }
    Ok(false)
}

fn kind(attribute: Attribute<'_>) -> Result<LinkKind, DecodeError> {
    let mut name = None;
    let mut data = None;
    for part in attribute.nested() {
        let part = part?;
        match part.kind {
            IFLA_INFO_KIND => name = Some(part.text()),
            IFLA_INFO_DATA => data = Some(part),
            _ => {}
        }
    }
    // A device that belongs to a bridge has link information, too, but no kind of its own.
    let Some(name) = name else { return Ok(LinkKind::Device) };
    Ok(match name.as_str() {
        "veth" => LinkKind::Veth,
        "dummy" => LinkKind::Dummy,
        "bridge" => LinkKind::Bridge,
        "bond" => LinkKind::Bond,
        "vxlan" => LinkKind::Vxlan,
        "tun" => LinkKind::Tun,
        "vlan" => match datum(data, IFLA_VLAN_ID)? {
            Some(id) => LinkKind::Vlan { id: id.u16()? },
            None => LinkKind::Other(name),
        },
        "macvlan" => {
            match datum(data, IFLA_MACVLAN_MODE)?.map(Attribute::u32).transpose()?.and_then(MacvlanMode::from_kernel) {
                Some(mode) => LinkKind::Macvlan { mode },
                None => LinkKind::Other(name),
            }
        }
        "ipvlan" => {
            match datum(data, IFLA_IPVLAN_MODE)?.map(Attribute::u16).transpose()?.and_then(IpvlanMode::from_kernel) {
                Some(mode) => LinkKind::Ipvlan { mode },
                None => LinkKind::Other(name),
            }
        }
        _ => LinkKind::Other(name),
    })
}

fn datum(data: Option<Attribute<'_>>, kind: u16) -> Result<Option<Attribute<'_>>, DecodeError> {
    let Some(data) = data else { return Ok(None) };
    for part in data.nested() {
        let part = part?;
        if part.kind == kind {
            return Ok(Some(part));
        }
    }
    Ok(None)
}

fn operational(number: u8) -> OperationalState {
    match number {
        1 => OperationalState::NotPresent,
        2 => OperationalState::Down,
        3 => OperationalState::LowerLayerDown,
        4 => OperationalState::Testing,
        5 => OperationalState::Dormant,
        6 => OperationalState::Up,
        _ => OperationalState::Unknown,
    }
}
