//! Namespaces that vanish: the kernel gives devices back to the initial namespace and deletes virtual interfaces. What the
//! driver finds then is what is checked here.

use anyhow::{Context, Result, ensure};
use drakkar_netlink::{
    Child, HardwareAddress, IpvlanFlag, IpvlanMode, Link, LinkChange, LinkKind, MacvlanMode, NewLink, NewLinkKind,
    VlanProtocol,
};

use super::{Network, make_functions, modprobe_with};
use crate::ensure_eq;
use crate::guest::{Guest, wait};

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    modprobe_with("dummy", &["numdummies=0"])?;
    let mut host = Network::host()?;
    let card = host.device(guest.address("nic0")?)?;
    host.set_up(&card)?;
    virtual_interfaces(&mut host, &card)?;
    let function = make_functions(guest, 1)?[0];
    for address in [guest.address("nic1")?, function] {
        let device = host.device(address)?;
        println!("{device:?}");
        returns(&mut host, &device, address == function)?;
        returns_to_a_taken_name(&mut host, &device)?;
    }
    unplugged(guest, &mut host)
}

/// Those die with their namespace, and nothing of them is left on the host.
fn virtual_interfaces(host: &mut Network, card: &Link) -> Result<()> {
    let before = host.names()?;
    let child = |child| NewLinkKind::Child { parent: card.index, child };
    let whole = child(Child::Macvlan { mode: MacvlanMode::Passthru });
    let vlan = child(Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Q });
    // Each with what can be made only when it is gone.
    let kinds = [
        (NewLinkKind::Dummy, NewLinkKind::Dummy),
        (vlan, vlan),
        (child(Child::Macvlan { mode: MacvlanMode::Bridge }), whole),
        (child(Child::Ipvlan { mode: IpvlanMode::L2, flag: IpvlanFlag::Bridge }), whole),
    ];
    for (kind, next) in kinds {
        let mut pod = Network::new()?;
        let new = NewLink { namespace: Some(&pod.namespace), up: true, ..NewLink::new("net1", kind) };
        host.connection.create_link(&new)?;
        ensure!(pod.link("net1")?.kind.dies_with_its_namespace());
        drop(pod);
        wait("the parent to be free", || Ok(host.connection.create_link(&NewLink::new("next", next)).is_ok()))?;
        let next = host.link("next")?;
        host.connection.delete_link(&next)?;
        ensure_eq!(host.names()?, before, "{kind}");
    }
    Ok(())
}

/// A device comes back with the name, MTU, hardware address and alias that it had in the pod, down and without addresses.
///
/// The permanent hardware address of a virtual function is no identity: its driver takes the current one for it.
fn returns(host: &mut Network, device: &Link, is_function: bool) -> Result<()> {
    let mut pod = Network::new()?;
    let mac: HardwareAddress = "02:00:5e:10:00:07".parse()?;
    let there = LinkChange {
        namespace: Some(&pod.namespace),
        name: Some("net1"),
        mtu: Some(1400),
        address: Some(&mac),
        alias: Some("claim default/a"),
        up: Some(true),
        ..LinkChange::default()
    };
    host.connection.change_link(device, &there)?;
    let moved = pod.link("net1")?;
    pod.add(&moved, "192.0.2.1/24")?;
    ensure!(!host.names()?.contains(&device.name));
    drop(pod);
    wait("the device to return", || Ok(host.connection.link_by_name("net1")?.is_some()))?;
    let back = host.link("net1")?;
    ensure_eq!((back.mtu, back.address.as_ref(), back.is_up), (1400, Some(&mac), false));
    ensure_eq!(back.alias.as_deref(), Some("claim default/a"));
    ensure_eq!(back.device, device.device);
    let permanent = if is_function { Some(&mac) } else { device.permanent_address.as_ref() };
    ensure_eq!(back.permanent_address.as_ref(), permanent);
    ensure_eq!(host.connection.addresses_of(back.index)?, []);
    println!("{}: index {} on the host, {} in the pod, {} after", device.name, device.index, moved.index, back.index);
    let former = LinkChange {
        name: Some(&device.name),
        mtu: Some(device.mtu),
        address: device.address.as_ref(),
        alias: Some(""),
        ..LinkChange::default()
    };
    host.connection.change_link(&back, &former)?;
    Ok(())
}

/// If the host has that name by now, the device is called by its index. Both happen to two pods with the same name inside.
fn returns_to_a_taken_name(host: &mut Network, device: &Link) -> Result<()> {
    let mut pod = Network::new()?;
    let moved = host.give(device, &mut pod, "net1")?;
    let taken = host.create("net1", NewLinkKind::Dummy)?;
    drop(pod);
    let mut back = None;
    wait("the device to return", || {
        let links = host.connection.links()?;
        back = links.into_iter().find(|link| link.device == device.device && link.kind == LinkKind::Device);
        Ok(back.is_some())
    })?;
    let back = back.context("it was found")?;
    ensure_eq!(back.name, format!("dev{}", moved.index));
    host.connection.change_link(&back, &LinkChange { name: Some(&device.name), ..LinkChange::default() })?;
    Ok(host.connection.delete_link(&taken)?)
}

/// A card that is unplugged while it is in a pod is gone from there.
fn unplugged(guest: &mut Guest, host: &mut Network) -> Result<()> {
    let mut pod = Network::new()?;
    let card = host.device(guest.address("nic1")?)?;
    let moved = host.give(&card, &mut pod, "net1")?;
    guest.unplug("nic1")?;
    wait("the card to be gone", || Ok(pod.connection.link_by_name("net1")?.is_none()))?;
    let change = LinkChange { namespace: Some(&host.namespace), ..LinkChange::default() };
    let error = pod.connection.change_link(&moved, &change).err().context("it is gone")?;
    println!("of an unplugged card: {error}");
    ensure!(error.is_not_found());
    Ok(())
}
