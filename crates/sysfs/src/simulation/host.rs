//! The simulated kernel's devices: which there are, and what it means to bind, unbind, add and remove one.
//!
//! The tree of files is the state, so that a simulation that is opened again, also by another process, goes on where the last
//! one stopped. The description only says what the tree does not: which driver can do what.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rustix::io::Errno;

use super::description::{Description, Device, MdevTypes};
use super::fault::errno;
use super::tree::Tree;
use crate::{Action, DeviceEvent, PciAddress, Uevent};

/// The driver that hands devices to user space.
pub(super) const VFIO: &str = "vfio-pci";
/// The driver of bridges.
pub(super) const PCIEPORT: &str = "pcieport";

pub(super) const PCI_DEVICES: &str = "sys/bus/pci/devices";
pub(super) const PCI_DRIVERS: &str = "sys/bus/pci/drivers";
const GROUPS: &str = "sys/kernel/iommu_groups";

/// The simulated kernel.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) tree: Tree,
    pub(super) description: Description,
    pub(super) listeners: Vec<mpsc::Sender<Uevent>>,
}

impl Host {
    /// Adds a device as hotplug does: it appears, gets its group, and a driver that wants it.
    pub(super) fn add_device(&mut self, device: &Device) -> io::Result<()> {
        if self.tree.exists(Path::new(PCI_DEVICES).join(device.address.to_string())) {
            return Err(errno(Errno::EXIST));
        }
        let known = self.description.devices.iter_mut().find(|known| known.address == device.address);
        match known {
            Some(known) => *known = device.clone(),
            None => self.description.devices.push(device.clone()),
        }
        let parent = match &device.parent {
            Some(parent) => self.device_dir(*parent).ok_or_else(|| errno(Errno::NODEV))?,
            None => {
                let root = device.pcie_root.clone();
                Path::new("sys/devices").join(root.unwrap_or_else(|| format!("pci{:04x}:00", device.address.domain())))
            }
        };
        let dir = parent.join(device.address.to_string());
        self.create_directory(&dir, device)?;
        if let Some(group) = device.iommu_group {
            self.join_group(&dir, group)?;
        }
        self.event(Action::Add, &dir, "pci");
        match device.driver.as_deref() {
            Some("") => {}
            Some(driver) => self.bind(driver, &dir)?,
            None => self.probe(&dir),
        }
        let vfs = device.sriov.as_ref().map_or(0, |sriov| sriov.num_vfs);
        if vfs > 0 { self.set_num_vfs(&dir, vfs) } else { Ok(()) }
    }

    /// Makes the directory of a device with its attributes.
    pub(super) fn create_directory(&self, dir: &Path, device: &Device) -> io::Result<()> {
        let mut config = vec![0; 256];
        config[0..2].copy_from_slice(&device.vendor.to_le_bytes());
        config[2..4].copy_from_slice(&device.device.to_le_bytes());
        config[8] = device.revision;
        config[9..12].copy_from_slice(&device.class.to_le_bytes()[..3]);
        let driver_override = device.driver_override.as_deref().unwrap_or("(null)");
        let numa_node = device.numa_node.map_or(-1, i64::from);
        let mut files = vec![
            ("vendor".to_owned(), format!("0x{:04x}\n", device.vendor).into_bytes()),
            ("device".to_owned(), format!("0x{:04x}\n", device.device).into_bytes()),
            ("subsystem_vendor".to_owned(), format!("0x{:04x}\n", device.subsystem_vendor).into_bytes()),
            ("subsystem_device".to_owned(), format!("0x{:04x}\n", device.subsystem_device).into_bytes()),
            ("class".to_owned(), format!("0x{:06x}\n", device.class).into_bytes()),
            ("revision".to_owned(), format!("0x{:02x}\n", device.revision).into_bytes()),
            ("numa_node".to_owned(), format!("{numa_node}\n").into_bytes()),
            ("driver_override".to_owned(), format!("{driver_override}\n").into_bytes()),
            ("enable".to_owned(), b"0\n".to_vec()),
            ("power_state".to_owned(), b"D0\n".to_vec()),
            ("d3cold_allowed".to_owned(), b"1\n".to_vec()),
            ("reset_method".to_owned(), b"flr bus\n".to_vec()),
            ("remove".to_owned(), Vec::new()),
            ("config".to_owned(), config),
        ];
        if device.class >> 16 == 0x03 {
            files.push(("boot_vga".to_owned(), format!("{}\n", u8::from(device.boot_vga)).into_bytes()));
        }
        if let Some(sriov) = &device.sriov {
            let attribute = |name: &str, text: String| (name.to_owned(), format!("{text}\n").into_bytes());
            files.push(attribute("sriov_totalvfs", sriov.total_vfs.to_string()));
            files.push(attribute("sriov_numvfs", "0".to_owned()));
            files.push(attribute("sriov_offset", sriov.offset.to_string()));
            files.push(attribute("sriov_stride", sriov.stride.to_string()));
            files.push(attribute("sriov_vf_device", format!("{:x}", sriov.vf_device)));
            files.push(attribute("sriov_drivers_autoprobe", "1".to_owned()));
        }
        for (name, content) in &device.attributes {
            let content = if content.ends_with('\n') { content.clone() } else { format!("{content}\n") };
            files.retain(|(known, _)| known != name);
            files.push((name.clone(), content.into_bytes()));
        }
        self.tree.make_with(dir, &files)?;
        self.tree.link(dir.join("subsystem"), "sys/bus/pci")?;
        self.tree.link(Path::new(PCI_DEVICES).join(name(dir)), dir)
    }

