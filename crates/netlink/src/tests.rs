//! Messages that `netlink-packet-route` writes are read here, and no bytes at all make reading panic.

use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoMacVlan, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
    MacVlanMode, Prop, State, XdpAttached,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteNextHop, RouteType as KernelType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use crate::connection::encode;
use crate::link::{self, LinkKind, MacvlanMode, OperationalState};
use crate::{BusAddress, Parent, address, rdma, route, rule, wire};

fn link_message() -> Vec<u8> {
    let mut message = LinkMessage::default();
    message.header.index = 7;
    message.header.link_layer_type = LinkLayerType::Ether;
    message.header.flags = LinkFlags::Up | LinkFlags::Running;
    let data = InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Passthrough)]);
    message.attributes = vec![
        LinkAttribute::IfName("enp3s0".to_owned()),
        LinkAttribute::PropList(vec![Prop::AltIfName("a-longer-name-of-it".to_owned())]),
        LinkAttribute::IfAlias("uplink".to_owned()),
        LinkAttribute::Address(vec![2, 0, 0x5e, 0x10, 0, 1]),
        LinkAttribute::PermAddress(vec![2, 0, 0x5e, 0x10, 0, 2]),
        LinkAttribute::ParentDevBusName("pci".to_owned()),
        LinkAttribute::ParentDevName("0000:03:00.0".to_owned()),
        LinkAttribute::Mtu(9000),
        LinkAttribute::MinMtu(68),
        LinkAttribute::MaxMtu(0),
        LinkAttribute::Link(3),
        LinkAttribute::LinkNetNsId(-1),
        LinkAttribute::Controller(4),
        LinkAttribute::OperState(State::LowerLayerDown),
        LinkAttribute::Carrier(1),
        LinkAttribute::Xdp(vec![LinkXdp::Attached(XdpAttached::Driver)]),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::MacVlan), LinkInfo::Data(data)]),
    ];
    encode(&message)
}

#[test]
fn an_interface_is_read_as_it_was_written() {
    let link = link::decode(&link_message()).unwrap();
    assert_eq!((link.index, link.name.as_str(), link.layer), (7, "enp3s0", 1));
    assert_eq!((link.alt_names, link.alias.as_deref()), (vec!["a-longer-name-of-it".to_owned()], Some("uplink")));
    assert_eq!(link.address.unwrap().to_string(), "02:00:5e:10:00:01");
    assert_eq!(link.permanent_address.unwrap().to_string(), "02:00:5e:10:00:02");
    assert_eq!(link.device, Some(BusAddress { bus: "pci".to_owned(), name: "0000:03:00.0".to_owned() }));
    assert_eq!((link.mtu, link.min_mtu, link.max_mtu), (9000, Some(68), None));
    assert_eq!(link.parent, Some(Parent { index: 3, namespace: Some(-1) }));
    assert_eq!((link.master, link.state), (Some(4), OperationalState::LowerLayerDown));
    assert!(link.is_up && link.is_running && !link.is_loopback && link.has_xdp && link.carrier == Some(true));
    assert_eq!(link.kind, LinkKind::Macvlan { mode: MacvlanMode::Passthru });
}

#[test]
fn an_interface_of_an_unknown_kind_or_without_the_data_of_its_kind_is_still_read() {
    let kind = |info: Vec<LinkInfo>| {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::LinkInfo(info)];
        link::decode(&encode(&message)).unwrap().kind
    };
    assert_eq!(
        kind(vec![LinkInfo::Kind(InfoKind::Other("quantum".to_owned()))]),
        LinkKind::Other("quantum".to_owned())
    );
    assert_eq!(kind(vec![LinkInfo::Kind(InfoKind::Vlan)]), LinkKind::Other("vlan".to_owned()));
    let data = LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(42)]));
    assert_eq!(kind(vec![LinkInfo::Kind(InfoKind::Vlan), data]), LinkKind::Vlan { id: 42 });
    assert_eq!(kind(Vec::new()), LinkKind::Device);
}

fn address_message() -> Vec<u8> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 24;
    message.attributes = vec![
        AddressAttribute::Address("192.0.2.2".parse().unwrap()),
        AddressAttribute::Local("192.0.2.1".parse().unwrap()),
        AddressAttribute::Label("enp3s0:1".to_owned()),
    ];
    encode(&message)
}

fn route_message() -> Vec<u8> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.kind = KernelType::Unicast;
    let hop = |index, gateway: &str| {
        let mut hop = RouteNextHop::default();
        hop.interface_index = index;
        hop.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(gateway.parse().unwrap()))];
        hop
    };
    message.attributes = vec![
        RouteAttribute::Table(100_000),
        RouteAttribute::MultiPath(vec![hop(3, "192.0.2.1"), hop(4, "198.51.100.1")]),
    ];
    encode(&message)
}

#[test]
fn a_default_route_with_two_routers_uses_both_interfaces() {
    let route = route::decode(&route_message()).unwrap().unwrap();
    assert!(route.is_default() && route.uses(3) && route.uses(4) && !route.uses(5));
    assert_eq!((route.table, route.gateway), (100_000, Some("192.0.2.1".parse().unwrap())));
}

fn rule_message() -> Vec<u8> {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.action = RuleAction::ToTable;
    message.header.src_len = 64;
    message.attributes = vec![RuleAttribute::Source("2001:db8::".parse().unwrap()), RuleAttribute::Table(77)];
    encode(&message)
}

/// Attributes of RDMA messages: a name, a GUID, a port with its interface, the mode.
fn rdma_message() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut attribute = |kind: u16, value: &[u8]| {
        bytes.extend((4 + value.len() as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(wire::align(bytes.len(), 4), 0);
    };
    attribute(1, &5_u32.to_ne_bytes());
    attribute(2, b"mlx5_0\0");
    attribute(6, &0x0002_c903_0000_0001_u64.to_ne_bytes());
    attribute(3, &1_u32.to_ne_bytes());
    attribute(50, &7_u32.to_ne_bytes());
    attribute(12, &[4]);
    attribute(66, &[0]);
    bytes
}

#[test]
fn an_rdma_device_is_read() {
    let bytes = rdma_message();
    let device = rdma::device(&bytes).unwrap();
    assert_eq!((device.index, device.name.as_str()), (5, "mlx5_0"));
    assert_eq!(device.node_guid.to_string(), "0002:c903:0000:0001");
    let port = rdma::port(&bytes).unwrap();
    assert_eq!((port.number, port.interface, port.is_active), (1, Some(7), true));
    assert_eq!(rdma::mode(&bytes).unwrap(), rdma::Mode::Exclusive);
    assert_eq!(rdma::mode(&[]).unwrap(), rdma::Mode::Shared, "an old kernel does not tell");
}

#[test]
fn no_bytes_make_reading_panic() {
    let samples = [link_message(), address_message(), route_message(), rule_message(), rdma_message()];
    let read = |bytes: &[u8]| {
        drop(link::decode(bytes));
        drop(address::decode(bytes));
        drop(route::decode(bytes));
        drop(rule::decode(bytes));
        drop(rdma::device(bytes));
        drop(rdma::port(bytes));
        drop(rdma::mode(bytes));
        wire::messages(bytes).for_each(drop);
    };
    for sample in samples {
        for length in 0..sample.len() {
            read(&sample[..length]);
        }
        for position in 0..sample.len() {
            for value in [0, 1, 3, 4, 5, 0x7f, 0x80, 0xff] {
                let mut bytes = sample.clone();
                bytes[position] = value;
                read(&bytes);
            }
        }
    }
}
