//! The driver's inventory on the real kernel: after each change, what follows the events equals a fresh look, and what is
//! published of an interface is what the kernel and sysfs say.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use drakkar_net::attributes::{self, Numa};
use drakkar_net::inventory::{Host, HostInterface, Inventory, Kind};
use drakkar_net::{Config, survey, table};
use drakkar_netlink::{
    Child, Event, IpvlanFlag, IpvlanMode, MacvlanMode, Monitor, NewLinkKind, NewRoute, VlanProtocol,
};
use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::{Uevent, UeventSocket};
use serde_json::{Value, json};

use super::iproute::Iproute;
use super::{Network, make_functions, modprobe_with};
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, wait};

const CONFIG: &str = "
apiVersion: net.drakkar.dev/v1alpha1
kind: DriverConfig
devices:
- name: functions
  match: {types: [vf]}
- name: shared
  match: {names: [eth0]}
  share: {kind: ipvlan, max: 8}
- name: rest
  match: {names: ['*']}
";

/// An inventory that follows the kernel's events.
struct Follower {
    host: Host,
    inventory: Inventory,
    monitor: Monitor,
    uevents: UeventSocket,
}

impl Follower {
    fn new(guest: &Guest, network: &Network) -> Result<Self> {
        let monitor = Monitor::open(&network.namespace)?;
        let uevents = UeventSocket::open()?;
        let mut host = Host::open(&network.namespace, guest.sysfs.clone())?;
        let inventory = host.scan()?;
        Ok(Self { host, inventory, monitor, uevents })
    }

    /// Takes in events until the inventory equals a fresh look.
    fn follow(&mut self, what: &str) -> Result<()> {
        println!("{what}");
        let outcome = wait(&format!("the events of: {what}"), || {
            let network = self.monitor.wait(Duration::from_millis(100))?;
            let devices = self.uevents.receive_all(1000)?;
            ensure!(!network.contains(&Event::Overrun) && !devices.contains(&Uevent::Overflow), "events were lost");
            self.inventory.apply(&mut self.host, &network)?;
            self.inventory.apply_devices(&mut self.host, &devices)?;
            let fresh = self.host.scan()?;
            Ok(difference(&self.inventory, &fresh).is_empty())
        });
        outcome.with_context(|| match self.host.scan() {
            Ok(fresh) => difference(&self.inventory, &fresh),
            Err(error) => error.to_string(),
        })
    }

    fn interface(&self, name: &str) -> Result<&HostInterface> {
        let mut all = self.inventory.interfaces.values();
        all.find(|interface| interface.link.name == name).with_context(|| format!("no {name}"))
    }

    /// What is published of an interface.
    fn attributes(&self, name: &str) -> Result<Value> {
        let numa = Numa::new(&self.host.sysfs().roots().sys, NumaForm::Number);
        let attributes = attributes::of_interface(&self.inventory, self.interface(name)?, &numa);
        let mut flat = serde_json::Map::new();
        for (name, value) in attributes {
            let value = serde_json::to_value(value)?;
            let value = value.as_object().and_then(|value| value.values().next().cloned());
            flat.insert(name.rsplit('/').next().unwrap_or_default().to_owned(), value.unwrap_or_default());
        }
        Ok(Value::Object(flat))
    }
}

fn difference(followed: &Inventory, fresh: &Inventory) -> String {
    let mut text = String::new();
    for index in followed.interfaces.keys().chain(fresh.interfaces.keys()) {
        let (ours, real) = (sorted(followed, *index), sorted(fresh, *index));
        if ours != real {
            text.push_str(&format!("followed {ours:?}\nfresh {real:?}\n"));
        }
    }
    for address in followed.pci.devices.keys().chain(fresh.pci.devices.keys()) {
        let (ours, real) = (followed.pci.devices.get(address), fresh.pci.devices.get(address));
        if ours != real {
            text.push_str(&format!("followed {ours:?}\nfresh {real:?}\n"));
        }
    }
    text
}