    /// Removes a device, and those behind it, as if it was pulled out.
    pub(super) fn remove_device(&mut self, dir: &Path) -> io::Result<()> {
        for other in self.tree.list(PCI_DEVICES) {
            let Some(behind) = other.parse().ok().and_then(|address| self.device_dir(address)) else { continue };
            let function_of_this = self.tree.link_name(behind.join("physfn")).is_some_and(|pf| pf == name(dir));
            if behind != dir && (behind.starts_with(dir) || function_of_this) {
                self.remove_device(&behind)?;
            }
        }
        self.unbind(dir)?;
        // In this order, as in the kernel: a device that can be found has its group.
        self.tree.remove(Path::new(PCI_DEVICES).join(name(dir)))?;
        self.leave_group(dir)?;
        self.tree.remove(dir)?;
        self.event(Action::Remove, dir, "pci");
        Ok(())
    }

    /// Returns the directory of a PCI device.
    pub(super) fn device_dir(&self, address: PciAddress) -> Option<PathBuf> {
        self.tree.resolve(&self.tree.path(PCI_DEVICES).join(address.to_string())).ok()
    }

    /// Returns the driver that a device is bound to.
    pub(super) fn driver(&self, dir: &Path) -> Option<String> {
        self.tree.link_name(dir.join("driver"))
    }

    /// Returns whether a driver can drive a device: the kernel's `pci_match_device`.
    pub(super) fn matches(&self, driver: &str, dir: &Path) -> bool {
        let only = self.tree.read(dir.join("driver_override")).unwrap_or_default();
        match only.as_str() {
            "" | "(null)" => {}
            only => return only == driver,
        }
        if driver == PCIEPORT {
            return self.tree.read(dir.join("class")).is_ok_and(|class| class.starts_with("0x0604"));
        }
        let id = |file: &str| self.tree.read(dir.join(file)).unwrap_or_default().replacen("0x", "", 1);
        let ids = (id("vendor"), id("device"));
        let fits = |pattern: &str, id: &str| pattern == "*" || pattern.eq_ignore_ascii_case(id);
        let driver = self.description.drivers.iter().find(|known| known.name == driver);
        driver.is_some_and(|driver| {
            driver.ids.iter().filter_map(|pattern| pattern.split_once(':')).any(|(vendor, device)| {
                // `vfio-pci` has no ids of its own; it takes a device by override alone.
                fits(vendor, &ids.0) && fits(device, &ids.1)
            })
        })
    }

    /// Returns whether a driver may be bound at all: the kernel's `pci_device_can_probe`. A virtual function of a device without
    /// `sriov_drivers_autoprobe` gets a driver by override only.
    fn can_probe(&self, dir: &Path) -> bool {
        let autoprobe = self.tree.read(dir.join("physfn/sriov_drivers_autoprobe"));
        let has_override =
            || !matches!(self.tree.read(dir.join("driver_override")).as_deref(), Err(_) | Ok("" | "(null)"));
        autoprobe.map_or(true, |autoprobe| autoprobe == "1") || has_override()
    }

    /// Binds a device to the first driver that can drive it. As in the kernel, a failing driver is not an error.
    pub(super) fn probe(&mut self, dir: &Path) {
        if self.driver(dir).is_some() {
            return;
        }
        for driver in self.tree.list(PCI_DRIVERS) {
            if self.matches(&driver, dir) && self.bind(&driver, dir).is_ok() {
                return;
            }
        }
    }

