//! Interfaces of all kinds: made, moved with another name, MTU and hardware address, and read as iproute2 reads them.

use anyhow::{Context, Result, ensure};
use drakkar_netlink::{
    Child, Errno, HardwareAddress, IpvlanFlag, IpvlanMode, LinkChange, LinkKind, MacvlanMode, NewLink, NewLinkKind,
    VlanProtocol,
};

use super::iproute::Iproute;
use super::{Network, modprobe_with};
use crate::ensure_eq;
use crate::guest::Guest;

const MAC: &str = "02:00:5e:10:00:01";

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let iproute = Iproute::new()?;
    let mut host = Network::host()?;
    let parent = host.device(guest.address("nic0")?)?;
    println!("{parent:?}");
    host.set_up(&parent)?;
    iproute.compare_links(&mut host)?;
    dummy(&iproute, &mut host)?;
    children(&iproute, &mut host, parent.index)?;
    sharing(&mut host, parent.index)?;
    physical(&iproute, guest, &mut host)?;
    bond(&iproute, guest, &mut host)
}

fn dummy(iproute: &Iproute, host: &mut Network) -> Result<()> {
    let refused = host.create("dummy1", NewLinkKind::Dummy).err().context("the module dummy is not loaded")?;
    println!("without the module: {refused}");
    ensure!(refused.downcast_ref::<drakkar_netlink::Error>().is_some_and(drakkar_netlink::Error::is_unsupported));
    modprobe_with("dummy", &["numdummies=0"])?;
    let mut pod = Network::new()?;
    let dummy = host.create("dummy1", NewLinkKind::Dummy)?;
    ensure_eq!(dummy.kind, LinkKind::Dummy);
    let mac: HardwareAddress = MAC.parse()?;
    let change = LinkChange {
        namespace: Some(&pod.namespace),
        name: Some("net1"),
        mtu: Some(9000),
        address: Some(&mac),
        alias: Some("claim default/a"),
        up: Some(true),
        ..LinkChange::default()
    };
    host.connection.change_link(&dummy, &change)?;
    let moved = pod.link("net1")?;
    ensure_eq!((moved.mtu, moved.address.as_ref(), moved.is_up), (9000, Some(&mac), true));
    ensure_eq!(moved.alias.as_deref(), Some("claim default/a"));
    ensure_eq!(moved.index, dummy.index, "a free index is kept");
    iproute.compare(&mut pod)
}

/// All kinds that are on top of a parent, each made directly in a pod, where iproute2 sees the same.
fn children(iproute: &Iproute, host: &mut Network, parent: u32) -> Result<()> {
    let mut all = vec![];
    for protocol in [VlanProtocol::Dot1Q, VlanProtocol::Dot1Ad] {
        all.push((Child::Vlan { id: 42, protocol }, LinkKind::Vlan { id: 42 }));
    }
    for mode in
        [MacvlanMode::Private, MacvlanMode::Vepa, MacvlanMode::Bridge, MacvlanMode::Passthru, MacvlanMode::Source]
    {
        all.push((Child::Macvlan { mode }, LinkKind::Macvlan { mode }));
    }
    for mode in [IpvlanMode::L2, IpvlanMode::L3, IpvlanMode::L3s] {
        for flag in [IpvlanFlag::Bridge, IpvlanFlag::Private, IpvlanFlag::Vepa] {
            all.push((Child::Ipvlan { mode, flag }, LinkKind::Ipvlan { mode }));
        }
    }
    let mut pod = Network::new()?;
    for (child, kind) in all {
        let new = NewLink {
            namespace: Some(&pod.namespace),
            mtu: Some(1400),
            up: true,
            ..NewLink::new("net1", NewLinkKind::Child { parent, child })
        };
        host.connection.create_link(&new)?;
        let link = pod.link("net1")?;
        ensure_eq!((&link.kind, link.mtu, link.is_up), (&kind, 1400, true), "{child:?}");
        let found = link.parent.context("a parent")?;
        ensure!(found.index == parent && found.namespace.is_some(), "{found:?}");
        let seen = iproute.compare_links(&mut pod)?;
        let seen = seen.iter().find(|link| link["ifname"] == "net1").context("net1")?;
        let data = &seen["linkinfo"]["info_data"];
        match child {
            Child::Vlan { protocol, .. } => ensure_eq!(data["protocol"], serde_json::to_value(protocol)?),
            Child::Ipvlan { flag, .. } => {
                let name = serde_json::to_value(flag)?;
                ensure_eq!(data[name.as_str().unwrap_or_default()], true, "{flag:?} in {data}");
            }
            _ => {}
        }
        pod.connection.delete_link(&link)?;
    }
    Ok(())
}

