//! A kernel without hardware: a tree of files as in `/sys`, `/dev` and `/proc`, and writes that have the kernel's effects.
//!
//! For tests, and for trying a driver on a machine that has no device to give away. [`Simulation::create`] builds the tree of a
//! [`Description`]; everything that reads sysfs reads it. Writes go through [`Kernel`], which a simulation implements with the
//! effects and errors of Linux:
//!
//! | file | effect | errors |
//! |---|---|---|
//! | `driver_override` | sets the only driver that may have the device; a lone newline removes it, which then reads `(null)` | |
//! | `drivers/D/bind` | binds by ids or override, and makes what the driver makes (nodes, interfaces, disks) | `ENODEV` no such device, or not for this driver; `EBUSY` has a driver; `EINVAL` `vfio-pci` without IOMMU group |
//! | `drivers/D/unbind` | takes the device from the driver, virtual functions and mediated devices included | `ENODEV` not bound to this driver |
//! | `drivers_probe` | binds to the first driver that fits; none is no error, nor is a driver that fails, nor a virtual function whose device has `sriov_drivers_autoprobe` off | `ENODEV` no such device |
//! | `sriov_numvfs` | makes virtual functions, each in a group of its own, or removes all | `ERANGE` more than there can be; `EBUSY` from one number to another; `ENOENT` the driver cannot |
//! | `create` of a type | makes a mediated device and a group; all types of the parent share its capacity | `EINVAL` no UUID; `EEXIST`; `ENOSPC` none left |
//! | `remove` | removes a mediated device or a PCI device | `EINVAL` not a number |
//!
//! Faults ([`Fault`]) make writes fail, hang or have no effect. While a write for a PCI device hangs, reading its `driver_override`
//! and `sriov_numvfs` blocks, in this and every other process, as does the next write for it: the kernel holds its lock. Devices come and go ([`Simulation::add_device`],
//! [`Simulation::remove_device`]) and change their group. All of it is announced to [`Simulation::uevents`], in place of netlink.
//!
//! The tree is the state: [`Simulation::open`] goes on with what an earlier process left, as the kernel does when a driver is
//! killed. [`Simulation::reboot`] starts over, with another boot id.
//!
//! Effects, errors and events are compared with a real kernel, write by write: `cargo xtask vm`.
//!
//! ```
//! use drakkar_sysfs::simulation::{Description, Device, Driver, Simulation};
//! use drakkar_sysfs::{Binding, bind_to};
//!
//! let address = "0000:65:00.0".parse()?;
//! let mut gpu = Device::new(address, 0x10de, 0x2331, 0x030200);
//! gpu.iommu_group = Some(12);
//! let driver = Driver { name: "nvidia".into(), ids: vec!["10de:*".into()], ..Driver::default() };
//! let description = Description { drivers: vec![driver], devices: vec![gpu], ..Description::default() };
//!
//! let directory = tempfile::tempdir()?;
//! let sysfs = Simulation::create(directory.path(), &description)?.sysfs();
//! bind_to(&sysfs, address, "vfio-pci")?;
//! let binding = Binding::read(&sysfs, address)?.expect("the device is there");
//! assert_eq!(binding.driver.as_deref(), Some("vfio-pci"));
//! assert!(sysfs.roots().dev.join("vfio/12").exists());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod description;
mod device_lock;
mod fault;
mod functions;
mod host;
mod made_by_drivers;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use rustix::io::Errno;

pub use self::description::{Description, Device, Driver, MdevType, MdevTypes, Sriov, Vfio, VirtualParent};
use self::device_lock::DeviceLock;
pub use self::fault::{Effect, Fault, When};
use self::fault::{Faults, errno, kill};
use self::host::{Host, PCI_DEVICES, PCI_DRIVERS, PCIEPORT, VFIO, name};
use self::tree::Tree;
use crate::{Kernel, PciAddress, Roots, Sysfs, Uevent};

const ROUTES: &str = "proc/1/net/route";
const NO_ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// A simulated kernel. Clones are the same kernel.
#[derive(Debug, Clone)]
pub struct Simulation {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    host: Mutex<Host>,
    faults: Faults,
    root: PathBuf,
    /// What the host was at its first start.
    description: Description,
}

impl Simulation {
    /// Builds the tree of a description in a directory, which is made. An earlier tree in it is replaced.
    pub fn create(directory: impl AsRef<Path>, description: &Description) -> io::Result<Self> {
        let simulation = Self::with(Tree::open(directory.as_ref())?, description);
        simulation.boot()?;
        Ok(simulation)
    }

