//! Placement by NUMA node: devices are on a PCIe bus of the guest's node that stands for their host's node.
//!
//! For each guest node with devices there is an expander bus, and on it a root port per device. The order is that of the
//! guest nodes, and within a node that of the host addresses; the order of the devices in the domain plays no part. The
//! numbers of the expander buses count down from 255, each leaving room for the ports above it.
//!
//! Which guest node stands for a host node is read from the domain: `<numatune>` where it binds a node's memory, else the
//! pinning of the virtual CPUs. Released KubeVirt asks sysfs for the host node of a device; [`Behaviour::Extended`] takes
//! it from the device's metadata, and asks sysfs only where the metadata does not say.

use std::collections::BTreeMap;

use super::{HostTopology, PlacementError, cpu_set};
use crate::behaviour::Behaviour;
use crate::hostdev::{Controller, ControllerModel, HostDev, PciFields};

/// The number of the last PCI bus.
const MAX_BUS: u32 = 255;

/// The NUMA topology of a guest, as in its domain document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestTopology {
    /// `<cpu><numa><cell>`: the guest's NUMA nodes.
    pub cells: Vec<Cell>,
    /// `<cputune><vcpupin>`: the pinning of virtual CPUs.
    pub vcpu_pins: Vec<VcpuPin>,
    /// `<numatune><memnode>`: the memory of guest nodes.
    pub memory_nodes: Vec<MemoryNode>,
    /// The highest index of a controller.
    pub last_controller_index: u32,
}

/// A NUMA node of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The number of the node.
    pub id: String,
    /// Its virtual CPUs, as a list.
    pub cpus: String,
}

/// A virtual CPU that is pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuPin {
    /// The virtual CPU.
    pub vcpu: u32,
    /// The CPUs of the host, as a list.
    pub cpu_set: String,
}

/// A guest's NUMA node whose memory is on nodes of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNode {
    /// The guest's node.
    pub cell: u32,
    /// The nodes of the host, as a list.
    pub node_set: String,
}

/// How to place devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NumaOptions {
    /// Whether a device that cannot be placed is an error: the VMI has `cpu.numa.guestMappingPassthrough`.
    pub strict: bool,
    /// Where the host's NUMA node of a device comes from.
    pub behaviour: Behaviour,
}

impl NumaOptions {
    /// Creates options.
    pub fn new(strict: bool, behaviour: Behaviour) -> Self {
        Self { strict, behaviour }
    }
}

/// The result of a placement, besides the addresses of the devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NumaPlacement {
    /// The controllers that the domain needs.
    pub controllers: Vec<Controller>,
    /// The reasons why devices were not placed.
    pub warnings: Vec<String>,
}

/// Places PCI devices without a guest address by the NUMA node of the host that they are on.
///
/// # Errors
/// If there are not enough bus numbers, or a device cannot be placed and the options are strict. The devices are then
/// unchanged.
pub fn place(
    devices: &mut [HostDev],
    guest: &GuestTopology,
    host: &HostTopology,
    options: NumaOptions,
) -> Result<NumaPlacement, PlacementError> {
    let mut warnings = Warnings::default();
    let mut unplaced = BTreeMap::new();
    for (index, device) in devices.iter().enumerate() {
        let Some(fields) = device.host_pci() else { continue };
        let address = match options.behaviour {
            Behaviour::Extended => fields.to_lowercase().to_string(),
            Behaviour::Strict => fields.to_string(),
        };
        if device.guest_address.is_some() {
            warnings.device(format!(
                "device {address} already has a guest PCI address, skipping pcie-expander-bus assignment"
            ));
        } else {
            unplaced.insert(address, index);
        }
    }
    let mapping = if unplaced.is_empty() { Mapping::default() } else { Mapping::new(guest, &mut warnings) };
    let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (address, index) in &unplaced {
        let known = devices.get(*index).and_then(|device| device.origin.numa_node);
        let known = known.filter(|_| options.behaviour == Behaviour::Extended);
        match mapping.guest_node(address, known, host) {
            Ok(node) => groups.entry(node).or_default().push(*index),
            Err(reason) => {
                warnings.device(format!("device {address} cannot be placed on a NUMA-aware PCIe topology: {reason}"));
            }
        }
    }
    if options.strict && !warnings.0.is_empty() {
        return Err(PlacementError::Unplaced(warnings.0));
    }
    let Topology { controllers, addresses } = build(&groups, guest.last_controller_index)?;
    for (index, address) in addresses {
        if let Some(device) = devices.get_mut(index) {
            device.guest_address = Some(address);
        }
    }
    Ok(NumaPlacement { controllers, warnings: warnings.0 })
}

/// Controllers, and the addresses of devices on them by the devices' positions.
#[derive(Default)]
struct Topology {
    controllers: Vec<Controller>,
    addresses: Vec<(usize, PciFields)>,
}

