//! The networks of pods: a namespace each, with loopback, and what a CNI plugin does: an interface `eth0` with an address, at a
//! bridge in a network of the node's own. Nothing touches the host's network.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::netlink::{LOOPBACK, NetworkSocket, Peer};
use crate::nri::PodNetwork as Config;
use crate::runner::Isolation;
use crate::runner::pod_namespaces::{NamespaceFactory, PodNamespaces};

/// The index of `eth0` in pods, and of the bridge in the node's network.
const FIRST: u32 = 2;
/// The index of the first cable in the node's network.
const FIRST_CABLE: u32 = 16;

/// Makes the networks of pods. Must outlive them; all functions block for some milliseconds.
#[derive(Debug)]
pub(super) struct Networks {
    bridge: Option<Arc<Bridge>>,
    // Dropped last.
    factory: NamespaceFactory,
}

/// The network of one pod. Dropping it removes it.
#[derive(Debug)]
pub(super) struct PodNetwork {
    // Dropped in this order: as in a real runtime, first what the CNI plugin has added, then the namespace.
    cable: Option<Cable>,
    namespaces: Arc<PodNamespaces>,
}

impl Networks {
    /// Finds out whether networks can be made here, and makes the bridge.
    pub(super) fn new(isolation: &Isolation, directory: PathBuf, config: Config) -> Result<Self, String> {
        let factory = NamespaceFactory::new(isolation, directory)?;
        let bridge = match config {
            Config::Bridge { gateway, prefix } => {
                let (_network, socket) = factory.unshare()?;
                let bridge = Bridge::new(NetworkSocket::new(socket), gateway, prefix);
                Some(Arc::new(bridge.map_err(|error| format!("the bridge of the pods: {error}"))?))
            }
            Config::Loopback => None,
        };
        Ok(Self { bridge, factory })
    }

    /// Makes the network of a pod.
    pub(super) fn create(&self, name: &str) -> io::Result<PodNetwork> {
        let (namespaces, socket) = self.factory.create(name)?;
        let socket = NetworkSocket::new(socket);
        socket.set_up(LOOPBACK)?;
        let cable = match &self.bridge {
            Some(bridge) => Some(Cable::new(bridge, &namespaces, &socket)?),
            None => None,
        };
        Ok(PodNetwork { cable, namespaces: Arc::new(namespaces) })
    }
}

impl PodNetwork {
    /// Returns the path of the namespace.
    pub(super) fn path(&self) -> &Path {
        self.namespaces.path()
    }

    /// Returns the namespaces for containers to join.
    pub(super) fn namespaces(&self) -> Arc<PodNamespaces> {
        self.namespaces.clone()
    }

    /// Returns the addresses of `eth0`.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.cable.iter().map(|cable| cable.address.to_string()).collect()
    }
}

/// The bridge that connects pods. The socket keeps its network.
#[derive(Debug)]
struct Bridge {
    socket: NetworkSocket,
    gateway: Ipv4Addr,
    prefix: u8,
    /// The numbers of cables, which are also the offsets of addresses.
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    numbers: BTreeSet<u32>,
    last: u32,
}

impl Bridge {
    fn new(socket: NetworkSocket, gateway: Ipv4Addr, prefix: u8) -> io::Result<Self> {
        socket.set_up(LOOPBACK)?;
        socket.add_bridge(FIRST, "cni0")?;
        socket.add_address(FIRST, gateway, prefix)?;
        Ok(Self { socket, gateway, prefix, used: Mutex::default() })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a number. It is not one that was released just now, as long as there are others.
    fn take(&self) -> io::Result<u32> {
        let host_bits = 32_u32.saturating_sub(self.prefix.into());
        // Not the network's own address, the gateway's, or the broadcast address.
        let count = 1_u32.checked_shl(host_bits).unwrap_or(u32::MAX).saturating_sub(3);
        let mut used = self.used();
        let candidates = (used.last + 1..=count).chain(1..=used.last.min(count));
        let number = candidates.into_iter().find(|number| !used.numbers.contains(number));
        let number = number.ok_or_else(|| io::Error::other("no address is free for the pod"))?;
        used.numbers.insert(number);
        used.last = number;
        Ok(number)
    }
}

/// The connection of a pod to the bridge.
#[derive(Debug)]
struct Cable {
    bridge: Arc<Bridge>,
    number: u32,
    address: Ipv4Addr,
}

impl Cable {
    fn new(bridge: &Arc<Bridge>, pod: &PodNamespaces, socket: &NetworkSocket) -> io::Result<Self> {
        let number = bridge.take()?;
        let address = Ipv4Addr::from_bits(bridge.gateway.to_bits().saturating_add(number));
        // Dropped if one of the steps fails.
        let cable = Self { bridge: bridge.clone(), number, address };
        let peer = Peer { index: FIRST, name: "eth0", network: pod.network() };
        bridge.socket.add_cable(cable.index(), &format!("veth{number}"), FIRST, &peer)?;
        socket.add_address(FIRST, address, bridge.prefix)?;
        socket.set_up(FIRST)?;
        socket.add_default_route(FIRST, bridge.gateway)?;
        Ok(cable)
    }

    fn index(&self) -> u32 {
        FIRST_CABLE + self.number
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        if let Err(error) = self.bridge.socket.delete(self.index()) {
            tracing::warn!(address = %self.address, %error, "removing the interface of a pod failed");
        }
        self.bridge.used().numbers.remove(&self.number);
    }
}
