//! Binding PCI functions for programs in user space (DPDK): the seam between this driver and the code that binds.
//!
//! [`PciBinder`] is the PCI driver's own: its journal, its rollback and its CDI specs, in a directory of this driver.

use std::fmt;
use std::path::PathBuf;

use drakkar_metadata::name::ClaimUid;
use drakkar_pci::{DeviceManager, DeviceRequest, ManagerSettings, PrepareError, Recovery, Target};
use drakkar_plugin::{BoxError, ClaimRef};
use drakkar_sysfs::{PciAddress, Sysfs};

/// A function that is bound for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundFunction {
    /// The function.
    pub address: PciAddress,
    /// Its IOMMU group.
    pub iommu_group: Option<u32>,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// The device nodes in a container that gets it.
    pub nodes: Vec<PathBuf>,
    /// The id of the CDI device with them.
    pub cdi_id: Option<String>,
}

/// Binds functions for claims, and gives them back. All methods block.
pub trait Binder: fmt::Debug + Send + Sync + 'static {
    /// Binds the functions of a claim to vfio-pci. Again for the same claim, it gives the same answer. If it fails, everything is as it
    /// was before, or is taken back later.
    fn bind(&self, claim: &ClaimRef, functions: &[PciAddress]) -> Result<Vec<BoundFunction>, BoxError>;

    /// Gives the functions of a claim back to their former drivers. A claim that has none is not an error.
    fn release(&self, claim: &ClaimUid) -> Result<(), BoxError>;
}

/// The binder of the PCI driver.
#[derive(Debug)]
pub struct PciBinder {
    manager: DeviceManager,
}

impl PciBinder {
    /// Opens the binder, and brings to an end what an earlier process has left.
    pub fn open(sysfs: Sysfs, settings: &ManagerSettings) -> Result<(Self, Recovery), PrepareError> {
        let manager = DeviceManager::open(sysfs, settings)?;
        let recovery = manager.recover(|_| true)?;
        Ok((Self { manager }, recovery))
    }

    /// Returns what binds, to try again what could not be taken back ([`DeviceManager::retry`]).
    pub fn manager(&self) -> &DeviceManager {
        &self.manager
    }
}

impl Binder for PciBinder {
    fn bind(&self, claim: &ClaimRef, functions: &[PciAddress]) -> Result<Vec<BoundFunction>, BoxError> {
        let requests: Vec<DeviceRequest> =
            functions.iter().map(|address| DeviceRequest::new(Target::Function(*address))).collect();
        let prepared = self.manager.prepare(claim, &requests)?;
        let bound = prepared.into_iter().filter_map(|device| {
            Some(BoundFunction {
                address: device.address?,
                iommu_group: device.iommu_group,
                driver: device.driver,
                nodes: device.nodes,
                cdi_id: device.cdi_id.map(|id| id.to_string()),
            })
        });
        Ok(bound.collect())
    }

    fn release(&self, claim: &ClaimUid) -> Result<(), BoxError> {
        Ok(self.manager.unprepare(claim)?)
    }
}

#[cfg(test)]
mod tests {
    use drakkar_sysfs::simulation::{Description, Simulation};

    use super::*;

    #[test]
    fn a_virtual_function_is_bound_and_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let description: Description = serde_json::from_value(serde_json::json!({
            "drivers": [{"name": "iavf", "ids": ["8086:1889"]}],
            "devices": [
                {"address": "0000:3b:02.0", "vendor": "8086", "device": "1889", "class": "020000", "iommuGroup": 7, "net": ["ens1v0"]},
            ],
        }))
        .unwrap();
        let host = Simulation::create(directory.path().join("host"), &description).unwrap();
        let settings = ManagerSettings {
            driver: crate::DRIVER_NAME.parse().unwrap(),
            state_directory: directory.path().join("functions"),
            cdi_directory: directory.path().join("cdi"),
            host_dev: host.roots().dev,
        };
        let (binder, recovery) = PciBinder::open(host.sysfs(), &settings).unwrap();
        assert!(recovery.prepared.is_empty());
        let claim = ClaimRef {
            namespace: "default".parse().unwrap(),
            name: "dpdk".parse().unwrap(),
            uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
        };
        let address: PciAddress = "0000:3b:02.0".parse().unwrap();
        let bound = binder.bind(&claim, &[address]).unwrap();
        assert_eq!(binder.bind(&claim, &[address]).unwrap(), bound);
        assert_eq!((bound[0].iommu_group, bound[0].driver.as_deref()), (Some(7), Some("vfio-pci")));
        assert!(bound[0].nodes.contains(&PathBuf::from("/dev/vfio/7")) && bound[0].cdi_id.is_some(), "{bound:?}");
        let net = || host.roots().sys.join("class/net/ens1v0").exists();
        assert!(!net());
        binder.release(&claim.uid).unwrap();
        binder.release(&claim.uid).unwrap();
        assert!(net());
    }
}
