//! The NUMA topology of the host, read from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use super::cpu_set;

/// The host's NUMA topology: which node a PCI device is on, and which CPUs a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTopology {
    devices: PathBuf,
    nodes: PathBuf,
}

impl Default for HostTopology {
    fn default() -> Self {
        Self::new(Path::new("/sys"))
    }
}

impl HostTopology {
    /// Creates the topology that a sysfs shows; `/sys`, or a copy of it.
    pub fn new(sysfs: &Path) -> Self {
        Self { devices: sysfs.join("bus/pci/devices"), nodes: sysfs.join("bus/node/devices") }
    }

    /// Returns the NUMA node of a PCI device, or the reason why it has none.
    pub(super) fn numa_node(&self, address: &str) -> Result<u32, String> {
        let path = self.devices.join(address).join("numa_node");
        let node: i64 = read(&path)?.parse().map_err(|error| format!("{}: {error}", path.display()))?;
        // The kernel has -1 for a device without a node.
        u32::try_from(node).ok().ok_or_else(|| format!("device {address} has no NUMA node affinity"))
    }

    /// Returns the CPUs of a NUMA node.
    pub(super) fn cpus(&self, node: u32) -> Result<Vec<u32>, String> {
        let path = self.nodes.join(format!("node{node}")).join("cpulist");
        cpu_set::parse(&read(&path)?).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn read(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.trim().to_owned())
}
