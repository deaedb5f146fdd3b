//! Binding PCI devices to drivers, and back.
//!
//! The order of writes, each of which is skipped if the state is as wanted already:
//!
//! | change | order | why |
//! |---|---|---|
//! | [`bind_to`] | `driver_override`, `unbind`, `bind` | with the override set no other driver can take the device in between |
//! | [`bind_to_kernel_driver`] | `driver_override` removed, `unbind`, `drivers_probe` | the kernel knows the driver |
//! | [`restore`] | `driver_override` as before, `unbind`, `bind` to the former driver | the former driver may be one of several that want the device: it is named |
//!
//! The state decides, not the answer to a write: after every write it is read again. A write that fails although the state is as
//! wanted (another program was faster, or the driver failed late) is no error; one that succeeds without effect is.
//! While the kernel has not returned from a write for a device, no state of it is trusted, and every function fails at once: the
//! write holds the device's lock, which reading `driver_override` and `sriov_numvfs` would wait for. The write can also be one of
//! another process, so these files are read with a limit of time ([`ChangeError::ReadHung`]).
//! A refusal with `EAGAIN` (the driver waits for something) or `EBUSY` is tried again a few times. All functions can be called
//! again after any failure, and go on from the state that they find.

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::time::Duration;

use drakkar_metadata::PciAddress;
use rustix::io::Errno;

use crate::inventory::{NoAnswer, read_with_limit};
use crate::{ChangeError, Sysfs, WriteError};

/// The waits before another attempt at what the kernel cannot do at the moment.
const RETRIES: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];

/// Which driver has a device, and which may have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Binding {
    /// The driver that the device is bound to.
    pub driver: Option<String>,
    /// The only driver that it may be bound to.
    pub driver_override: Option<String>,
}

impl Binding {
    /// Reads the binding of a device. `None` if there is no such device. It fails after the time limit for reading
    /// ([`Sysfs::with_read_timeout`]) while somebody binds or unbinds the device.
    pub fn read(sysfs: &Sysfs, address: PciAddress) -> Result<Option<Self>, ChangeError> {
        let dir = sysfs.roots().pci_device(&address);
        if dir.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let driver = link_name(&address, &dir.join("driver"))?;
        let driver_override = locked_text(sysfs, address, &dir.join("driver_override"))?;
        let driver_override = driver_override.filter(|name| !matches!(name.as_str(), "" | "(null)"));
        // Between the two reads it may have been removed.
        Ok(dir.exists().then_some(Self { driver, driver_override }))
    }
}

/// How [`restore`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restored {
    /// The device was as it was; nothing was written.
    Unchanged,
    /// The device is as it was.
    Done,
    /// The device is not there any more.
    Gone,
    /// The former driver is not loaded any more. The device has no driver, and the former override: if the driver is loaded again,
    /// it takes the device.
    DriverGone(String),
    /// Meanwhile somebody else has bound the device to another driver, and it was left there.
    TakenOver(String),
}

/// Binds a device to a driver. A device that is bound to it already is left alone, whatever its override.
pub fn bind_to(sysfs: &Sysfs, address: PciAddress, driver: &str) -> Result<(), ChangeError> {
    refuse_hung(sysfs, &address)?;
    if current(sysfs, address)?.driver.as_deref() == Some(driver) {
        return Ok(());
    }
    require_driver(sysfs, address, driver)?;
    set_override(sysfs, address, Some(driver))?;
    unbind(sysfs, address)?;
    bind(sysfs, address, driver)
}

