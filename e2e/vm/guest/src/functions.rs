//! Virtual functions: of igb, one of them with vfio-pci, and of an `NVMe` controller.

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::{Binding, ChangeError, PciAddress, VfCount, bind_to, restore, set_num_vfs, virtual_functions};

use crate::binding::group_node;
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, wait};

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let physical = guest.address("sriov")?;
    modprobe("igbvf")?;
    functions(guest, physical, Some("igbvf"), 3)
}

pub(crate) fn nvme(guest: &mut Guest) -> Result<()> {
    let physical = guest.address("nvme0")?;
    // A new function has no queues: its driver gives up, and the administrator would assign some to it first.
    functions(guest, physical, None, 2)
}

fn functions(guest: &Guest, physical: PciAddress, driver: Option<&str>, number: u16) -> Result<()> {
    modprobe("vfio-pci")?;
    let sysfs = &guest.sysfs;
    let VfCount { current, total } = VfCount::read(sysfs, physical)?;
    ensure_eq!(current, 0);
    match set_num_vfs(sysfs, physical, total + 1, |_| None) {
        Err(ChangeError::TooManyVfs { .. }) => {}
        other => anyhow::bail!("{other:?}"),
    }
    // What the check above keeps from the kernel: it would have said ERANGE.
    let file = sysfs.roots().pci_device(&physical).join("sriov_numvfs");
    let refused = sysfs.write(&physical, &file, &(total + 1).to_string());
    ensure_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(34));

    set_num_vfs(sysfs, physical, number, |_| None)?;
    let made = virtual_functions(sysfs, physical)?;
    ensure_eq!(made.len(), usize::from(number));
    let inventory = guest.scan()?;
    let sriov = inventory.devices[&physical].sriov.clone().context("SR-IOV")?;
    ensure_eq!((sriov.num_vfs, &sriov.virtual_functions), (number, &made));
    for function in &made {
        let device = inventory.devices.get(function).with_context(|| format!("no {function}"))?;
        ensure_eq!(device.physical_function, Some(physical));
        ensure!(device.problems.is_empty(), "{:?}", device.problems);
        let group = device.iommu_group.context("a group")?;
        ensure_eq!(inventory.groups[&group].devices, [*function]);
    }

    let function = *made.last().context("there are some")?;
    wait(&format!("{function} to have the driver {driver:?}"), || {
        Ok(guest.device(function)?.driver.as_deref() == driver)
    })?;
    let former = Binding::read(sysfs, function)?.context("it is there")?;
    bind_to(sysfs, function, "vfio-pci")?;
    let node = group_node(guest.device(function)?.iommu_group.context("a group")?);
    ensure!(node.exists(), "no {}", node.display());
    match set_num_vfs(sysfs, physical, 1, |_| None) {
        Err(ChangeError::VfInUse { vf, .. }) => ensure_eq!(vf, function),
        other => anyhow::bail!("a virtual function with vfio-pci would be removed: {other:?}"),
    }
    restore(sysfs, function, Some("vfio-pci"), &former)?;
    ensure_eq!(guest.device(function)?.driver.as_deref(), driver);
    wait("the group's node to be gone", || Ok(!node.exists()))?;

    set_num_vfs(sysfs, physical, 1, |_| None)?;
    ensure_eq!(virtual_functions(sysfs, physical)?, made[..1]);
    set_num_vfs(sysfs, physical, 0, |_| None)?;
    let inventory = guest.scan()?;
    ensure!(inventory.devices.values().all(|device| device.physical_function.is_none()));
    ensure!(made.iter().all(|function| !inventory.devices.contains_key(function)));
    Ok(())
}