/// An interface with its addresses in one order: the kernel's table and its events have different ones. While it is down, the
/// kernel sends no event about its carrier.
fn sorted(inventory: &Inventory, index: u32) -> Option<HostInterface> {
    let mut interface = inventory.interfaces.get(&index)?.clone();
    interface.addresses.sort_by_key(|address| address.address);
    interface.link.carrier = interface.link.carrier.filter(|_| interface.link.is_up);
    Some(interface)
}

/// Checks some attributes.
fn has(attributes: &Value, expected: &Value) -> Result<()> {
    for (name, value) in expected.as_object().into_iter().flatten() {
        ensure_eq!(&attributes[name], value, "{name} of {attributes}");
    }
    Ok(())
}

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let iproute = Iproute::new()?;
    let mut host = Network::host()?;
    let mut follower = Follower::new(guest, &host)?;
    let card = host.device(guest.address("nic0")?)?;
    host.set_up(&card)?;
    follower.follow("a card is set up")?;
    has(
        &follower.attributes("eth0")?,
        &json!({
            "interfaceName": "eth0", "type": "physical", "driver": "e1000e", "mac": "52:54:00:00:00:10", "mtu": 1500,
            "speed": 1000, "duplex": "full", "state": "up", "rdma": false, "ipv4": false, "vendorID": "8086",
            "deviceID": "10d3", "pciBusID": guest.address("nic0")?.to_string(),
        }),
    )?;
    guest.host.qmp("set_link", &json!({ "name": "nic0", "up": false }))?;
    wait("the carrier to go", || Ok(!host.link("eth0")?.is_running))?;
    follower.follow("its cable is pulled")?;
    has(&follower.attributes("eth0")?, &json!({ "state": "down", "speed": null }))?;
    guest.host.qmp("set_link", &json!({ "name": "nic0", "up": true }))?;
    wait("the carrier to come", || Ok(host.link("eth0")?.is_running))?;
    follower.follow("its cable is back")?;
    virtual_interfaces(&mut host, &mut follower, card.index)?;
    functions(guest, &mut host, &mut follower)?;

    modprobe("crc32_generic")?;
    modprobe("rdma_rxe")?;
    iproute.run(&host.namespace, "rdma link add rxe0 type rxe netdev eth0")?;
    wait("the driver to see RDMA", || {
        follower.follow("an RDMA device is added")?;
        Ok(follower.interface("eth0")?.rdma.is_some())
    })?;
    has(&follower.attributes("eth0")?, &json!({ "rdma": true, "rdmaDevice": "rxe0" }))?;
    iproute.run(&host.namespace, "rdma link delete rxe0")?;
    follower.follow("the RDMA device is removed")?;
    has(&follower.attributes("eth0")?, &json!({ "rdma": false, "rdmaDevice": null }))?;

    guest.unplug("nic1")?;
    follower.follow("a card is unplugged")?;
    ensure!(follower.interface("eth1").is_err());
    shown(guest, &mut host)
}

fn virtual_interfaces(host: &mut Network, follower: &mut Follower, parent: u32) -> Result<()> {
    modprobe_with("dummy", &["numdummies=0"])?;
    let child = |child| NewLinkKind::Child { parent, child };
    let kinds = [
        ("dummy1", NewLinkKind::Dummy, "dummy"),
        ("vlan42", child(Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Q }), "vlan"),
        ("ipvlan1", child(Child::Ipvlan { mode: IpvlanMode::L2, flag: IpvlanFlag::Bridge }), "ipvlan"),
    ];
    for (name, kind, expected) in kinds {
        let link = host.create(name, kind)?;
        host.add(&link, "192.0.2.1/24")?;
        let gateway = Some("192.0.2.254".parse()?);
        host.connection.add_route(&NewRoute { gateway, ..NewRoute::new("198.51.100.0/24".parse()?, link.index) })?;
        follower.follow(&format!("a {expected} is made"))?;
        let is_child = expected != "dummy";
        has(
            &follower.attributes(name)?,
            &json!({
                "type": expected, "ipv4": true, "ipv6": false, "pciBusID": null, "driver": null,
                "parent": is_child.then_some("eth0"), "vlanID": (expected == "vlan").then_some(42),
            }),
        )?;
        host.connection.delete_link(&link)?;
        follower.follow(&format!("the {expected} is deleted"))?;
    }
    let link = host.create("macvlan1", child(Child::Macvlan { mode: MacvlanMode::Bridge }))?;
    follower.follow("a macvlan is made")?;
    host.connection.delete_link(&link)?;
    follower.follow("the macvlan is deleted")
}

