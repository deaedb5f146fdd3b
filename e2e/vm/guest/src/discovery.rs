//! The inventory of the real sysfs against what QEMU says that it has.

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::PciAddress;

use crate::ensure_eq;
use crate::guest::{Guest, modprobe};

/// The root bus of the host bridge that is on NUMA node 1.
const NODE_1: u64 = 64;

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let mut hardware = guest.hardware()?;
    // QEMU also lists the virtual functions of igb that nobody has made.
    hardware.retain(|_, real| real.vendor != 0xffff);
    let inventory = guest.scan()?;
    ensure!(inventory.problems.is_empty(), "problems: {:?}", inventory.problems);
    let texts = |address: &PciAddress| address.to_string();
    let expected: Vec<_> = hardware.keys().map(texts).collect();
    ensure_eq!(inventory.devices.keys().map(texts).collect::<Vec<_>>(), expected);
    for (address, real) in &hardware {
        let device = inventory.devices.get(address).context("compared above")?;
        ensure!(device.problems.is_empty(), "{address}: {:?}", device.problems);
        ensure_eq!(
            (u64::from(device.vendor), u64::from(device.device)),
            (real.vendor, real.device),
            "ids of {address}"
        );
        ensure_eq!(u64::from(device.class >> 8), real.class, "class of {address}");
        let root = format!("pci0000:{:02x}", real.root_bus);
        ensure_eq!(device.pcie_root.as_deref(), Some(root.as_str()), "pcieRoot of {address}");
        let node = (real.root_bus == NODE_1).then_some(1);
        ensure_eq!(device.numa_node, node, "NUMA node of {address}");
        ensure!(device.iommu_group.is_some(), "{address} has no IOMMU group");
        ensure!(device.physical_function.is_none(), "{address} is no virtual function");
    }
    let driver = |id: &str| {
        let (address, _) = hardware.iter().find(|(_, hardware)| hardware.id == id)?;
        inventory.devices.get(address)?.driver.as_deref()
    };
    for (id, expected) in
        [("nic0", Some("e1000e")), ("old0", Some("e1000")), ("multi0", None), ("port4", Some("pcieport"))]
    {
        ensure_eq!(driver(id), expected, "driver of {id}");
    }

    // Groups: alone, the two functions of a slot, and all that is behind a conventional bridge, with the bridge.
    for members in [&["nic0"][..], &["nic1"], &["nic2"], &["multi0", "multi1"], &["bridge", "old0", "old1"]] {
        let mut addresses = Vec::new();
        for id in members {
            addresses.push(guest.address(id)?);
        }
        addresses.sort();
        let group = inventory.devices[&addresses[0]].iommu_group.context("a group")?;
        ensure_eq!(inventory.groups[&group].devices, addresses, "group of {members:?}");
        ensure!(inventory.groups[&group].other_devices.is_empty());
    }
    let old0 = guest.address("old0")?;
    let group = &inventory.groups[&inventory.devices[&old0].iommu_group.context("a group")?];
    ensure_eq!(group.viability.to_string(), format!("not viable: {old0} is bound to driver e1000"));

    let with_functions: Vec<_> = inventory.devices.values().filter(|device| device.sriov.is_some()).collect();
    match guest.address("sriov") {
        Ok(address) => {
            ensure_eq!(with_functions.iter().map(|device| device.address).collect::<Vec<_>>(), [address]);
            let sriov = with_functions[0].sriov.as_ref().context("filtered above")?;
            // QEMU's igb has eight; the driver lowers that to seven.
            ensure_eq!((sriov.total_vfs, sriov.num_vfs), (7, 0));
        }
        Err(_) => ensure_eq!(with_functions.len(), 0),
    }

    if modprobe("mtty").is_ok() {
        let inventory = guest.scan()?;
        let parent = inventory.mdev_parents.get("mtty").context("mtty is no parent of mediated devices")?;
        ensure!(parent.problems.is_empty(), "{:?}", parent.problems);
        let types: Vec<_> =
            parent.mdev_types.iter().map(|known| (known.id.as_str(), known.available_instances)).collect();
        // The module's 24 ports, one or two for each instance.
        ensure_eq!(types, [("mtty-1", 24), ("mtty-2", 12)]);
        ensure!(parent.mdev_types.iter().all(|known| known.device_api.as_deref() == Some("vfio-pci")));
    } else {
        println!("no mtty in this kernel");
    }
    println!(
        "{} devices, {} groups, {} files opened",
        inventory.devices.len(),
        inventory.groups.len(),
        guest.sysfs.opens()
    );
    Ok(())
}
