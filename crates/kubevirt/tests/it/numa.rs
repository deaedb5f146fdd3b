//! Placement by NUMA node, with a copy of sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::hostdev::{Controller, ControllerModel, HostDev, MdevModel, PciFields, Source};
use drakkar_kubevirt::placement::numa::{Cell, GuestTopology, MemoryNode, NumaOptions, NumaPlacement, VcpuPin, place};
use drakkar_kubevirt::placement::{HostTopology, PlacementError, place_in_domain};
use tempfile::TempDir;

/// A host with two nodes of four CPUs each.
struct Host {
    sysfs: TempDir,
}

impl Host {
    fn new(devices: &[(&str, i32)]) -> Self {
        let sysfs = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = sysfs.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (address, node) in devices {
            write(&format!("bus/pci/devices/{address}/numa_node"), format!("{node}\n"));
        }
        write("bus/node/devices/node0/cpulist", "0-3\n".into());
        write("bus/node/devices/node1/cpulist", "4-7\n".into());
        Self { sysfs }
    }

    fn topology(&self) -> HostTopology {
        HostTopology::new(self.sysfs.path())
    }
}

fn pci(name: &str, address: &str) -> HostDev {
    HostDev::new(name, Source::Pci(PciFields::parse(address, Behaviour::Strict).unwrap()))
}

fn cell(id: &str, cpus: &str) -> Cell {
    Cell { id: id.into(), cpus: cpus.into() }
}

/// A guest with two nodes of two virtual CPUs each, pinned to the host's nodes in reverse.
fn guest() -> GuestTopology {
    let pin = |vcpu, cpu: &str| VcpuPin { vcpu, cpu_set: cpu.into() };
    GuestTopology {
        cells: vec![cell("0", "0-1"), cell("1", "2-3")],
        vcpu_pins: vec![pin(0, "4"), pin(1, "5"), pin(2, "0"), pin(3, "1")],
        memory_nodes: Vec::new(),
        last_controller_index: 4,
    }
}

fn options(behaviour: Behaviour) -> NumaOptions {
    NumaOptions::new(false, behaviour)
}

fn expander(index: u32, bus_number: u32, node: u32) -> Controller {
    Controller { index, model: ControllerModel::ExpanderBus { bus_number, node } }
}

fn port(index: u32, bus: &str, slot: u8) -> Controller {
    Controller { index, model: ControllerModel::RootPort { address: PciFields::guest(bus, slot) } }
}

fn buses(devices: &[HostDev]) -> Vec<Option<&str>> {
    devices.iter().map(|device| device.guest_address.as_ref().map(|address| &*address.bus)).collect()
}

#[test]
fn a_node_has_an_expander_bus_and_a_device_has_a_root_port() {
    let host = Host::new(&[("0000:65:00.0", 0), ("0000:b5:00.0", 1)]);
    for behaviour in [Behaviour::Strict, Behaviour::Extended] {
        let mut devices = [pci("a", "0000:65:00.0"), pci("b", "0000:b5:00.0")];
        let NumaPlacement { controllers, warnings, .. } =
            place(&mut devices, &guest(), &host.topology(), options(behaviour)).unwrap();
        // Host node 1 is guest node 0.
        assert_eq!(controllers, [expander(5, 254, 0), port(6, "5", 0), expander(7, 252, 1), port(8, "7", 0)]);
        assert_eq!(buses(&devices), [Some("8"), Some("6")]);
        assert_eq!(warnings, [""; 0]);
    }
}

#[test]
fn two_devices_of_a_node_have_ports_in_the_order_of_their_host_addresses() {
    let host = Host::new(&[("0000:65:00.0", 1), ("0000:66:00.0", 1)]);
    let mut devices = [pci("a", "0000:66:00.0"), pci("b", "0000:65:00.0")];
    let placement = place(&mut devices, &guest(), &host.topology(), options(Behaviour::Strict)).unwrap();
    assert_eq!(placement.controllers, [expander(5, 253, 0), port(6, "5", 0), port(7, "5", 1)]);
    assert_eq!(buses(&devices), [Some("7"), Some("6")]);
}

#[test]
fn the_node_comes_from_the_metadata_in_extended_behaviour_and_from_sysfs_in_strict() {
    let host = Host::new(&[("0000:65:00.0", 0)]);
    for (behaviour, node) in [(Behaviour::Extended, 0), (Behaviour::Strict, 1)] {
        let mut device = pci("a", "0000:65:00.0");
        device.origin.numa_node = Some(1);
        let placement = place(&mut [device], &guest(), &host.topology(), options(behaviour)).unwrap();
        assert_eq!(placement.controllers[0], expander(5, 254, node), "{behaviour:?}");
    }
}