    /// Goes on with the tree that an earlier process has left in a directory, or builds one if there is none.
    pub fn open(directory: impl AsRef<Path>, description: &Description) -> io::Result<Self> {
        let simulation = Self::with(Tree::open(directory.as_ref())?, description);
        let is_new = !simulation.host().tree.exists(BOOT_ID);
        if is_new {
            simulation.boot()?;
        }
        device_lock::clean(&simulation.host())?;
        Ok(simulation)
    }

    fn with(tree: Tree, description: &Description) -> Self {
        let root = tree.root().to_owned();
        let host = Host { tree, description: description.clone(), listeners: Vec::new() };
        let description = description.clone();
        Self { shared: Arc::new(Shared { host: Mutex::new(host), faults: Faults::default(), root, description }) }
    }

    /// Loses every change of the kernel's state, and starts again as described, with another boot id.
    pub fn reboot(&self) -> io::Result<()> {
        self.host().description = self.shared.description.clone();
        self.boot()
    }

    fn boot(&self) -> io::Result<()> {
        let mut host = self.host();
        let description = host.description.clone();
        for root in ["sys", "dev", "proc"] {
            host.tree.remove(root)?;
            host.tree.make(root)?;
        }
        for directory in [PCI_DEVICES, PCI_DRIVERS, "sys/class", "sys/kernel/iommu_groups"] {
            host.tree.make(directory)?;
        }
        host.tree.set("sys/bus/pci/drivers_probe", "")?;
        let described = description.drivers.iter().map(|driver| driver.name.as_str());
        let vfio = description.vfio.loaded.then_some(VFIO);
        for driver in described.chain(vfio).chain([PCIEPORT]) {
            let attributes = ["bind", "unbind", "new_id", "remove_id"];
            let files: Vec<_> = attributes.map(|name| (name.to_owned(), Vec::new())).into();
            host.tree.make_with(Path::new(PCI_DRIVERS).join(driver), &files)?;
        }
        if description.vfio.loaded {
            host.tree.set("dev/vfio/vfio", "")?;
        }
        if description.vfio.iommufd {
            host.tree.set("dev/iommu", "")?;
        }
        // Every kernel has it. Without a line, no route is there.
        host.tree.set(ROUTES, NO_ROUTES)?;
        for (path, content) in &description.files {
            host.tree.set(path, content)?;
        }
        for (path, target) in &description.links {
            host.tree.raw_link(Path::new(path), Path::new(target))?;
        }
        for device in &description.devices {
            host.add_device(device)?;
        }
        for parent in &description.mdev_parents {
            let dir = Path::new("sys/devices/virtual").join(&parent.name).join(&parent.name);
            host.tree.make(&dir)?;
            host.add_mdev_types(&parent.name, &dir)?;
        }
        host.tree.set(BOOT_ID, format!("{}\n", uuid::Uuid::new_v4()))
    }

    /// Returns the directories of the tree.
    pub fn roots(&self) -> Roots {
        Roots::below(&self.shared.root)
    }

    /// Returns the devices of the simulated host.
    pub fn sysfs(&self) -> Sysfs {
        Sysfs::with_kernel(self.roots(), Arc::new(self.clone()))
    }

    /// Returns a channel that gets every event from now on, in place of the kernel's netlink socket.
    pub fn uevents(&self) -> mpsc::Receiver<Uevent> {
        let (sender, receiver) = mpsc::channel();
        self.host().listeners.push(sender);
        receiver
    }

    /// Adds a device as hotplug does.
    pub fn add_device(&self, device: &Device) -> io::Result<()> {
        self.host().add_device(device)
    }

    /// Removes a device, and those behind it, as if it was pulled out.
    pub fn remove_device(&self, address: PciAddress) -> io::Result<()> {
        let mut host = self.host();
        let dir = host.device_dir(address).ok_or_else(|| errno(Errno::NODEV))?;
        host.remove_device(&dir)
    }

    /// Moves a device to another IOMMU group.
    pub fn change_group(&self, address: PciAddress, group: u32) -> io::Result<()> {
        let mut host = self.host();
        let dir = host.device_dir(address).ok_or_else(|| errno(Errno::NODEV))?;
        host.leave_group(&dir)?;
        host.join_group(&dir, group)?;
        host.event(crate::Action::Change, &dir, "pci");
        Ok(())
    }

    /// Sets the content of a device's attribute, such as `current_link_speed`, without an event.
    pub fn set_attribute(&self, address: PciAddress, attribute: &str, content: &[u8]) -> io::Result<()> {
        let host = self.host();
        let dir = host.device_dir(address).ok_or_else(|| errno(Errno::NODEV))?;
        host.tree.set(dir.join(attribute), content)
    }

