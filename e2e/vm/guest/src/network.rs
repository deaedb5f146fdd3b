//! Network interfaces on the real kernel, with kinds that the host's kernel may lack: `drakkar-netlink` beside iproute2.

mod addresses;
mod attach;
mod events;
mod examples;
mod inventory;
mod iproute;
mod kinds;
mod rdma;
mod traffic;
mod userspace;
mod vanish;

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use drakkar_netlink::{
    Address, AddressScope, BusAddress, Connection, DadState, Link, LinkChange, LinkKind, Namespace, NewAddress,
    NewLink, NewLinkKind, OperationalState,
};
use drakkar_sysfs::{PciAddress, set_num_vfs, virtual_functions};

pub(crate) use self::attach::die;
pub(crate) use self::examples::inside as examples_inside;
use crate::guest::{Guest, modprobe, run, wait};

/// The test of a name, if it is one of these.
pub(crate) fn test(name: &str) -> Option<fn(&mut Guest) -> Result<()>> {
    Some(match name {
        "network-addresses" => addresses::test,
        "network-attach" => attach::test,
        "network-faults" => attach::faults,
        "network-kills" => attach::kills,
        "network-events" => events::test,
        "network-examples" => examples::test,
        "network-inventory" => inventory::test,
        "network-kinds" => kinds::test,
        "network-rdma" => rdma::test,
        "network-traffic" => traffic::test,
        "network-userspace" => userspace::test,
        "network-vanish" => vanish::test,
        _ => return None,
    })
}

/// A network namespace with a connection into it.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) namespace: Namespace,
    pub(crate) connection: Connection,
}

impl Network {
    /// The machine's own, which is the kernel's initial one: there devices return to.
    pub(crate) fn host() -> Result<Self> {
        Self::of(Namespace::current()?)
    }

    /// A new one, which exists until it is dropped.
    pub(crate) fn new() -> Result<Self> {
        Self::of(Namespace::unshared()?)
    }

    fn of(namespace: Namespace) -> Result<Self> {
        let connection = Connection::open(&namespace)?;
        Ok(Self { namespace, connection })
    }

    /// The interface of a name.
    pub(crate) fn link(&mut self, name: &str) -> Result<Link> {
        self.connection.link_by_name(name)?.with_context(|| format!("there is no {name}"))
    }

    /// The interface of a PCI device. Its driver may still be making it.
    pub(crate) fn device(&mut self, address: PciAddress) -> Result<Link> {
        let device = BusAddress { bus: "pci".to_owned(), name: address.to_string() };
        let mut found = None;
        wait(&format!("an interface of {address}"), || {
            let links = self.connection.links()?;
            found =
                links.into_iter().find(|link| link.device.as_ref() == Some(&device) && link.kind == LinkKind::Device);
            Ok(found.is_some())
        })?;
        found.context("it was found")
    }

    /// The names of all interfaces, sorted.
    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        let mut names: Vec<_> = self.connection.links()?.into_iter().map(|link| link.name).collect();
        names.sort();
        Ok(names)
    }

    /// Makes an interface, which is up.
    pub(crate) fn create(&mut self, name: &str, kind: NewLinkKind<'_>) -> Result<Link> {
        self.connection.create_link(&NewLink { up: true, ..NewLink::new(name, kind) })?;
        self.link(name)
    }

    /// Sets an interface up, and waits until it has a carrier.
    pub(crate) fn set_up(&mut self, link: &Link) -> Result<()> {
        self.connection.change_link(link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
        wait(&format!("{} to have a carrier", link.name), || {
            Ok(self.connection.link(link.index)?.is_some_and(|link| link.is_running))
        })
    }

    /// Moves an interface from here to another namespace under another name, and returns it as it is there.
    pub(crate) fn give(&mut self, link: &Link, to: &mut Self, name: &str) -> Result<Link> {
        let change = LinkChange { namespace: Some(&to.namespace), name: Some(name), ..LinkChange::default() };
        self.connection.change_link(link, &change)?;
        to.link(name)
    }

    /// The path by which other processes find the namespace, as long as this one lives.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_fd().as_raw_fd()).into()
    }

    /// All that a driver has to bring back, line by line. Without what the kernel does in its own time: carriers, and its own
    /// addresses and routes.
    pub(crate) fn state(&mut self) -> Result<String> {
        let mut links = Vec::new();
        for mut link in self.connection.links()? {
            link.carrier = None;
            link.is_running = false;
            link.state = OperationalState::Unknown;
            // That of a virtual function is not permanent.
            link.permanent_address = None;
            links.push(format!("{link:?}"));
        }
        let mut rest = Vec::new();
        let addresses = self.connection.addresses()?.into_iter().filter(|address| address.scope != AddressScope::Link);
        rest.extend(addresses.map(|address| format!("{:?}", Address { dad: DadState::Done, ..address })));
        let routes = self.connection.routes()?.into_iter().filter(|route| !route.is_automatic());
        rest.extend(routes.map(|route| format!("{route:?}")));
        rest.extend(self.connection.rules()?.iter().map(|rule| format!("{rule:?}")));
        rest.sort();
        Ok([links, rest].concat().join("\n"))
    }

    /// Adds an address, for which the kernel does not look for duplicates.
    pub(crate) fn add(&mut self, link: &Link, address: &str) -> Result<()> {
        Ok(self.connection.add_address(link, &NewAddress::new(address.parse()?).without_dad())?)
    }
}

/// Makes virtual functions of the card `sriov` and returns their addresses.
pub(crate) fn make_functions(guest: &mut Guest, number: u16) -> Result<Vec<PciAddress>> {
    modprobe("igbvf")?;
    let physical = guest.address("sriov")?;
    set_num_vfs(&guest.sysfs, physical, number, |_| None)?;
    Ok(virtual_functions(&guest.sysfs, physical)?)
}

/// Loads a module with parameters.
pub(crate) fn modprobe_with(module: &str, parameters: &[&str]) -> Result<()> {
    run(std::process::Command::new("modprobe").arg(module).args(parameters)).map(drop)
}
