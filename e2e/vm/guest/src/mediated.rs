//! Mediated devices of the kernel's sample parent.

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::{ChangeError, MdevParentName, MdevState, create_mdev, remove_mdev};

use crate::binding::group_node;
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, names};

pub(crate) fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    modprobe("mtty")?;
    let sysfs = &guest.sysfs;
    let parent = MdevParentName::Other("mtty".to_owned());
    let create = sysfs.roots().sys.join("class/mdev_bus/mtty/mdev_supported_types/mtty-2/create");
    let available = || -> Result<Vec<u32>> {
        let inventory = guest.scan()?;
        let parent = inventory.mdev_parents.get("mtty").context("mtty")?;
        Ok(parent.mdev_types.iter().map(|known| known.available_instances).collect())
    };
    ensure_eq!(available()?, [24, 12]);

    create_mdev(sysfs, &parent, "mtty-2", &uuid(0))?;
    // The same again is no error; the kernel alone would say that it exists.
    create_mdev(sysfs, &parent, "mtty-2", &uuid(0))?;
    let duplicate = sysfs.write(&parent, &create, &uuid(0));
    ensure_eq!(duplicate.err().and_then(|error| error.raw_os_error()), Some(17));
    match create_mdev(sysfs, &parent, "mtty-1", &uuid(0)) {
        Err(ChangeError::MdevDiffers { .. }) => {}
        other => anyhow::bail!("{other:?}"),
    }
    match create_mdev(sysfs, &parent, "mtty-9", &uuid(1)) {
        Err(ChangeError::NoMdevType { .. }) => {}
        other => anyhow::bail!("{other:?}"),
    }
    let no_uuid = sysfs.write(&parent, &create, "not-a-uuid");
    ensure_eq!(no_uuid.err().and_then(|error| error.raw_os_error()), Some(22));
    ensure_eq!(available()?, [22, 11]);

    let inventory = guest.scan()?;
    let mdev = inventory.mdevs.get(&uuid(0)).context("the mediated device")?;
    ensure!(mdev.problems.is_empty(), "{:?}", mdev.problems);
    ensure_eq!((mdev.type_id.as_deref(), &mdev.parent), (Some("mtty-2"), &parent));
    ensure_eq!(mdev.driver.as_deref(), Some("mtty"));
    let group = mdev.iommu_group.context("a group")?;
    ensure!(group_node(group).exists(), "no node of group {group}");
    ensure_eq!(mdev.vfio_cdev.clone().into_iter().collect::<Vec<_>>(), names("/dev/vfio/devices"));
    let state = MdevState::read(sysfs, &uuid(0))?.context("its state")?;
    ensure_eq!((state.parent.as_deref(), state.iommu_group), (Some("mtty"), Some(group)));
    ensure!(inventory.groups[&group].viability.is_viable());

    for number in 1..12 {
        create_mdev(sysfs, &parent, "mtty-2", &uuid(number))?;
    }
    ensure_eq!(available()?, [0, 0]);
    let full = create_mdev(sysfs, &parent, "mtty-1", &uuid(12)).err().context("all ports are taken")?;
    println!("when all are taken: {full}");
    ensure_eq!(full.raw_os_error(), Some(28));
    for number in 0..12 {
        remove_mdev(sysfs, &uuid(number))?;
        remove_mdev(sysfs, &uuid(number))?;
    }
    ensure_eq!(available()?, [24, 12]);
    ensure!(guest.scan()?.mdevs.is_empty());
    ensure!(!group_node(group).exists());
    Ok(())
}
