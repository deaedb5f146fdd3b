//! DPDK: a virtual function that is bound for user space for a claim, and its interface that comes back with its driver.

use anyhow::{Context, Result, ensure};
use drakkar_net::DRIVER_NAME;
use drakkar_net::binder::{Binder, PciBinder};
use drakkar_pci::ManagerSettings;
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::Sysfs;

use super::{Network, make_functions};
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, names, wait};

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    for module in ["vfio-pci", "vfio_iommu_type1"] {
        modprobe(module)?;
    }
    let mut host = Network::host()?;
    let functions = make_functions(guest, 2)?;
    let former = host.device(functions[0])?;
    let other = host.device(functions[1])?;
    let claim = ClaimRef {
        namespace: "default".parse()?,
        name: "dpdk".parse()?,
        uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse()?,
    };

    let (binder, _) = open(guest.sysfs.clone())?;
    let bound = binder.bind(&claim, &[functions[0]]).map_err(|error| anyhow::anyhow!(error))?;
    println!("{bound:?}");
    let group = guest.device(functions[0])?.iommu_group.context("a group")?;
    ensure_eq!((bound[0].iommu_group, bound[0].driver.as_deref()), (Some(group), Some("vfio-pci")));
    ensure!(
        bound[0].nodes.iter().all(|node| node.exists())
            && bound[0].nodes.contains(&format!("/dev/vfio/{group}").into())
    );
    ensure_eq!(names("/run/cdi").len(), 1);
    ensure_eq!(host.connection.link_by_name(&former.name)?, None, "its interface is gone");
    ensure_eq!(host.device(functions[1])?.name, other.name, "the other one stays");

    // Another process finds it.
    let (next, recovery) = open(guest.sysfs.clone())?;
    ensure_eq!(recovery.prepared.len(), 1);
    ensure_eq!(next.bind(&claim, &[functions[0]]).map_err(|error| anyhow::anyhow!(error))?, bound);
    for _ in 0..2 {
        next.release(&claim.uid).map_err(|error| anyhow::anyhow!(error))?;
    }
    let back = host.device(functions[0])?;
    println!("{}, index {} before, is {}, index {}", former.name, former.index, back.name, back.index);
    ensure_eq!((&back.name, &back.device, back.mtu), (&former.name, &former.device, former.mtu));
    ensure_eq!(guest.device(functions[0])?.driver.as_deref(), Some("igbvf"));
    ensure_eq!(names("/run/cdi").len(), 0);
    wait("the group's node to be gone", || Ok(!names("/dev/vfio").contains(&group.to_string())))
}

fn open(sysfs: Sysfs) -> Result<(PciBinder, drakkar_pci::Recovery)> {
    let settings = ManagerSettings {
        driver: DRIVER_NAME.parse()?,
        state_directory: "/run/functions".into(),
        cdi_directory: "/run/cdi".into(),
        host_dev: "/dev".into(),
    };
    Ok(PciBinder::open(sysfs, &settings)?)
}
