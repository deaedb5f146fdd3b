//! Looks for another host that has an address, before the address is used.
//!
//! The kernel has no such look for IPv4, so a [`ConflictMonitor`] sends ARP probes (RFC 5227): questions for the address that
//! name no sender, so that nobody's tables change. For IPv6 the kernel does it itself ([`DadState`](crate::DadState)) and tells
//! whether it failed, but not because of whom: that is in the answers, which a monitor sees, too.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{LinkAddr, MsgFlags, recvfrom, sendto};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, eth, socket_with};

use crate::error::{Error, Result};
use crate::hardware::HardwareAddress;
use crate::link::{IpvlanMode, Link, LinkKind};
use crate::namespace::Namespace;

/// The link layer type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;
const ETHERNET_HEADER: usize = 14;
const MAC: usize = 6;
const BROADCAST: [u8; MAC] = [0xff; MAC];
/// Hardware type Ethernet, protocol IPv4, and the lengths of their addresses.
const ARP_OF_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
/// The length of an ARP message about IPv4 over Ethernet, with the frame's header.
const ARP_FRAME: usize = 42;
const IPV6_HEADER: usize = 40;
const ICMPV6: u8 = 58;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// The time to look at what has arrived while a monitor waited.
const DRAIN_TIME: Duration = Duration::from_millis(10);
/// Enough for the headers that are looked at.
const BUFFER: usize = 256;

/// The protocol whose messages a [`ConflictMonitor`] sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictProtocol {
    /// ARP, for IPv4 addresses.
    Arp,
    /// Neighbor discovery, for IPv6 addresses.
    NeighborDiscovery,
}

/// A host that has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The hardware address of the host.
    pub hardware_address: HardwareAddress,
}

/// A socket that sees what other hosts on an interface say of addresses. Needs `CAP_NET_RAW`.
///
/// The kernel lets processors pass a quiescent state, which takes 10 ms and more, when a packet socket that receives is bound to an interface and
/// when it is closed. So the socket is not bound, and skips packets of other interfaces; and a thread of its own closes it.
#[derive(Debug)]
pub struct ConflictMonitor {
    /// `None` only while it is dropped.
    socket: Option<OwnedFd>,
    /// The interface as the recipient of packets.
    interface: LinkAddr,
    name: String,
    own: [u8; MAC],
}

impl Drop for ConflictMonitor {
    fn drop(&mut self) {
        let socket = self.socket.take();
        let closing = thread::Builder::new().name("packet-close".to_owned()).spawn(move || drop(socket));
        if let Err(error) = closing {
            // The socket was closed here instead.
            tracing::debug!(%error, "starting a thread failed");
        }
    }
}

impl ConflictMonitor {
    /// Opens a monitor for an interface of a namespace. `None` if nobody can be asked over it: it is not Ethernet, or packets are
    /// routed to it.
    pub fn open(namespace: &Namespace, link: &Link, protocol: ConflictProtocol) -> Result<Option<Self>> {
        let is_routed = matches!(link.kind, LinkKind::Ipvlan { mode: IpvlanMode::L3 | IpvlanMode::L3s });
        let own = link.address.as_ref().and_then(|address| <[u8; MAC]>::try_from(address.octets()).ok());
        let Some(own) = own.filter(|_| link.layer == ETHERNET && !is_routed && !link.is_loopback) else {
            return Ok(None);
        };
        let protocol = match protocol {
            ConflictProtocol::Arp => eth::ARP,
            ConflictProtocol::NeighborDiscovery => eth::IPV6,
        };
        let opened = namespace.run(|| open(&link.name, protocol))?;
        let name = link.name.clone();
        let (socket, interface) = opened.map_err(|source| failed(&name, "open a packet socket", source))?;
        Ok(Some(Self { socket: Some(socket), interface, name, own }))
    }

    /// Asks once who has an IPv4 address. The interface has to be up.
    pub fn probe(&self, address: Ipv4Addr) -> Result<()> {
        let mut frame = Vec::with_capacity(ARP_FRAME);
        frame.extend(BROADCAST);
        frame.extend(self.own);
        frame.extend([0x08, 0x06]);
        frame.extend(ARP_OF_IPV4);
        frame.extend(ARP_REQUEST);
        frame.extend(self.own);
        frame.extend(Ipv4Addr::UNSPECIFIED.octets());
        frame.extend([0; MAC]);
        frame.extend(address.octets());
        let socket = self.socket()?.as_raw_fd();
        loop {
            match sendto(socket, &frame, &self.interface, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(nix::Error::EINTR) => {}
                Err(errno) => return Err(failed(&self.name, "send an ARP probe", errno.into())),
            }
        }
    }

    fn socket(&self) -> Result<&OwnedFd> {
        self.socket.as_ref().ok_or_else(|| failed(&self.name, "use a packet socket", Errno::BADF.into()))
    }

    /// Waits until another host says that it has one of these addresses, or wants to have it; at most until a moment.
    pub fn wait(&mut self, addresses: &[IpAddr], until: Instant) -> Result<Option<Conflict>> {
        let mut buffer = [0; BUFFER];
        // What has arrived by then is looked at, but not a flood that goes on.
        while Instant::now() < until + DRAIN_TIME {
            let received = match recvfrom::<LinkAddr>(self.socket()?.as_raw_fd(), &mut buffer) {
                Ok((_, from)) if from.is_none_or(|from| from.ifindex() != self.interface.ifindex()) => continue,
                Ok((received, _)) => buffer.get(..received).unwrap_or_default(),
                Err(nix::Error::EAGAIN) if Instant::now() >= until => return Ok(None),
                Err(nix::Error::EAGAIN) => {
                    self.sleep(until)?;
                    continue;
                }
                Err(nix::Error::EINTR) => continue,
                Err(errno) => return Err(failed(&self.name, "receive packets", errno.into())),
            };
            let found = claimed(received).filter(|(address, owner)| *owner != self.own && addresses.contains(address));
            if let Some((address, owner)) = found
                && let Ok(hardware_address) = HardwareAddress::new(owner)
            {
                return Ok(Some(Conflict { address, hardware_address }));
            }
        }
        Ok(None)
    }

