//! Two namespaces talk over interfaces of each kind that were moved into them or made there.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drakkar_netlink::{
    Child, IpvlanFlag, IpvlanMode, Link, MacvlanMode, Namespace, NewLink, NewLinkKind, NewRoute, VlanProtocol,
};

use super::{Network, make_functions};
use crate::guest::{Guest, wait};

const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before a datagram is sent again: the first ones wait for address resolution, and any can be lost.
const AGAIN: Duration = Duration::from_millis(200);

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let mut host = Network::host()?;
    let cards = [host.device(guest.address("nic0")?)?, host.device(guest.address("nic1")?)?];
    for card in &cards {
        host.set_up(card)?;
    }
    // On one card, through the kernel.
    for mode in [IpvlanMode::L2, IpvlanMode::L3, IpvlanMode::L3s] {
        children(&mut host, [&cards[0]; 2], Child::Ipvlan { mode, flag: IpvlanFlag::Bridge })?;
    }
    children(&mut host, [&cards[0]; 2], Child::Macvlan { mode: MacvlanMode::Bridge })?;
    // Between two cards, over the cable.
    children(&mut host, [&cards[0], &cards[1]], Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Q })?;
    children(&mut host, [&cards[0], &cards[1]], Child::Macvlan { mode: MacvlanMode::Vepa })?;
    children(&mut host, [&cards[0], &cards[1]], Child::Ipvlan { mode: IpvlanMode::L2, flag: IpvlanFlag::Vepa })?;

    let physical = host.device(guest.address("sriov")?)?;
    host.set_up(&physical)?;
    let functions = make_functions(guest, 2)?;
    let functions = [host.device(functions[0])?, host.device(functions[1])?];
    let names = [functions[0].name.clone(), functions[1].name.clone()];
    let back = moved(&mut host, &[&functions[0], &functions[1]], "two virtual functions of one card")?;
    ensure!(back == names, "{back:?}");
    let back = moved(&mut host, &[&functions[0], &cards[1]], "a virtual function and another card")?;
    ensure!(back == [&functions[0].name, &cards[1].name].map(String::clone), "{back:?}");
    Ok(())
}

/// Two interfaces on top of cards, each in a namespace.
fn children(host: &mut Network, parents: [&Link; 2], child: Child) -> Result<()> {
    let (mut one, mut two) = (Network::new()?, Network::new()?);
    for (network, parent) in [(&one, parents[0]), (&two, parents[1])] {
        let kind = NewLinkKind::Child { parent: parent.index, child };
        let new = NewLink { namespace: Some(&network.namespace), up: true, ..NewLink::new("net1", kind) };
        host.connection.create_link(&new)?;
    }
    talk(&mut one, &mut two, &format!("{child:?} on {} and {}", parents[0].name, parents[1].name))?;
    // The kernel deletes them some time after their namespaces end, and until then ipvlan refuses the same address on their parent.
    for network in [&mut one, &mut two] {
        let link = network.link("net1")?;
        network.connection.delete_link(&link)?;
    }
    Ok(())
}

/// Two interfaces that are moved, each into a namespace, and back. Returns their names then.
fn moved(host: &mut Network, links: &[&Link; 2], what: &str) -> Result<[String; 2]> {
    let (mut one, mut two) = (Network::new()?, Network::new()?);
    let left = host.give(links[0], &mut one, "net1")?;
    let right = host.give(links[1], &mut two, "net1")?;
    one.set_up(&left)?;
    two.set_up(&right)?;
    talk(&mut one, &mut two, what)?;
    Ok([one.give(&left, host, &links[0].name)?.name, two.give(&right, host, &links[1].name)?.name])
}

/// Gives the interfaces `net1` of two namespaces addresses, and sends datagrams both ways.
fn talk(one: &mut Network, two: &mut Network, what: &str) -> Result<()> {
    println!("{what}");
    for (network, address) in [(&mut *one, 1), (&mut *two, 2)] {
        let link = network.link("net1")?;
        network.add(&link, &format!("192.0.2.{address}/24"))?;
        network.add(&link, &format!("2001:db8::{address}/64"))?;
        let route =
            NewRoute { gateway: Some("192.0.2.254".parse()?), ..NewRoute::new("0.0.0.0/0".parse()?, link.index) };
        network.connection.add_route(&route)?;
    }
    for (left, right) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        exchange(&one.namespace, left.parse()?, &two.namespace, right.parse()?)
            .with_context(|| format!("{what}: {left} and {right}"))?;
    }
    Ok(())
}

/// Sends a datagram from one namespace to another, and its answer back. Each comes from the sender's address.
pub(crate) fn exchange(one: &Namespace, left: IpAddr, two: &Namespace, right: IpAddr) -> Result<()> {
    let bind = |namespace: &Namespace, address: IpAddr| -> Result<UdpSocket> {
        // An address can be used when duplicate address detection is over.
        let mut socket = None;
        wait(&format!("{address} to be usable"), || {
            socket = namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 0)))?.ok();
            Ok(socket.is_some())
        })?;
        let socket = socket.context("it was bound")?;
        socket.set_read_timeout(Some(AGAIN))?;
        Ok(socket)
    };
    let (left, right) = (bind(one, left)?, bind(two, right)?);
    for (sender, receiver, text) in [(&left, &right, "request"), (&right, &left, "answer")] {
        let from = deliver(sender, receiver, text)?;
        ensure!(from == sender.local_addr()?, "{text} from {from}");
    }
    Ok(())
}

/// Sends a datagram until it arrives. Returns its sender.
fn deliver(sender: &UdpSocket, receiver: &UdpSocket, text: &str) -> Result<SocketAddr> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        sender.send_to(text.as_bytes(), receiver.local_addr()?)?;
        let mut buffer = [0; 100];
        match receiver.recv_from(&mut buffer) {
            Ok((length, from)) => {
                ensure!(buffer.get(..length) == Some(text.as_bytes()));
                return Ok(from);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context("receive"),
        }
        ensure!(Instant::now() < deadline, "no {text} within {} s", PATIENCE.as_secs());
    }
}
