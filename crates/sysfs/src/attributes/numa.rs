//! The NUMA nodes of devices.

use std::ops::RangeInclusive;

use drakkar_metadata::DeviceAttribute;

use super::{AttributeError, MAX_NUMA_NODE, PciAddress, StandardAttributes, read};

/// The form of the NUMA node attribute. Let the operator choose: lists need the feature gate `DRAListTypeAttributes` in the
/// cluster, and a driver cannot detect whether it is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NumaForm {
    /// The node that the device is attached to.
    #[default]
    Number,
    /// That node first, then the nodes at the shortest distance from it on the same socket.
    List,
}

impl StandardAttributes {
    /// Returns the value of [`super::NUMA_NODE`] for a PCI device, or [`AttributeError::NoNumaNode`] if it belongs to no
    /// node.
    pub fn numa_node(&self, address: &PciAddress, form: NumaForm) -> Result<DeviceAttribute, AttributeError> {
        let path = self.pci_device(address).join("numa_node");
        let text = read(&path)?;
        let node = text.parse::<i64>().ok();
        let node = node.ok_or_else(|| AttributeError::Content { path: path.clone(), text, expected: "a number" })?;
        if node < 0 {
            return Err(AttributeError::NoNumaNode { path });
        }
        let node = u32::try_from(node).ok().ok_or(AttributeError::InvalidNumaNode { node })?;
        self.numa_node_attribute(node, form)
    }

    /// Returns the value of [`super::NUMA_NODE`] for a device whose node is already known.
    pub fn numa_node_attribute(&self, node: u32, form: NumaForm) -> Result<DeviceAttribute, AttributeError> {
        if node > MAX_NUMA_NODE {
            return Err(AttributeError::InvalidNumaNode { node: node.into() });
        }
        Ok(match form {
            NumaForm::Number => i64::from(node).into(),
            NumaForm::List => self.nearest(node).into_iter().map(i64::from).collect::<Vec<_>>().into(),
        })
    }

    /// Returns the NUMA node of a CPU, for devices whose local CPUs are all that the kernel exposes.
    pub fn numa_node_of_cpu(&self, cpu: u32) -> Result<u32, AttributeError> {
        let path = self.path(format!("devices/system/cpu/cpu{cpu}"));
        let entries = std::fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = entries.map_err(|source| AttributeError::Read { path: path.clone(), source })?;
        let names = entries.iter().filter_map(|entry| entry.file_name().into_string().ok());
        let mut nodes = names.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        nodes.find(|node| *node <= MAX_NUMA_NODE).ok_or(AttributeError::NoNodeOfCpu { path })
    }

    /// Returns the node and those that are nearest to it on its socket. Without known distances, only the node.
    fn nearest(&self, node: u32) -> Vec<u32> {
        let Some(distances) = self.distances(node) else { return vec![node] };
        let others = || distances.iter().filter(|(other, _)| *other != node);
        let shortest = others().map(|(_, distance)| *distance).min();
        let socket = self.socket(node);
        let is_on_other_socket = |other: u32| match (socket, self.socket(other)) {
            (Some(socket), Some(other)) => socket != other,
            _ => false,
        };
        let nearest = others().filter(|(_, distance)| Some(*distance) == shortest).map(|(other, _)| *other);
        let mut nearest: Vec<u32> = nearest.filter(|other| !is_on_other_socket(*other)).collect();
        nearest.sort_unstable();
        nearest.insert(0, node);
        nearest
    }

    /// Returns the distances of all nodes from one. The kernel lists them for the nodes that are online, in order: if some
    /// are offline, the third distance is not that of node 2.
    fn distances(&self, node: u32) -> Option<Vec<(u32, u32)>> {
        let row = read(&self.path(format!("devices/system/node/node{node}/distance"))).ok()?;
        let distances: Vec<u32> =
            row.split_ascii_whitespace().map(|distance| distance.parse().ok()).collect::<Option<_>>()?;
        let nodes = match read(&self.path("devices/system/node/online")) {
            Ok(online) => ranges(&online)?.into_iter().flatten().collect(),
            // Every kernel has this file. Without it, assume that all nodes are online.
            Err(_) => (0..).take(distances.len()).collect::<Vec<u32>>(),
        };
        let is_consistent = nodes.len() == distances.len() && nodes.contains(&node);
        is_consistent.then(|| nodes.into_iter().zip(distances).collect())
    }

    /// Returns the socket of a node: that of its first CPU. A node without CPUs has none.
    fn socket(&self, node: u32) -> Option<u32> {
        let cpus = read(&self.path(format!("devices/system/node/node{node}/cpulist"))).ok()?;
        let cpu = *ranges(&cpus)?.first()?.start();
        let package = read(&self.path(format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"))).ok()?;
        package.parse().ok()
    }
}

/// Parses a list of numbers in the kernel's format, such as `0-3,8`.
fn ranges(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().ok()?;
        let last: u32 = last.parse().ok()?;
        // No machine has more, and a malformed range must not expand to billions of numbers.
        (first <= last && last < 1 << 16).then_some(first..=last)
    };
    text.split(',').filter(|part| !part.is_empty()).map(range).collect()
}