    /// Sleeps until something arrives, at most until a moment.
    fn sleep(&self, until: Instant) -> Result<()> {
        let remaining = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(self.socket()?, PollFlags::IN)], remaining.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(failed(&self.name, "wait for packets", errno.into())),
        }
    }
}

/// Opens a socket that sees the packets of one protocol in the calling thread's namespace; returns it with the address of an interface.
fn open(name: &str, protocol: Protocol) -> io::Result<(OwnedFd, LinkAddr)> {
    // The address of an interface as the system lists it has the index.
    let interface: Option<LinkAddr> = nix::ifaddrs::getifaddrs()?
        .filter(|interface| interface.interface_name == name)
        .find_map(|interface| interface.address?.as_link_addr().copied());
    let interface = interface.ok_or_else(|| io::Error::from(Errno::NODEV))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok((socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol))?, interface))
}

/// Returns the address that the sender of a frame says to have or wants to have, and the sender's hardware address.
fn claimed(frame: &[u8]) -> Option<(IpAddr, [u8; MAC])> {
    let sender = mac(frame, MAC)?;
    match frame.get(12..ETHERNET_HEADER)? {
        [0x08, 0x06] => {
            let arp = frame.get(ETHERNET_HEADER..ARP_FRAME).filter(|arp| arp.starts_with(&ARP_OF_IPV4))?;
            let owner = ipv4(arp, 14)?;
            let is_probe = owner.is_unspecified() && arp.get(6..8)? == ARP_REQUEST;
            Some((if is_probe { ipv4(arp, 24)? } else { owner }.into(), mac(arp, 8)?))
        }
        [0x86, 0xdd] => {
            let packet = frame.get(ETHERNET_HEADER..)?;
            let message = packet.get(IPV6_HEADER..).filter(|_| packet.get(6) == Some(&ICMPV6))?;
            let is_unspecified = ipv6(packet, 8)?.is_unspecified();
            let is_claim = match *message.first()? {
                NEIGHBOR_ADVERTISEMENT => true,
                // The other host looks for duplicates itself.
                NEIGHBOR_SOLICITATION => is_unspecified,
                _ => false,
            };
            is_claim.then(|| Some((ipv6(message, 8)?.into(), sender))).flatten()
        }
        _ => None,
    }
}

fn mac(bytes: &[u8], offset: usize) -> Option<[u8; MAC]> {
    bytes.get(offset..offset + MAC)?.try_into().ok()
}

fn ipv4(bytes: &[u8], offset: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.get(offset..offset + 4)?.try_into().ok()?;
    Some(octets.into())
}

fn ipv6(bytes: &[u8], offset: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(offset..offset + 16)?.try_into().ok()?;
    Some(octets.into())
}

fn failed(name: &str, operation: &str, source: io::Error) -> Error {
    Error::Packet { operation: format!("interface {name}: {operation}"), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: [u8; MAC] = [2, 0, 0x5e, 0, 0, 7];

    fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let frame =
            [&BROADCAST[..], &SENDER, &[8, 6], &ARP_OF_IPV4, &[0, operation], &SENDER, &sender, &[0; MAC], &target];
        frame.concat()
    }

    fn neighbor(kind: u8, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
        let mut header = [0; IPV6_HEADER];
        header[6] = ICMPV6;
        header[8..24].copy_from_slice(&source.octets());
        [&BROADCAST[..], &SENDER, &[0x86, 0xdd], &header, &[kind, 0, 0, 0, 0, 0, 0, 0], &target.octets()].concat()
    }

    #[test]
    fn answers_announcements_and_probes_of_others_claim_an_address() {
        let address = [192, 0, 2, 7];
        let claim = Some((IpAddr::from(address), SENDER));
        assert_eq!(claimed(&arp(2, address, [0; 4])), claim, "an answer");
        assert_eq!(claimed(&arp(1, address, address)), claim, "an announcement");
        assert_eq!(claimed(&arp(1, [0; 4], address)), claim, "a probe");
        let target: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let source: Ipv6Addr = "fe80::1".parse().unwrap();
        let claim = Some((IpAddr::from(target), SENDER));
        assert_eq!(claimed(&neighbor(NEIGHBOR_ADVERTISEMENT, source, target)), claim);
        assert_eq!(claimed(&neighbor(NEIGHBOR_SOLICITATION, Ipv6Addr::UNSPECIFIED, target)), claim);
        assert_eq!(claimed(&neighbor(NEIGHBOR_SOLICITATION, source, target)), None, "only a question");
    }

    #[test]
    fn frames_that_are_cut_short_claim_nothing() {
        let frames = [
            arp(2, [192, 0, 2, 7], [0; 4]),
            neighbor(NEIGHBOR_ADVERTISEMENT, Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST),
        ];
        for frame in frames {
            for length in 0..frame.len() {
                assert_eq!(claimed(&frame[..length]), None, "{length} bytes");
            }
        }
    }
}
