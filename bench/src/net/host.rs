//! The host of the measured network driver and a pod, each a network namespace of the benchmark.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use drakkar_netlink::{
    Child, Connection, LinkChange, MacvlanMode, Namespace, NewAddress, NewLink, NewLinkKind, Result,
};

/// The interface that the driver moves.
pub(super) const MOVED: &str = "fast0";
/// The interface that the driver shares.
pub(super) const SHARED: &str = "shared0";
/// The interface that is moved without the driver.
const BARE: &str = "bare0";
/// The beginning of the names of all other published interfaces.
const OTHER: &str = "other";
/// The name of an interface that is moved or made without the driver, in the pod.
const BARE_IN_POD: &str = "bare-in-pod";

/// The rules by which the driver publishes the moved interface, the shared one and all others.
pub(super) const CONFIG: &str = "
apiVersion: net.drakkar.dev/v1alpha1
kind: DriverConfig
devices:
- {name: moved, match: {names: [fast0, 'other*']}}
- {name: shared, match: {names: [shared0]}, share: {kind: macvlan, max: 64}}
";

/// A host with interfaces and the namespace of a pod.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) host: Namespace,
    pub(super) pod: Namespace,
    connection: Connection,
}

impl Machine {
    /// Makes a host on which the driver publishes this number of interfaces beside the shared one. Each is an end of a cable
    /// (veth) whose other end is on the host, too, and has an address.
    pub(super) fn new(interfaces: u64) -> Result<Self> {
        let host = Namespace::unshared()?;
        let pod = Namespace::unshared()?;
        let mut connection = Connection::open(&host)?;
        for name in [MOVED, SHARED, BARE] {
            add_cable(&mut connection, name)?;
        }
        for number in 1..interfaces {
            let name = format!("{OTHER}{number}");
            add_cable(&mut connection, &name)?;
            let index = connection.link_by_name(&name)?.map(|link| link.index).unwrap_or_default();
            let address = format!("10.{}.{}.1/30", 64 + number / 256, number % 256);
            connection.add_address(index, &NewAddress::new(address.parse().unwrap()))?;
        }
        Ok(Self { host, pod, connection })
    }

    /// The number of interfaces on the host, without the loopback interface.
    pub(super) fn count(&mut self) -> usize {
        self.connection.links().unwrap().len() - 1
    }

    /// Moves an interface to the pod under another name with one netlink request, and back. Returns how long the way there took.
    pub(super) fn bare_move(&mut self) -> Duration {
        let link = self.connection.link_by_name(BARE).unwrap().unwrap();
        let there = LinkChange { namespace: Some(&self.pod), name: Some(BARE_IN_POD), ..LinkChange::default() };
        let begin = Instant::now();
        self.connection.change_link(&link, &there).unwrap();
        let took = begin.elapsed();
        let mut pod = Connection::open(&self.pod).unwrap();
        let moved = pod.link_by_name(BARE_IN_POD).unwrap().unwrap();
        let back = LinkChange { namespace: Some(&self.host), name: Some(BARE), ..LinkChange::default() };
        pod.change_link(&moved, &back).unwrap();
        let link = self.connection.link_by_name(BARE).unwrap().unwrap();
        self.connection.change_link(&link, &LinkChange { up: Some(true), ..LinkChange::default() }).unwrap();
        took
    }

    /// Makes a macvlan interface in the pod with one netlink request, and deletes it. Returns how long it took to make it.
    pub(super) fn bare_macvlan(&mut self) -> Duration {
        let parent = self.connection.link_by_name(SHARED).unwrap().unwrap().index;
        let kind = NewLinkKind::Child { parent, child: Child::Macvlan { mode: MacvlanMode::Bridge } };
        let new = NewLink { namespace: Some(&self.pod), ..NewLink::new(BARE_IN_POD, kind) };
        let begin = Instant::now();
        self.connection.create_link(&new).unwrap();
        let took = begin.elapsed();
        let mut pod = Connection::open(&self.pod).unwrap();
        let made = pod.link_by_name(BARE_IN_POD).unwrap().unwrap();
        pod.delete_link(&made).unwrap();
        took
    }

    /// Whether an interface of this name is in the pod.
    pub(super) fn is_in_pod(&self, name: &str) -> bool {
        Connection::open(&self.pod).unwrap().link_by_name(name).unwrap().is_some()
    }
}

/// Adds a cable with both ends on the host, up.
fn add_cable(connection: &mut Connection, name: &str) -> Result<()> {
    let peer = format!("to-{name}");
    connection.create_link(&NewLink {
        up: true,
        ..NewLink::new(name, NewLinkKind::Veth { peer: &peer, peer_namespace: None })
    })?;
    let other = connection.link_by_name(&peer)?.map(|link| link.index).unwrap_or_default();
    connection.change_link(other, &LinkChange { up: Some(true), ..LinkChange::default() })
}

/// The path by which every process finds a namespace of this one.
pub(super) fn path(namespace: &Namespace) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd()).into()
}