/// What the interfaces of one parent have in common, which a driver that shares it has to know.
fn sharing(host: &mut Network, parent: u32) -> Result<()> {
    let kind = |child| NewLinkKind::Child { parent, child };
    let ipvlan = |mode, flag| kind(Child::Ipvlan { mode, flag });
    let macvlan = |mode| kind(Child::Macvlan { mode });

    // The mode and the flag of ipvlan are the parent's: those of the last one are those of all.
    let first = host.create("first", ipvlan(IpvlanMode::L2, IpvlanFlag::Bridge))?;
    let second = host.create("second", ipvlan(IpvlanMode::L3, IpvlanFlag::Bridge))?;
    ensure_eq!(host.link("first")?.kind, LinkKind::Ipvlan { mode: IpvlanMode::L3 });
    ensure_eq!(first.address, second.address, "ipvlan has the parent's hardware address");
    let mac: HardwareAddress = MAC.parse()?;
    let change = LinkChange { address: Some(&mac), ..LinkChange::default() };
    let refused = host.connection.change_link(&first, &change).err().context("the parent's hardware address")?;
    println!("a hardware address of an ipvlan: {refused}");
    ensure_eq!(refused.errno(), Some(Errno::OPNOTSUPP));

    // A parent has macvlan interfaces or ipvlan interfaces.
    let refused = host.create("third", macvlan(MacvlanMode::Bridge)).err().context("an ipvlan parent")?;
    println!("a macvlan on a parent of ipvlan: {refused:#}");
    ensure_eq!(errno(&refused), Some(Errno::BUSY));
    for link in [first, second] {
        host.connection.delete_link(&link)?;
    }
    // One macvlan in mode passthru takes the whole parent.
    let whole = host.create("first", macvlan(MacvlanMode::Passthru))?;
    let refused = host.create("second", macvlan(MacvlanMode::Bridge)).err().context("a parent that is taken")?;
    println!("a macvlan beside one in mode passthru: {refused:#}");
    ensure_eq!(errno(&refused), Some(Errno::INVAL));
    host.connection.delete_link(&whole)?;
    // The same VLAN once.
    let vlan = |id| kind(Child::Vlan { id, protocol: VlanProtocol::Dot1Q });
    let one = host.create("first", vlan(42))?;
    let refused = host.create("second", vlan(42)).err().context("VLAN 42 is there")?;
    println!("the same VLAN again: {refused:#}");
    ensure_eq!(errno(&refused), Some(Errno::EXIST));
    Ok(host.connection.delete_link(&one)?)
}

/// A real card: moved and back in single requests, with the hardware address that it was made with. Its children stay.
fn physical(iproute: &Iproute, guest: &mut Guest, host: &mut Network) -> Result<()> {
    let mut pod = Network::new()?;
    let card = host.device(guest.address("nic1")?)?;
    let permanent = card.permanent_address.clone().context("a permanent hardware address")?;
    ensure_eq!(card.address.as_ref(), Some(&permanent));
    let kind = NewLinkKind::Child { parent: card.index, child: Child::Vlan { id: 7, protocol: VlanProtocol::Dot1Q } };
    let refused = host.create("child", kind).err().context("its parent is down")?;
    println!("a VLAN that is up, on a card that is down: {refused:#}");
    ensure_eq!(errno(&refused), Some(Errno::NETDOWN));
    ensure_eq!(host.connection.link_by_name("child")?, None, "it is not half made");
    host.set_up(&card)?;
    let child = host.create("child", kind)?;
    let mac: HardwareAddress = MAC.parse()?;
    let there = LinkChange {
        namespace: Some(&pod.namespace),
        name: Some("net1"),
        mtu: Some(1400),
        address: Some(&mac),
        ..LinkChange::default()
    };
    host.connection.change_link(&card, &there)?;
    let moved = pod.link("net1")?;
    ensure_eq!((moved.mtu, moved.address.as_ref(), moved.is_up), (1400, Some(&mac), false));
    ensure_eq!((moved.permanent_address.as_ref(), &moved.device), (Some(&permanent), &card.device));
    pod.set_up(&moved)?;
    iproute.compare(&mut pod)?;
    // The child stays behind, and its parent is in another namespace now.
    let parent = host.link("child")?.parent.context("a parent")?;
    ensure!(parent.index == moved.index && parent.namespace.is_some(), "{parent:?}");
    iproute.compare(host)?;
    let back = LinkChange {
        namespace: Some(&host.namespace),
        name: Some(&card.name),
        mtu: Some(card.mtu),
        address: Some(&permanent),
        ..LinkChange::default()
    };
    pod.connection.change_link(&moved, &back)?;
    let again = host.device(guest.address("nic1")?)?;
    ensure_eq!((&again.name, again.mtu, &again.address), (&card.name, card.mtu, &card.address));
    ensure_eq!(host.link("child")?.parent.map(|parent| (parent.index, parent.namespace)), Some((again.index, None)));
    Ok(host.connection.delete_link(&child)?)
}

/// Bonds and bridges stay where they are, and a card that leaves its namespace leaves its bond.
fn bond(iproute: &Iproute, guest: &mut Guest, host: &mut Network) -> Result<()> {
    modprobe_with("bonding", &["max_bonds=0"])?;
    let mut pod = Network::new()?;
    let card = host.device(guest.address("nic1")?)?;
    iproute.run(&host.namespace, "ip link add bond0 type bond mode active-backup")?;
    iproute.run(&host.namespace, &format!("ip link set {} down", card.name))?;
    iproute.run(&host.namespace, &format!("ip link set {} master bond0", card.name))?;
    let bond = host.link("bond0")?;
    ensure_eq!(bond.kind, LinkKind::Bond);
    ensure_eq!(host.link(&card.name)?.master, Some(bond.index));
    iproute.compare_links(host)?;
    let refused = host.give(&bond, &mut pod, "net1").err().context("a bond does not move")?;
    println!("a bond to another namespace: {refused:#}");
    ensure_eq!(errno(&refused), Some(Errno::INVAL));
    let moved = host.give(&card, &mut pod, "net1")?;
    ensure_eq!(moved.master, None);
    let back = pod.give(&moved, host, &card.name)?;
    ensure_eq!(back.master, None);
    Ok(host.connection.delete_link(&bond)?)
}

/// The kernel's error number in an error.
fn errno(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<drakkar_netlink::Error>().and_then(drakkar_netlink::Error::errno)
}