    /// Binds a device to a driver that was found to match.
    pub(super) fn bind(&mut self, driver: &str, dir: &Path) -> io::Result<()> {
        if self.driver(dir).is_some() {
            return Err(errno(Errno::BUSY));
        }
        let driver_dir = Path::new(PCI_DRIVERS).join(driver);
        if !self.tree.exists(&driver_dir) {
            return Err(errno(Errno::NODEV));
        }
        if !self.can_probe(dir) {
            return Err(errno(Errno::NODEV));
        }
        if driver == VFIO && !self.tree.exists(dir.join("iommu_group")) {
            return Err(errno(Errno::INVAL));
        }
        if driver == VFIO {
            self.add_vfio(dir)?;
        } else {
            self.add_kernel_devices(driver, dir)?;
        }
        self.tree.link(driver_dir.join(name(dir)), dir)?;
        self.tree.link(dir.join("driver"), &driver_dir)?;
        self.event(Action::Bind, dir, "pci");
        Ok(())
    }

    /// Takes a device from its driver, with everything that the driver had made of it.
    pub(super) fn unbind(&mut self, dir: &Path) -> io::Result<()> {
        let Some(driver) = self.driver(dir) else { return Ok(()) };
        if driver == VFIO {
            self.remove_vfio(dir)?;
        } else {
            if self.tree.exists(dir.join("sriov_numvfs")) {
                self.remove_vfs(dir)?;
            }
            self.remove_kernel_devices(dir)?;
        }
        self.tree.remove(Path::new(PCI_DRIVERS).join(&driver).join(name(dir)))?;
        self.tree.remove(dir.join("driver"))?;
        if driver == VFIO {
            self.drop_group_node(dir)?;
        }
        self.event(Action::Unbind, dir, "pci");
        Ok(())
    }

    /// Puts a device into a group.
    pub(super) fn join_group(&self, dir: &Path, group: u32) -> io::Result<()> {
        let group_dir = Path::new(GROUPS).join(group.to_string());
        if !self.tree.exists(&group_dir) {
            self.tree.make(group_dir.join("devices"))?;
            self.tree.set(group_dir.join("type"), "DMA-FQ\n")?;
        }
        self.tree.link(group_dir.join("devices").join(name(dir)), dir)?;
        self.tree.link(dir.join("iommu_group"), group_dir)
    }

    /// Takes a device out of its group, and removes a group without devices.
    pub(super) fn leave_group(&self, dir: &Path) -> io::Result<()> {
        let Some(group) = self.group(dir) else { return Ok(()) };
        let group_dir = Path::new(GROUPS).join(group.to_string());
        self.tree.remove(group_dir.join("devices").join(name(dir)))?;
        self.tree.remove(dir.join("iommu_group"))?;
        if self.tree.list(group_dir.join("devices")).is_empty() {
            self.tree.remove(group_dir)?;
        }
        Ok(())
    }

    /// Returns the group of a device.
    pub(super) fn group(&self, dir: &Path) -> Option<u32> {
        self.tree.link_name(dir.join("iommu_group"))?.parse().ok()
    }

    /// Returns the names of the devices in a group.
    pub(super) fn group_members(&self, group: u32) -> Vec<String> {
        self.tree.list(Path::new(GROUPS).join(group.to_string()).join("devices"))
    }

    /// Returns the lowest number that no group has.
    pub(super) fn free_group(&self) -> u32 {
        let groups = self.tree.list(GROUPS);
        (0..).find(|number: &u32| !groups.contains(&number.to_string())).unwrap_or_default()
    }

    /// Returns the types of mediated devices that a parent is described with.
    pub(super) fn mdev_types(&self, parent: &Path) -> Option<MdevTypes> {
        let name = name(parent);
        let virtual_parent = self.description.mdev_parents.iter().find(|parent| parent.name == name);
        let device = || self.description.devices.iter().find(|device| device.address.to_string() == name);
        virtual_parent.map(|parent| parent.mdev.clone()).or_else(|| device()?.mdev.clone())
    }

    /// Tells everybody who listens.
    pub(super) fn event(&mut self, action: Action, dir: &Path, subsystem: &str) {
        let path = dir.strip_prefix("sys").unwrap_or(dir).to_owned();
        let mut properties = std::collections::BTreeMap::new();
        properties.insert("DEVPATH".to_owned(), format!("/{}", path.display()));
        properties.insert("SUBSYSTEM".to_owned(), subsystem.to_owned());
        if subsystem == "pci" {
            properties.insert("PCI_SLOT_NAME".to_owned(), name(dir));
        }
        if let Some(driver) = self.driver(dir) {
            properties.insert("DRIVER".to_owned(), driver);
        }
        let event = Uevent::Device(DeviceEvent { action, path, subsystem: subsystem.to_owned(), properties });
        self.listeners.retain(|listener| listener.send(event.clone()).is_ok());
    }
}

/// Returns the last component of a path.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