/// Binds a device to the driver that the kernel has for it, and returns its name. A device with a driver for which `is_wanted`
/// holds is left alone.
pub fn bind_to_kernel_driver(
    sysfs: &Sysfs,
    address: PciAddress,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<String, ChangeError> {
    refuse_hung(sysfs, &address)?;
    let now = current(sysfs, address)?;
    if let Some(driver) = now.driver
        && is_wanted(&driver)
    {
        return Ok(driver);
    }
    if now.driver_override.is_some_and(|name| !is_wanted(&name)) {
        set_override(sysfs, address, None)?;
    }
    unbind(sysfs, address)?;
    let path = sysfs.roots().sys.join("bus/pci/drivers_probe");
    let written = write(sysfs, &address, &path, &address.to_string())?;
    match current(sysfs, address)?.driver {
        Some(driver) if is_wanted(&driver) => Ok(driver),
        found => {
            written?;
            match found {
                None => Err(ChangeError::NoKernelDriver { device: address }),
                Some(driver) => Err(no_effect(address, &path, address, format!("it is bound to {driver}"))),
            }
        }
    }
}

/// Puts a device back to the driver and the override that it had.
///
/// `ours` is the driver that it was bound to since. A device that is bound to a third driver was taken over by somebody, and stays
/// there. Without `ours` no driver counts as a third one.
pub fn restore(
    sysfs: &Sysfs,
    address: PciAddress,
    ours: Option<&str>,
    former: &Binding,
) -> Result<Restored, ChangeError> {
    match try_restore(sysfs, address, ours, former) {
        // Removed in the middle of it.
        Err(error) if !error.is_hung() && Binding::read(sysfs, address)?.is_none() => Ok(Restored::Gone),
        outcome => outcome,
    }
}

fn try_restore(
    sysfs: &Sysfs,
    address: PciAddress,
    ours: Option<&str>,
    former: &Binding,
) -> Result<Restored, ChangeError> {
    refuse_hung(sysfs, &address)?;
    let Some(now) = Binding::read(sysfs, address)? else { return Ok(Restored::Gone) };
    if now == *former {
        return Ok(Restored::Unchanged);
    }
    if let (Some(driver), Some(ours)) = (&now.driver, ours)
        && driver != ours
        && now.driver != former.driver
    {
        if now.driver_override.as_deref() == Some(ours) {
            set_override(sysfs, address, former.driver_override.as_deref())?;
        }
        return Ok(Restored::TakenOver(driver.clone()));
    }
    set_override(sysfs, address, former.driver_override.as_deref())?;
    if now.driver == former.driver {
        return Ok(Restored::Done);
    }
    unbind(sysfs, address)?;
    let Some(driver) = &former.driver else { return Ok(Restored::Done) };
    if !sysfs.roots().pci_driver(driver).exists() {
        return Ok(Restored::DriverGone(driver.clone()));
    }
    match bind(sysfs, address, driver) {
        // Not by its ids: it was bound by an override that had been removed since.
        Err(error) if error.errno() == Some(Errno::NODEV) && former.driver_override.is_none() => {
            set_override(sysfs, address, Some(driver))?;
            let bound = bind(sysfs, address, driver);
            set_override(sysfs, address, None)?;
            bound.map(|()| Restored::Done)
        }
        bound => bound.map(|()| Restored::Done),
    }
}

/// Sets or removes the override of a device's driver.
pub fn set_override(sysfs: &Sysfs, address: PciAddress, driver: Option<&str>) -> Result<(), ChangeError> {
    if current(sysfs, address)?.driver_override.as_deref() == driver {
        return Ok(());
    }
    let path = sysfs.roots().pci_device(&address).join("driver_override");
    // A lone newline removes it; an empty write never reaches the kernel.
    let written = write(sysfs, &address, &path, driver.unwrap_or("\n"))?;
    let now = current(sysfs, address)?.driver_override;
    if now.as_deref() == driver {
        return Ok(());
    }
    written?;
    let found = now.map_or("there is none".to_owned(), |name| format!("it is {name}"));
    Err(no_effect(address, &path, driver.unwrap_or("\n"), found))
}

/// Takes a device from its driver, if it has one.
pub fn unbind(sysfs: &Sysfs, address: PciAddress) -> Result<(), ChangeError> {
    let Some(driver) = current(sysfs, address)?.driver else { return Ok(()) };
    let path = sysfs.roots().pci_driver(&driver).join("unbind");
    write_until(sysfs, address, &path, &address.to_string(), || {
        Ok(current(sysfs, address)?.driver.map(|now| format!("it is still bound to {now}")))
    })
}

/// Binds a device without driver.
fn bind(sysfs: &Sysfs, address: PciAddress, driver: &str) -> Result<(), ChangeError> {
    let path = sysfs.roots().pci_driver(driver).join("bind");
    write_until(sysfs, address, &path, &address.to_string(), || {
        let now = current(sysfs, address)?.driver;
        if now.as_deref() == Some(driver) {
            return Ok(None);
        }
        Ok(Some(now.map_or("it has no driver".to_owned(), |name| format!("it is bound to {name}"))))
    })
}

/// Writes, and again a few times while the kernel cannot do it at the moment. `found` reads what there is instead of the wanted
/// state, or `None` if that is reached: the state decides, not the answer.
pub(crate) fn write_until(
    sysfs: &Sysfs,
    device: PciAddress,
    path: &Path,
    value: &str,
    found: impl Fn() -> Result<Option<String>, ChangeError>,
) -> Result<(), ChangeError> {
    let mut retries = RETRIES.iter();
    loop {
        let answer = write(sysfs, &device, path, value)?;
        let Some(found) = found()? else { return Ok(()) };
        match answer {
            Err(error) if is_temporary(&error) => match retries.next() {
                Some(wait) => std::thread::sleep(*wait),
                None => return Err(error),
            },
            Err(error) => return Err(error),
            Ok(()) => return Err(no_effect(device, path, value, found)),
        }
    }
}

/// Fails if the kernel has not returned from an earlier write for a device: what is read now may change when it does.
pub(crate) fn refuse_hung(sysfs: &Sysfs, device: &impl std::fmt::Display) -> Result<(), ChangeError> {
    let device = device.to_string();
    let earlier = sysfs.hung_writes().into_iter().find(|write| write.device == device || write.value == device);
    match earlier {
        None => Ok(()),
        Some(earlier) => {
            let path = earlier.path.clone();
            Err(ChangeError::write(WriteError::Blocked { device, path, earlier: Box::new(earlier) }))
        }
    }
}

/// Returns the binding of a device that must exist.
fn current(sysfs: &Sysfs, address: PciAddress) -> Result<Binding, ChangeError> {
    let gone = || ChangeError::Gone { device: address.to_string(), path: sysfs.roots().pci_device(&address) };
    Binding::read(sysfs, address)?.ok_or_else(gone)
}

fn require_driver(sysfs: &Sysfs, device: PciAddress, driver: &str) -> Result<(), ChangeError> {
    let path = sysfs.roots().pci_driver(driver);
    // The name may come from a user: it must not lead elsewhere.
    let is_name = !matches!(driver, "" | "." | "..") && !driver.contains('/');
    if is_name && path.exists() {
        Ok(())
    } else {
        Err(ChangeError::NoDriver { device, driver: driver.to_owned(), path })
    }
}

/// What the kernel answered to a write.
pub(crate) type Answer = Result<(), ChangeError>;

/// Writes, and returns the answer. That there is none is an error at once: nothing of the device can be read until it comes.
pub(crate) fn write(
    sysfs: &Sysfs,
    device: &impl std::fmt::Display,
    path: &Path,
    value: &str,
) -> Result<Answer, ChangeError> {
    match sysfs.write(device, path, value).map_err(ChangeError::write) {
        Err(error) if error.is_hung() => Err(error),
        answer => Ok(answer),
    }
}

fn is_temporary(error: &ChangeError) -> bool {
    matches!(error.errno(), Some(Errno::AGAIN | Errno::BUSY | Errno::INTR))
}

pub(crate) fn no_effect(
    device: impl std::fmt::Display,
    path: &Path,
    value: impl std::fmt::Display,
    found: String,
) -> ChangeError {
    ChangeError::NoEffect { device: device.to_string(), path: path.to_owned(), value: value.to_string(), found }
}

/// Reads a file of a device. `None` if it is not there, or the device has just been removed.
pub(crate) fn text(device: &impl std::fmt::Display, path: &Path) -> Result<Option<String>, ChangeError> {
    present(device, path, std::fs::read_to_string(path)).map(|text| text.map(|text| text.trim().to_owned()))
}

/// Reads a file whose readers wait for the device's lock, with a limit of time.
pub(crate) fn locked_text(sysfs: &Sysfs, device: PciAddress, path: &Path) -> Result<Option<String>, ChangeError> {
    sysfs.ensure_no_hung_write(&device, path).map_err(ChangeError::write)?;
    let file = path.to_owned();
    let read = move || match text(&device, &file)? {
        // Such a file always has content. A simulation lets all who wait but one read nothing.
        Some(text) if text.is_empty() => self::text(&device, &file),
        text => Ok(text),
    };
    match read_with_limit(sysfs, device, read) {
        Ok(text) => text,
        Err(NoAnswer::Blocked) => Err(ChangeError::ReadHung { device: device.to_string(), path: path.to_owned() }),
        Err(NoAnswer::Thread(source)) => {
            Err(ChangeError::Read { device: device.to_string(), path: path.to_owned(), source })
        }
    }
}

/// Returns the last component of a link's target. `None` if there is no such link.
pub(crate) fn link_name(device: &impl std::fmt::Display, path: &Path) -> Result<Option<String>, ChangeError> {
    let target = present(device, path, std::fs::read_link(path))?;
    Ok(target.and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned())))
}

fn present<T>(device: &impl std::fmt::Display, path: &Path, read: io::Result<T>) -> Result<Option<T>, ChangeError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV | Errno::NXIO)) => {
            Ok(None)
        }
        Err(source) => Err(ChangeError::Read { device: device.to_string(), path: path.to_owned(), source }),
    }
}