fn functions(guest: &mut Guest, host: &mut Network, follower: &mut Follower) -> Result<()> {
    let physical = guest.address("sriov")?;
    let link = host.device(physical)?;
    host.set_up(&link)?;
    let addresses = make_functions(guest, 2)?;
    let function = host.device(addresses[0])?;
    host.device(addresses[1])?;
    host.set_up(&function)?;
    follower.follow("virtual functions are made")?;
    ensure_eq!(follower.inventory.kind(follower.interface(&function.name)?), Kind::VirtualFunction);
    let attributes = follower.attributes(&function.name)?;
    println!("{attributes}");
    has(
        &attributes,
        &json!({
            "type": "vf", "driver": "igbvf", "physicalFunction": physical.to_string(), "state": "up",
            "pciBusID": addresses[0].to_string(), "vendorID": "8086", "deviceID": "10ca",
        }),
    )?;
    let mut pod = Network::new()?;
    let moved = host.give(&function, &mut pod, "net1")?;
    follower.follow("a virtual function is in a pod")?;
    ensure!(follower.interface(&function.name).is_err());
    let without: Vec<_> = follower.inventory.functions_without_interface().map(|device| device.address).collect();
    ensure_eq!(without, [addresses[0]]);
    pod.give(&moved, host, &function.name)?;
    follower.follow("the virtual function is back")?;
    ensure_eq!(follower.interface(&function.name)?.pci(), Some(addresses[0]));
    drakkar_sysfs::set_num_vfs(&guest.sysfs, physical, 0, |_| None)?;
    follower.follow("the virtual functions are removed")
}

/// What an administrator sees: what would be published, and why something is not.
fn shown(guest: &mut Guest, host: &mut Network) -> Result<()> {
    make_functions(guest, 1)?;
    let physical = host.device(guest.address("sriov")?)?;
    host.add(&physical, "192.0.2.1/24")?;
    let gateway = Some("192.0.2.254".parse()?);
    host.connection.add_route(&NewRoute { gateway, ..NewRoute::new("0.0.0.0/0".parse()?, physical.index) })?;
    let config = Arc::new(Config::from_yaml(CONFIG)?);
    let decisions = survey(&host.namespace, guest.sysfs.clone(), config.clone(), Vec::new())?;
    let table = table::render(&decisions, Some(&config), true);
    println!("{table}");
    let fate = |name: &str| -> Result<String> {
        let mut lines = table.lines().skip_while(|line| !line.starts_with(&format!("{name} ")));
        lines.next().with_context(|| format!("no {name}"))?;
        let lines = lines.take_while(|line| line.starts_with(' '));
        Ok(lines.map(str::trim).collect::<Vec<_>>().join(" "))
    };
    ensure!(fate("eth0")?.contains("shared by up to 8 claims (ipvlan)"));
    ensure!(fate(&physical.name)?.contains("default route"), "the way out of the host");
    let Some((_, function)) = decisions.iter().find(|(subject, _)| match subject {
        drakkar_net::Subject::Interface(_, kind) => *kind == Kind::VirtualFunction,
        drakkar_net::Subject::Function(_) => false,
    }) else {
        bail!("no virtual function")
    };
    ensure!(function.device.is_some() && function.refusal.is_none(), "{function:?}");
    Ok(())
}
