//! What goes wrong on a real kernel, and what the caller learns of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::{Binding, ChangeError, Restored, bind_to, restore, unbind};

use crate::debian::Debian;
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, wait};

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let nic = guest.address("nic0")?;
    let sysfs = guest.sysfs.clone();
    let former = Binding::read(&sysfs, nic)?.context("nic0")?;

    // The module vfio-pci is not loaded: said by name, and the device stays as it is.
    let error = bind_to(&sysfs, nic, "vfio-pci").err().context("vfio-pci is not loaded")?;
    println!("without the module: {error}");
    ensure!(matches!(error, ChangeError::NoDriver { .. }) && error.to_string().contains("modprobe vfio-pci"));
    ensure_eq!(Binding::read(&sysfs, nic)?.as_ref(), Some(&former));

    modprobe("vfio-pci")?;
    modprobe("vfio_iommu_type1")?;
    // A device that has a driver is busy, and one that a driver does not want is not there for it.
    let bind = |driver: &str| {
        let file = sysfs.roots().pci_driver(driver).join("bind");
        sysfs.write(&nic, &file, &nic.to_string()).err().and_then(|error| error.raw_os_error())
    };
    ensure_eq!(bind("e1000e"), Some(16));
    ensure_eq!(bind("vfio-pci"), Some(19));
    ensure_eq!(bind("e1000"), Some(19));

    // Unplugged between scan and bind.
    let gone = guest.address("nic1")?;
    ensure!(guest.scan()?.devices.contains_key(&gone));
    let former_of_gone = Binding::read(&sysfs, gone)?.context("nic1")?;
    guest.unplug("nic1")?;
    let error = bind_to(&sysfs, gone, "vfio-pci").err().context("nic1 is gone")?;
    println!("of an unplugged device: {error}");
    ensure!(error.is_gone());
    ensure_eq!(restore(&sysfs, gone, Some("vfio-pci"), &former_of_gone)?, Restored::Gone);

    // A virtual machine has the device: the kernel does not return from unbind until it lets go.
    bind_to(&sysfs, nic, "vfio-pci")?;
    let debian = Debian::mount()?;
    println!("starting a virtual machine with the device");
    let qemu = match debian.start_qemu(&[nic])? {
        Ok(qemu) => qemu,
        Err(refusal) => anyhow::bail!("QEMU does not get the device: {refusal}"),
    };
    println!("taking the device from it");
    let impatient = sysfs.clone().with_write_timeout(Duration::from_secs(2));
    let error = unbind(&impatient, nic).err().context("a virtual machine has the device")?;
    println!("while a virtual machine has it: {error}");
    ensure!(error.is_hung());
    ensure_eq!(impatient.hung_writes().len(), 1);
    let refused =
        restore(&impatient, nic, Some("vfio-pci"), &former).err().context("the first write has not returned")?;
    println!("meanwhile: {refused}");
    ensure!(refused.is_hung());
    qemu.quit()?;
    wait("the kernel to return", || Ok(impatient.hung_writes().is_empty()))?;
    ensure_eq!(Binding::read(&sysfs, nic)?.context("nic0")?.driver, None);
    restore(&sysfs, nic, Some("vfio-pci"), &former)?;
    ensure_eq!(Binding::read(&sysfs, nic)?.as_ref(), Some(&former));
    Ok(())
}
