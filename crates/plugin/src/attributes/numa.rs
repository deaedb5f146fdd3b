//! Which NUMA nodes a device is near to.

use std::ops::RangeInclusive;

use drakkar_metadata::DeviceAttribute;

use super::{AttributeError, MAX_NUMA_NODE, PciAddress, Sysfs, read};

/// In which form the NUMA node is told. It is the operator's choice: lists need the feature gate `DRAListTypeAttributes` in
/// the cluster, and a driver cannot find out whether it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NumaForm {
    /// The node that the device is attached to.
    #[default]
    Number,
    /// That node first, and then those that are as near to it as any other and on the same socket.
    List,
}

impl Sysfs {
    /// The value of [`super::NUMA_NODE`] for a PCI device. A device that belongs to no node has none:
    /// [`AttributeError::NoNumaNode`].
    pub fn numa_node(&self, address: &PciAddress, form: NumaForm) -> Result<DeviceAttribute, AttributeError> {
        let path = self.pci_device(address).join("numa_node");
        let text = read(&path)?;
        let node = text.parse::<i64>().ok();
        let node = node.ok_or_else(|| AttributeError::Content { path: path.clone(), text, expected: "a number" })?;
        if node < 0 {
            return Err(AttributeError::NoNumaNode { path });
        }
        let node = u32::try_from(node).ok().ok_or(AttributeError::NumaNode { node })?;
        self.numa_node_attribute(node, form)
    }

    /// The value of [`super::NUMA_NODE`] for a device that is known to be attached to a node.
    pub fn numa_node_attribute(&self, node: u32, form: NumaForm) -> Result<DeviceAttribute, AttributeError> {
        if node > MAX_NUMA_NODE {
            return Err(AttributeError::NumaNode { node: node.into() });
        }
        Ok(match form {
            NumaForm::Number => i64::from(node).into(),
            NumaForm::List => self.near(node).into_iter().map(i64::from).collect::<Vec<_>>().into(),
        })
    }

    /// The NUMA node of a CPU, for devices of which the kernel tells only the CPUs that are near.
    pub fn numa_node_of_cpu(&self, cpu: u32) -> Result<u32, AttributeError> {
        let path = self.path(format!("devices/system/cpu/cpu{cpu}"));
        let entries = std::fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = entries.map_err(|source| AttributeError::Read { path: path.clone(), source })?;
        let names = entries.iter().filter_map(|entry| entry.file_name().into_string().ok());
        let mut nodes = names.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        nodes.find(|node| *node <= MAX_NUMA_NODE).ok_or(AttributeError::NoNodeOfCpu { path })
    }

    /// The node, and those that are nearest to it on its socket. Just the node where the kernel does not tell distances.
    fn near(&self, node: u32) -> Vec<u32> {
        let Some(distances) = self.distances(node) else { return vec![node] };
        let others = || distances.iter().filter(|(other, _)| *other != node);
        let nearest = others().map(|(_, distance)| *distance).min();
        let socket = self.socket(node);
        let is_elsewhere = |other: u32| match (socket, self.socket(other)) {
            (Some(socket), Some(other)) => socket != other,
            _ => false,
        };
        let near = others().filter(|(_, distance)| Some(*distance) == nearest).map(|(other, _)| *other);
        let mut near: Vec<u32> = near.filter(|other| !is_elsewhere(*other)).collect();
        near.sort_unstable();
        near.insert(0, node);
        near
    }

    /// How far all nodes are from one. There is a figure for each node that is online, in their order: with nodes that are
    /// not, the third figure is not that of node 2.
    fn distances(&self, node: u32) -> Option<Vec<(u32, u32)>> {
        let row = read(&self.path(format!("devices/system/node/node{node}/distance"))).ok()?;
        let distances: Vec<u32> =
            row.split_ascii_whitespace().map(|figure| figure.parse().ok()).collect::<Option<_>>()?;
        let nodes = match read(&self.path("devices/system/node/online")) {
            Ok(online) => ranges(&online)?.into_iter().flatten().collect(),
            // Every kernel tells. Where this one does not, all nodes are taken to be there.
            Err(_) => (0..).take(distances.len()).collect::<Vec<u32>>(),
        };
        let fits = nodes.len() == distances.len() && nodes.contains(&node);
        fits.then(|| nodes.into_iter().zip(distances).collect())
    }

    /// The socket of a node: that of the first of its CPUs. A node without CPUs has none.
    fn socket(&self, node: u32) -> Option<u32> {
        let cpus = read(&self.path(format!("devices/system/node/node{node}/cpulist"))).ok()?;
        let cpu = *ranges(&cpus)?.first()?.start();
        let package = read(&self.path(format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"))).ok()?;
        package.parse().ok()
    }
}

/// A list of numbers as the kernel writes it: `0-3,8`.
fn ranges(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // No machine has so many, and nobody is to be kept busy with counting them.
        (first <= last && last < 1 << 16).then_some(first..=last)
    };
    text.split(',').filter(|part| !part.is_empty()).map(range).collect()
}
