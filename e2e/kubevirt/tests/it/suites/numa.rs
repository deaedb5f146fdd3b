//! Domains with host devices on a host with NUMA nodes.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// A guest and its host.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// The host's CPUs of each of its nodes, as a list.
    pub nodes: Vec<&'static str>,
    /// The virtual CPUs of each guest node, as a list.
    pub cells: Vec<&'static str>,
    /// The host's CPU of each virtual CPU.
    pub pins: Vec<u32>,
    /// The guest node and the host nodes of its memory.
    pub memory: Vec<(u32, &'static str)>,
    /// The host's PCI devices: address and node. Without a node the device has no such file.
    pub devices: Vec<(String, Option<i64>)>,
    /// Whether the first device has an address in the guest already.
    pub placed: bool,
    /// Whether there is a mediated device too.
    pub mdev: bool,
    /// The indices of controllers that the domain has.
    pub controllers: Vec<u32>,
    /// Whether a device that cannot be placed is an error.
    pub strict: bool,
}

impl Machine {
    /// The input of a case.
    pub fn case(&self) -> Value {
        let mut sysfs = Map::new();
        for (node, cpus) in self.nodes.iter().enumerate() {
            sysfs.insert(format!("bus/node/devices/node{node}/cpulist"), format!("{cpus}\n").into());
        }
        for (address, node) in &self.devices {
            if let Some(node) = node {
                sysfs.insert(format!("bus/pci/devices/{address}/numa_node"), format!("{node}\n").into());
            }
        }
        json!({"domain": self.domain(), "strict": self.strict, "sysfs": sysfs})
    }

    fn domain(&self) -> String {
        let mut pins = String::new();
        for (vcpu, cpu) in self.pins.iter().enumerate() {
            write!(pins, r#"<vcpupin vcpu="{vcpu}" cpuset="{cpu}"/>"#).unwrap();
        }
        let mut memory = String::new();
        for (cell, nodes) in &self.memory {
            write!(memory, r#"<memnode cellid="{cell}" mode="strict" nodeset="{nodes}"/>"#).unwrap();
        }
        let mut cells = String::new();
        for (id, cpus) in self.cells.iter().enumerate() {
            write!(cells, r#"<cell id="{id}" cpus="{cpus}" memory="1048576" unit="KiB"/>"#).unwrap();
        }
        let mut devices = String::new();
        for index in &self.controllers {
            write!(devices, r#"<controller type="pci" index="{index}" model="pcie-root-port"/>"#).unwrap();
        }
        for (index, (address, _)) in self.devices.iter().enumerate() {
            let [domain, bus, slot, function] = [&address[..4], &address[5..7], &address[8..10], &address[11..]];
            let guest = match self.placed && index == 0 {
                true => r#"<address type="pci" domain="0x0000" bus="0x00" slot="0x05" function="0x0"/>"#,
                false => "",
            };
            let source = format!(
                r#"<source><address type="pci" domain="0x{domain}" bus="0x{bus}" slot="0x{slot}" function="0x{function}"/></source>"#
            );
            write!(
                devices,
                r#"<hostdev type="pci" managed="no">{source}{guest}<alias name="ua-dra-gpu-g{index}"/></hostdev>"#
            )
            .unwrap();
        }
        if self.mdev {
            devices += r#"<hostdev type="mdev" mode="subsystem" model="vfio-pci"><source><address uuid="7b1d3f60-5a4e-4a8e-9f0e-0b7c2d1e9a01"/></source><alias name="ua-dra-gpu-v"/></hostdev>"#;
        }
        // An element without children is left out, as by KubeVirt.
        let part = |name: &str, content: String| match content.is_empty() {
            true => String::new(),
            false => format!("<{name}>{content}</{name}>"),
        };
        let numa = part("cpu", part("numa", cells));
        let (pins, memory, devices) = (part("cputune", pins), part("numatune", memory), part("devices", devices));
        format!(r#"<domain type="kvm"><name>vm</name>{pins}{memory}{numa}{devices}</domain>"#)
    }
}

/// A host with two nodes of four CPUs, and a guest with two nodes that stand for them.
fn two_nodes() -> Machine {
    Machine {
        nodes: vec!["0-3", "4-7"],
        cells: vec!["0-1", "2-3"],
        pins: vec![0, 1, 4, 5],
        memory: vec![(0, "0"), (1, "1")],
        controllers: vec![0],
        ..Machine::default()
    }
}

/// The cases that are kept as data.
pub fn cases() -> Vec<(String, Value)> {
    let at = |bus: u8, node: Option<i64>| (format!("0000:{bus:02x}:00.0"), node);
    let with = |devices: Vec<(String, Option<i64>)>| Machine { devices, ..two_nodes() };
    let pinned = |devices| Machine { memory: Vec::new(), ..with(devices) };
    let strict = |machine: Machine| Machine { strict: true, ..machine };
    let cases = [
        ("one-device", with(vec![at(0x65, Some(0))])),
        ("one-device-per-node", with(vec![at(0x65, Some(1)), at(0x17, Some(0))])),
        ("two-devices-on-one-node", with(vec![at(0x65, Some(1)), at(0x17, Some(1))])),
        ("order-of-addresses", with(vec![at(0xc5, Some(0)), at(0x65, Some(1)), at(0x17, Some(0)), at(0x99, Some(1))])),
        ("by-pinning", pinned(vec![at(0x65, Some(1)), at(0x17, Some(0))])),
        ("one-guest-node", Machine { cells: vec!["0-3"], memory: Vec::new(), ..with(vec![at(0x65, Some(1))]) }),
        ("no-guest-nodes", Machine { cells: Vec::new(), memory: Vec::new(), ..with(vec![at(0x65, Some(0))]) }),
        ("no-node", with(vec![at(0x65, Some(-1)), at(0x17, Some(0))])),
        ("no-node-strict", strict(with(vec![at(0x65, Some(-1)), at(0x17, Some(0))]))),
        ("no-file", with(vec![at(0x65, None)])),
        ("no-file-strict", strict(with(vec![at(0x65, None)]))),
        ("another-node", with(vec![at(0x65, Some(2))])),
        ("another-node-strict", strict(with(vec![at(0x65, Some(2))]))),
        ("another-node-by-pinning", pinned(vec![at(0x65, Some(2))])),
        ("placed-before", Machine { placed: true, ..with(vec![at(0x65, Some(0)), at(0x17, Some(0))]) }),
        ("placed-before-strict", strict(Machine { placed: true, ..with(vec![at(0x65, Some(0))]) })),
        ("mdev", Machine { mdev: true, ..with(vec![at(0x65, Some(0))]) }),
        ("mdev-strict", strict(Machine { mdev: true, ..with(vec![at(0x65, Some(0))]) })),
        ("only-mdev", Machine { mdev: true, ..with(vec![]) }),
        ("controllers", Machine { controllers: vec![0, 1, 7, 3], ..with(vec![at(0x65, Some(0))]) }),
        ("no-bus-numbers", Machine { controllers: vec![0, 253], ..with(vec![at(0x65, Some(0))]) }),
        ("last-bus-number", Machine { controllers: vec![0, 252], ..with(vec![at(0x65, Some(0))]) }),
        ("memory-on-two-nodes", Machine { memory: vec![(0, "0-1")], ..with(vec![at(0x65, Some(1))]) }),
        ("half-of-the-memory", Machine { memory: vec![(1, "1")], ..with(vec![at(0x65, Some(1)), at(0x17, Some(0))]) }),
    ];
    cases.into_iter().map(|(id, machine)| (id.to_owned(), machine.case())).collect()
}