    /// Unloads a driver: it gives up its devices and its directory goes.
    pub fn unload_driver(&self, driver: &str) -> io::Result<()> {
        let mut host = self.host();
        let dir = Path::new(PCI_DRIVERS).join(driver);
        for device in host.tree.list(&dir) {
            if let Some(device_dir) = device.parse().ok().and_then(|address| host.device_dir(address)) {
                host.unbind(&device_dir)?;
            }
        }
        host.tree.remove(dir)
    }

    /// Adds a fault to those that are to come.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.add(fault);
    }

    /// Ends all faults, and lets every write that hangs go on.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// Lets every write that hangs go on.
    pub fn release(&self) {
        self.shared.faults.release();
    }

    /// Returns the number of writes since the simulation was opened, failed ones included.
    pub fn writes(&self) -> u64 {
        self.shared.faults.writes()
    }

    /// Writes after everything that hangs was released. The device is locked until then.
    fn hang(&self, path: &Path, value: &str, released: u64) -> io::Result<()> {
        let device = device_lock::device_of(path, value);
        let lock = device.map(|device| DeviceLock::take(&self.shared.root, device)).transpose()?;
        let lock = lock.map(|mut lock| lock.block(&self.host()).map(|()| lock)).transpose()?;
        self.shared.faults.hang(released);
        let mut host = self.host();
        let written = host.write(path, value);
        lock.map_or(Ok(()), |lock| lock.release(&host)).and(written)
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.shared.host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Simulation {
    fn write(&self, path: &Path, value: &[u8]) -> io::Result<()> {
        let text = std::str::from_utf8(value).map_err(|_not_text| errno(Errno::INVAL))?;
        let value = text.strip_suffix('\n').unwrap_or(text);
        let released = self.shared.faults.released();
        // Before the lock is taken: the rest of the kernel goes on while a write hangs.
        let late = match self.shared.faults.next(path, value) {
            Some(Effect::Fails(error)) => return Err(errno(error)),
            Some(Effect::Ignored) => return Ok(()),
            Some(Effect::Kills) => return Err(kill()),
            Some(Effect::Hangs) => return self.hang(path, value, released),
            Some(Effect::FailsLate(error)) => Some(error),
            None => None,
        };
        if let Some(device) = device_lock::device_of(path, value) {
            device_lock::wait(&self.shared.root, device)?;
        }
        self.host().write(path, value)?;
        late.map_or(Ok(()), |error| Err(errno(error)))
    }
}

impl Host {
    /// Does what a write to a file means.
    fn write(&mut self, path: &Path, value: &str) -> io::Result<()> {
        let path = self.tree.resolve(path)?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        let above = dir.parent().unwrap_or(Path::new("")).to_owned();
        let device = || value.parse().ok().and_then(|address| self.device_dir(address));
        match name(&path).as_str() {
            "driver_override" => {
                let text = if value.is_empty() { "(null)" } else { value };
                self.tree.set(&path, format!("{text}\n"))
            }
            "bind" if above == Path::new(PCI_DRIVERS) => {
                let device = device().filter(|device| self.matches(&name(&dir), device));
                self.bind(&name(&dir), &device.ok_or_else(|| errno(Errno::NODEV))?)
            }
            "unbind" if above == Path::new(PCI_DRIVERS) => {
                let device = device().filter(|device| self.driver(device) == Some(name(&dir)));
                self.unbind(&device.ok_or_else(|| errno(Errno::NODEV))?)
            }
            "drivers_probe" => {
                let device = device().ok_or_else(|| errno(Errno::NODEV))?;
                self.probe(&device);
                Ok(())
            }
            "sriov_numvfs" => {
                let number = value.parse().map_err(|_not_a_number| errno(Errno::INVAL))?;
                self.set_num_vfs(&dir, number)
            }
            "sriov_drivers_autoprobe" if matches!(value, "0" | "1") => self.tree.set(&path, format!("{value}\n")),
            "create" if name(&above) == "mdev_supported_types" => {
                let parent = above.parent().unwrap_or(Path::new("")).to_owned();
                self.create_mdev(&parent, &name(&dir), value)
            }
            "remove" => {
                let number: u32 = value.parse().map_err(|_not_a_number| errno(Errno::INVAL))?;
                if number == 0 {
                    return Ok(());
                }
                if self.tree.exists(dir.join("mdev_type")) { self.remove_mdev(&dir) } else { self.remove_device(&dir) }
            }
            "sriov_drivers_autoprobe" => Err(errno(Errno::INVAL)),
            _ => Err(errno(Errno::ACCESS)),
        }
    }
}