/// Creates the controllers for groups of devices, and the address of each device.
fn build(groups: &BTreeMap<u32, Vec<usize>>, last_index: u32) -> Result<Topology, PlacementError> {
    let Topology { mut controllers, mut addresses } = Topology::default();
    let mut index = last_index;
    let mut last_bus = MAX_BUS;
    for (node, devices) in groups {
        index += 1;
        let expander = index;
        let position = controllers.len();
        for (slot, device) in devices.iter().enumerate() {
            if index >= last_bus.saturating_sub(1) {
                return Err(PlacementError::NoBusNumbers { index, last_bus });
            }
            index += 1;
            let slot = u8::try_from(slot).unwrap_or(u8::MAX);
            let address = PciFields::guest(expander.to_string(), slot);
            controllers.push(Controller { index, model: ControllerModel::RootPort { address } });
            addresses.push((*device, PciFields::guest(index.to_string(), 0)));
        }
        // The expander bus needs a number for itself and one for each of its ports.
        let created = u32::try_from(controllers.len() + 1).unwrap_or(MAX_BUS);
        last_bus = (MAX_BUS + 1).saturating_sub(created);
        let model = ControllerModel::ExpanderBus { bus_number: last_bus, node: *node };
        controllers.insert(position, Controller { index: expander, model });
    }
    Ok(Topology { controllers, addresses })
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn device(&mut self, warning: String) {
        self.0.push(warning);
    }
}

/// The guest's nodes that stand for nodes and CPUs of the host.
#[derive(Default)]
struct Mapping {
    /// Whether the guest has NUMA nodes at all.
    has_cells: bool,
    by_host_node: BTreeMap<u32, u32>,
    by_host_cpu: BTreeMap<u32, u32>,
}

impl Mapping {
    fn new(guest: &GuestTopology, warnings: &mut Warnings) -> Self {
        if guest.cells.is_empty() {
            return Self::default();
        }
        let mut cell_of_vcpu = BTreeMap::new();
        for cell in &guest.cells {
            match (cell.id.parse::<u32>(), cpu_set::parse(&cell.cpus)) {
                (Ok(id), Ok(vcpus)) => cell_of_vcpu.extend(vcpus.into_iter().map(|vcpu| (vcpu, id))),
                (Err(error), _) => {
                    warnings.device(format!("ignoring guest NUMA cell with invalid ID {:?}: {error}", cell.id));
                }
                (_, Err(error)) => warnings.device(format!(
                    "ignoring guest NUMA cell {:?} with invalid CPU set {:?}: {error}",
                    cell.id, cell.cpus
                )),
            }
        }
        let mut by_host_cpu = BTreeMap::new();
        for pin in &guest.vcpu_pins {
            match cpu_set::parse(&pin.cpu_set) {
                Ok(cpus) => {
                    let cell = cell_of_vcpu.get(&pin.vcpu).copied();
                    by_host_cpu.extend(cpus.into_iter().filter_map(|cpu| Some((cpu, cell?))));
                }
                Err(error) => {
                    warnings.device(format!("ignoring invalid vCPU pinning for vCPU {}: {error}", pin.vcpu));
                }
            }
        }
        Self { has_cells: true, by_host_node: by_host_node(guest, warnings), by_host_cpu }
    }

    /// Returns the guest's node for a device, or the reason why there is none.
    fn guest_node(&self, address: &str, known: Option<u32>, host: &HostTopology) -> Result<u32, String> {
        if !self.has_cells || (self.by_host_node.is_empty() && self.by_host_cpu.is_empty()) {
            return Err("no guest NUMA node mapping is available".to_owned());
        }
        let node = match known {
            Some(node) => node,
            None => host.numa_node(address).map_err(|error| format!("failed to read host NUMA affinity: {error}"))?,
        };
        if let Some(cell) = self.by_host_node.get(&node) {
            return Ok(*cell);
        }
        let cpus =
            host.cpus(node).map_err(|error| format!("failed to read CPU list for host NUMA node {node}: {error}"))?;
        let cell = cpus.iter().find_map(|cpu| self.by_host_cpu.get(cpu));
        cell.copied().ok_or_else(|| format!("host NUMA node {node} cannot be mapped to a guest NUMA cell"))
    }
}

/// Returns the guest's nodes by the host's nodes that hold their memory. A host node of two guest nodes is left out.
fn by_host_node(guest: &GuestTopology, warnings: &mut Warnings) -> BTreeMap<u32, u32> {
    let mut nodes: BTreeMap<u32, Option<u32>> = BTreeMap::new();
    let is_cell = |number: u32| guest.cells.iter().any(|cell| cell.id.parse() == Ok(number));
    for memory in &guest.memory_nodes {
        if !is_cell(memory.cell) {
            warnings.device(format!("ignoring NUMATune memnode for unknown guest NUMA cell {}", memory.cell));
            continue;
        }
        let host_nodes = match cpu_set::parse(&memory.node_set) {
            Ok(host_nodes) => host_nodes,
            Err(error) => {
                warnings.device(format!(
                    "ignoring NUMATune memnode for guest NUMA cell {} with invalid nodeset {:?}: {error}",
                    memory.cell, memory.node_set
                ));
                continue;
            }
        };
        for host_node in host_nodes {
            let entry = nodes.entry(host_node).or_insert(Some(memory.cell));
            if let Some(other) = *entry
                && other != memory.cell
            {
                warnings.device(format!(
                    "host NUMA node {host_node} is mapped to multiple guest NUMA cells ({other} and {}); ignoring NUMATune mapping for that host node",
                    memory.cell
                ));
                *entry = None;
            }
        }
    }
    nodes.into_iter().filter_map(|(host_node, cell)| Some((host_node, cell?))).collect()
}
