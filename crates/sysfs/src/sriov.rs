//! The number of virtual functions of a device.
//!
//! The kernel changes the number only by way of 0, which removes all virtual functions. So a change from one number to another is
//! refused while one of them is in use: by somebody that the caller knows of, or with a driver of VFIO, behind which a virtual
//! machine can be.

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use drakkar_metadata::PciAddress;

use crate::bind;
use crate::{ChangeError, Sysfs};

/// How many virtual functions a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfCount {
    /// How many there are.
    pub current: u16,
    /// How many there can be.
    pub total: u16,
}

impl VfCount {
    /// Reads how many virtual functions a device has and can have. It fails after the time limit for reading
    /// ([`Sysfs::with_read_timeout`]) while somebody binds or unbinds the device, or changes the number.
    pub fn read(sysfs: &Sysfs, device: PciAddress) -> Result<Self, ChangeError> {
        let dir = sysfs.roots().pci_device(&device);
        let number = |path: PathBuf, text: Option<String>| {
            text.and_then(|text| text.parse().ok()).ok_or(ChangeError::NoSriov { device, path })
        };
        if !dir.exists() {
            return Err(ChangeError::Gone { device: device.to_string(), path: dir });
        }
        let path = dir.join("sriov_totalvfs");
        let total = bind::text(&device, &path)?;
        let total = number(path, total)?;
        let path = dir.join("sriov_numvfs");
        let current = bind::locked_text(sysfs, device, &path)?;
        Ok(Self { current: number(path, current)?, total })
    }
}

/// Returns the virtual function of a device with this number, if it exists now.
pub fn virtual_function(sysfs: &Sysfs, device: PciAddress, index: u16) -> Result<Option<PciAddress>, ChangeError> {
    let path = sysfs.roots().pci_device(&device).join(format!("virtfn{index}"));
    Ok(bind::link_name(&device, &path)?.and_then(|name| name.parse().ok()))
}

/// Returns the virtual functions of a device by number.
pub fn virtual_functions(sysfs: &Sysfs, device: PciAddress) -> Result<Vec<PciAddress>, ChangeError> {
    let mut functions = Vec::new();
    for index in 0..VfCount::read(sysfs, device)?.current {
        functions.extend(virtual_function(sysfs, device, index)?);
    }
    Ok(functions)
}

/// Sets the number of virtual functions of a device. `user` tells who uses one of them, for which no change is made that would
/// remove it. The number being right already is no error, and nothing is written.
pub fn set_num_vfs(
    sysfs: &Sysfs,
    device: PciAddress,
    number: u16,
    user: impl Fn(PciAddress) -> Option<String>,
) -> Result<(), ChangeError> {
    bind::refuse_hung(sysfs, &device)?;
    let VfCount { current, total } = VfCount::read(sysfs, device)?;
    if current == number {
        return Ok(());
    }
    if number > total {
        return Err(ChangeError::TooManyVfs { device, asked: number, total });
    }
    for vf in virtual_functions(sysfs, device)? {
        let driver = bind::link_name(&vf, &sysfs.roots().pci_device(&vf).join("driver"))?;
        let with_vfio = || driver.filter(|driver| driver.contains("vfio")).map(|driver| format!("bound to {driver}"));
        if let Some(user) = user(vf).or_else(with_vfio) {
            return Err(ChangeError::VfInUse { device, current, asked: number, vf, user });
        }
    }
    if current > 0 && number > 0 {
        write(sysfs, device, 0)?;
    }
    write(sysfs, device, number)
}

fn write(sysfs: &Sysfs, device: PciAddress, number: u16) -> Result<(), ChangeError> {
    let path = sysfs.roots().pci_device(&device).join("sriov_numvfs");
    bind::write_until(sysfs, device, &path, &number.to_string(), || {
        let now = VfCount::read(sysfs, device)?.current;
        Ok((now != number).then(|| format!("there are {now} virtual functions")))
    })
}