#[test]
fn memory_nodes_take_precedence_over_pinning_unless_they_are_ambiguous() {
    let host = Host::new(&[("0000:65:00.0", 0)]);
    let memory = |cell, nodes: &str| MemoryNode { cell, node_set: nodes.into() };
    for (memory_nodes, node) in [
        (vec![memory(0, "0"), memory(1, "1")], 0),
        (vec![memory(0, "0-1"), memory(1, "0-1")], 1),
        (vec![memory(7, "0")], 1),
    ] {
        let guest = GuestTopology { memory_nodes, ..guest() };
        let mut devices = [pci("a", "0000:65:00.0")];
        let placement = place(&mut devices, &guest, &host.topology(), options(Behaviour::Strict)).unwrap();
        assert_eq!(placement.controllers[0], expander(5, 254, node));
    }
}

#[test]
fn a_device_without_a_node_is_skipped_or_an_error() {
    let host = Host::new(&[("0000:65:00.0", -1), ("0000:66:00.0", 1)]);
    let devices = || {
        let mut placed = pci("c", "0000:67:00.0");
        placed.guest_address = Some(PciFields::guest("0x00", 5));
        let mdev = HostDev::new("v", Source::Mdev { uuid: "u".into(), model: MdevModel::VfioPci });
        [pci("a", "0000:65:00.0"), pci("b", "0000:66:00.0"), placed, mdev]
    };
    let mut lenient = devices();
    let placement = place(&mut lenient, &guest(), &host.topology(), options(Behaviour::Strict)).unwrap();
    assert_eq!(buses(&lenient), [None, Some("6"), Some("0x00"), None]);
    assert_eq!(placement.warnings.len(), 2, "{:?}", placement.warnings);
    assert!(placement.warnings[1].contains("device 0000:65:00.0 has no NUMA node affinity"));

    let mut strict = devices();
    let error = place(&mut strict, &guest(), &host.topology(), NumaOptions::new(true, Behaviour::Strict)).unwrap_err();
    assert!(matches!(&error, PlacementError::Unplaced(reasons) if reasons.len() == 2), "{error}");
    assert_eq!(strict, devices());

    // A mediated device is no PCI device.
    let mut mdev = [devices()[3].clone(), devices()[1].clone()];
    place(&mut mdev, &guest(), &host.topology(), NumaOptions::new(true, Behaviour::Strict)).unwrap();
}

#[test]
fn a_guest_without_nodes_places_nothing_and_one_with_a_single_node_everything() {
    let host = Host::new(&[("0000:65:00.0", 0), ("0000:b5:00.0", 1)]);
    let devices = || [pci("a", "0000:65:00.0"), pci("b", "0000:b5:00.0")];
    let without = GuestTopology { cells: Vec::new(), ..guest() };
    let placement = place(&mut devices(), &without, &host.topology(), options(Behaviour::Strict)).unwrap();
    assert_eq!((placement.controllers.len(), placement.warnings.len()), (0, 2));
    // Huge pages without a mapping: one node with all virtual CPUs.
    let one = GuestTopology { cells: vec![cell("0", "0-3")], ..guest() };
    let placement = place(&mut devices(), &one, &host.topology(), options(Behaviour::Strict)).unwrap();
    assert_eq!(placement.controllers, [expander(5, 253, 0), port(6, "5", 0), port(7, "5", 1)]);
}

#[test]
fn bus_numbers_run_out() {
    let host = Host::new(&[("0000:65:00.0", 0)]);
    let crowded = GuestTopology { last_controller_index: 253, ..guest() };
    let mut devices = [pci("a", "0000:65:00.0")];
    let error = place(&mut devices, &crowded, &host.topology(), options(Behaviour::Strict)).unwrap_err();
    assert_eq!(error, PlacementError::NoBusNumbers { index: 254, last_bus: 255 });
    assert_eq!(buses(&devices), [None]);
}

#[test]
fn devices_of_a_document_are_placed_once() {
    let document = "<domain>\n  <cpu><numa><cell id='0' cpus='0-1'/><cell id='1' cpus='2-3'/></numa></cpu>\n  \
        <numatune><memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='1'/></numatune>\n  \
        <devices>\n    <controller type='usb' index='3'/>\n    \
        <hostdev type='pci'><source><address bus='0x65' slot='0x00'/></source><alias name='ua-dra-gpu-a'/></hostdev>\n    \
        <hostdev type='pci'><source><address bus='0x66' slot='0x00'/></source></hostdev>\n  </devices>\n</domain>\n";
    let nodes = BTreeMap::from([("dra-gpu-a".to_owned(), 1)]);
    let host = HostTopology::new(Path::new("/nonexistent"));
    let options = NumaOptions::new(true, Behaviour::Extended);
    let (placed, warnings) = place_in_domain(document, &nodes, &host, options).unwrap();
    assert_eq!(warnings, [""; 0]);
    assert!(placed.contains("<controller type='pci' index='4' model='pcie-expander-bus'>\n      <target busNr='254'>\n        <node>1</node>"), "{placed}");
    assert!(placed.contains("<alias name='ua-dra-gpu-a'/><address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/></hostdev>"), "{placed}");
    assert_eq!(place_in_domain(&placed, &nodes, &host, options).unwrap(), (placed, Vec::new()));
}
