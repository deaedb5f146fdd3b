//! The device nodes of RDMA devices, for the containers of claims: `/dev/infiniband/uverbsN` and `/dev/infiniband/rdma_cm`.
//!
//! A claim that gets an interface as a whole gets the nodes of its RDMA device with it, as a CDI device of its own class, so that only
//! containers with that request have them. Which nodes these are is known when the claim is prepared: they do not change
//! when the RDMA device moves to a pod. Claims that share an interface get none, because the RDMA device is not theirs. Nodes for the
//! management of a fabric (`umad`, `issm`) are left out.
//!
//! Specs are written after the claim's record and removed before it; what a crash leaves is removed at the start
//! ([`RdmaNodes::remove_orphans`]).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_driver_kit::cdi::{CdiError, SpecSettings, Specs};
use drakkar_driver_kit::files::{Files as _, SystemFiles};
use drakkar_metadata::name::{ClaimUid, DriverName};
use drakkar_plugin::Device;
use drakkar_sysfs::Roots;

use crate::attributes::{RDMA_DEVICE, text_of};
use crate::claims::base;
use crate::journal::{DeviceRecord, Record};
use crate::metadata;

/// The class of the CDI devices.
const CLASS: &str = "rdma";
/// The kernel's connection manager, which all RDMA devices share.
const CONNECTION_MANAGER: &str = "infiniband/rdma_cm";

/// The RDMA device nodes of claims.
#[derive(Debug)]
pub(crate) struct RdmaNodes {
    specs: Specs,
    sys: PathBuf,
}

impl RdmaNodes {
    /// Opens the directory of CDI specs, which is made.
    pub(crate) fn open(
        roots: &Roots,
        driver: DriverName,
        directory: PathBuf,
        host_dev: PathBuf,
    ) -> Result<Self, CdiError> {
        let made = SystemFiles.make_directory(&directory);
        made.map_err(|source| CdiError::File { action: "make", path: directory.clone(), source })?;
        let settings = SpecSettings { directory, driver, class: CLASS, dev: roots.dev.clone(), host_dev };
        Ok(Self { specs: Specs::new(Arc::new(SystemFiles), settings), sys: roots.sys.clone() })
    }

    /// Writes the spec of a claim. Returns the devices of the requests with nodes, without metadata, which comes later.
    pub(crate) fn prepare(&self, record: &Record) -> Result<Vec<Device>, CdiError> {
        let nodes: Vec<(String, Vec<String>)> =
            record.devices.iter().map(|device| (device.device.clone(), self.nodes(device))).collect();
        self.specs.write(&record.claim.uid, &nodes)?;
        let has_nodes = |device: &str| nodes.iter().any(|(name, nodes)| name == device && !nodes.is_empty());
        let with_nodes = record.devices.iter().filter(|device| has_nodes(&device.device));
        let requests: BTreeSet<&str> = with_nodes.map(|device| base(&device.request)).collect();
        let mut devices = Vec::new();
        for device in record.devices.iter().filter(|device| requests.contains(base(&device.request))) {
            let mut cdi_device_ids = Vec::new();
            if has_nodes(&device.device) {
                cdi_device_ids.push(self.specs.id(&record.claim.uid, &device.device)?.to_string());
            }
            devices.push(Device { cdi_device_ids, ..metadata::device(device, None) });
        }
        Ok(devices)
    }

    /// Removes the spec of a claim. One that has none is not an error.
    pub(crate) fn unprepare(&self, uid: &ClaimUid) -> Result<(), CdiError> {
        self.specs.remove(uid)
    }

    /// Removes the specs of claims that are not known.
    pub(crate) fn remove_orphans(&self, known: &BTreeSet<ClaimUid>) -> Result<(), CdiError> {
        self.specs.remove_orphans(known)
    }

    /// Returns the nodes of a device, relative to `/dev`.
    fn nodes(&self, device: &DeviceRecord) -> Vec<String> {
        let is_whole = device.interface().is_some_and(|interface| interface.plan.child.is_none());
        let name = text_of(&device.attributes, RDMA_DEVICE);
        name.filter(|_| is_whole).map(|name| nodes_of(&self.sys, name)).unwrap_or_default()
    }
}

/// Returns the nodes of an RDMA device, relative to `/dev`: none as long as the kernel's module for them is not loaded.
fn nodes_of(sys: &Path, device: &str) -> Vec<String> {
    let class = sys.join("class/infiniband_verbs");
    let entries = fs::read_dir(&class).into_iter().flatten().flatten();
    let mut nodes: Vec<String> = entries
        .filter(|entry| fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim_end() == device))
        .map(|entry| format!("infiniband/{}", entry.file_name().to_string_lossy()))
        .collect();
    nodes.sort_unstable();
    if !nodes.is_empty() && sys.join("class/misc/rdma_cm").exists() {
        nodes.push(CONNECTION_MANAGER.to_owned());
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_a_device_are_found_by_its_name() {
        let sys = tempfile::tempdir().unwrap();
        let verbs = |node: &str, device: &str| {
            let directory = sys.path().join("class/infiniband_verbs").join(node);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("ibdev"), format!("{device}\n")).unwrap();
        };
        assert_eq!(nodes_of(sys.path(), "mlx5_0"), [""; 0], "a kernel without RDMA");
        verbs("uverbs0", "mlx5_0");
        verbs("uverbs1", "mlx5_1");
        fs::write(sys.path().join("class/infiniband_verbs/abi_version"), "6\n").unwrap();
        assert_eq!(nodes_of(sys.path(), "mlx5_1"), ["infiniband/uverbs1"]);
        fs::create_dir_all(sys.path().join("class/misc/rdma_cm")).unwrap();
        assert_eq!(nodes_of(sys.path(), "mlx5_0"), ["infiniband/uverbs0", "infiniband/rdma_cm"]);
        assert_eq!(nodes_of(sys.path(), "mlx5_9"), [""; 0]);
    }
}
