//! Binding to vfio-pci and back, for a device alone in its group and for a group of several.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::{Binding, Restored, bind_to, restore};

use crate::debian::Debian;
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, names, wait};

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    modprobe("vfio-pci")?;
    let has_iommufd = modprobe("iommufd").is_ok();
    ensure_eq!(guest.scan()?.iommufd, has_iommufd);
    for id in ["nic0", "nic2"] {
        let address = guest.address(id)?;
        let before = guest.device(address)?;
        ensure_eq!(before.driver.as_deref(), Some("e1000e"));
        let directory = guest.sysfs.roots().pci_device(&address);
        let interfaces = names(directory.join("net"));
        ensure_eq!(interfaces.len(), 1, "interfaces of {id}");
        let node = group_node(before.iommu_group.context("a group")?);
        ensure!(!node.exists(), "{} exists already", node.display());

        let former = Binding::read(&guest.sysfs, address)?.context("it is there")?;
        bind_to(&guest.sysfs, address, "vfio-pci")?;
        let bound = guest.device(address)?;
        ensure_eq!((bound.driver.as_deref(), bound.driver_override.as_deref()), (Some("vfio-pci"), Some("vfio-pci")));
        ensure!(node.exists(), "no {}", node.display());
        ensure!(names(directory.join("net")).is_empty());
        ensure!(guest.scan()?.groups[&before.iommu_group.context("a group")?].viability.is_viable());
        let cdevs = names("/dev/vfio/devices");
        ensure_eq!(bound.vfio_cdev.into_iter().collect::<Vec<_>>(), cdevs);
        ensure_eq!(cdevs.len(), usize::from(has_iommufd));
        // Once more: nothing to do.
        bind_to(&guest.sysfs, address, "vfio-pci")?;

        ensure_eq!(restore(&guest.sysfs, address, Some("vfio-pci"), &former)?, Restored::Done);
        ensure_eq!(restore(&guest.sysfs, address, Some("vfio-pci"), &former)?, Restored::Unchanged);
        wait(&format!("{} to be gone", node.display()), || Ok(!node.exists()))?;
        ensure!(names("/dev/vfio/devices").is_empty());
        let after = guest.device(address)?;
        ensure_eq!((&after.driver, &after.driver_override), (&before.driver, &before.driver_override));
        ensure_eq!(names(directory.join("net")), interfaces);
    }
    Ok(())
}

/// A group of several devices: what the inventory calls viable is what VFIO lets QEMU have, and what it calls not viable VFIO
/// refuses.
pub(crate) fn group(guest: &mut Guest) -> Result<()> {
    modprobe("vfio-pci")?;
    modprobe("vfio_iommu_type1")?;
    let network = guest.address("old0")?;
    let other = guest.address("old1")?;
    let number = guest.device(other)?.iommu_group.context("a group")?;
    let formers = [network, other].map(|address| Binding::read(&guest.sysfs, address));
    let debian = Debian::mount()?;

    bind_to(&guest.sysfs, other, "vfio-pci")?;
    let viability = guest.scan()?.groups.remove(&number).context("the group")?.viability;
    ensure_eq!(viability.to_string(), format!("not viable: {network} is bound to driver e1000"));
    ensure!(viability.once_bound(&[network]).is_viable());
    ensure!(group_node(number).exists(), "the node does not say that the group is viable");
    let refusal = debian.start_qemu(&[other])?.err().context("QEMU got a group that is not viable")?;
    println!("QEMU on a group that is not viable: {refusal}");
    ensure!(refusal.contains("not viable"), "QEMU refused for another reason: {refusal}");

    bind_to(&guest.sysfs, network, "vfio-pci")?;
    ensure!(guest.scan()?.groups[&number].viability.is_viable());
    let mut qemu = match debian.start_qemu(&[network, other])? {
        Ok(qemu) => qemu,
        Err(refusal) => anyhow::bail!("QEMU does not get the viable group: {refusal}"),
    };
    let devices = qemu.query("query-pci")?.to_string();
    ensure!(devices.contains("4110") && devices.contains("4584"), "100e and 11e8 are not in {devices}");
    qemu.quit()?;

    for (address, former) in [network, other].into_iter().zip(formers) {
        restore(&guest.sysfs, address, Some("vfio-pci"), &former?.context("it was there")?)?;
    }
    ensure_eq!(guest.device(network)?.driver.as_deref(), Some("e1000"));
    ensure_eq!(guest.device(other)?.driver, None);
    wait("the group's node to be gone", || Ok(!group_node(number).exists()))
}

/// The node of a group.
pub(crate) fn group_node(group: u32) -> PathBuf {
    Path::new("/dev/vfio").join(group.to_string())
}
