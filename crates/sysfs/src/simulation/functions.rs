//! Virtual functions and mediated devices of a simulated kernel.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::description::{Device, MdevTypes};
use super::fault::errno;
use super::host::{Host, VFIO, name};
use crate::{Action, PciAddress};

impl Host {
    /// Sets the number of virtual functions: the kernel's `sriov_numvfs_store`, errors included.
    pub(super) fn set_num_vfs(&mut self, dir: &Path, number: u16) -> io::Result<()> {
        let attribute = |file: &str| self.tree.read(dir.join(file)).ok().and_then(|text| text.parse::<u16>().ok());
        let total = attribute("sriov_totalvfs").ok_or_else(|| errno(Errno::NOENT))?;
        let current = attribute("sriov_numvfs").unwrap_or_default();
        if number > total {
            return Err(errno(Errno::RANGE));
        }
        if number == current {
            return Ok(());
        }
        let driver = self.driver(dir);
        let can = |name: &String| self.description.drivers.iter().any(|known| known.name == *name && known.sriov);
        if !driver.as_ref().is_some_and(can) {
            return Err(errno(Errno::NOENT));
        }
        if number == 0 {
            return self.remove_vfs(dir);
        }
        if current > 0 {
            return Err(errno(Errno::BUSY));
        }
        let parent = dir.parent().ok_or_else(|| errno(Errno::INVAL))?.to_owned();
        let pf = self.description.devices.iter().find(|device| device.address.to_string() == name(dir)).cloned();
        let pf = pf.ok_or_else(|| errno(Errno::INVAL))?;
        for index in 0..number {
            let address = vf_address(&pf, index).ok_or_else(|| errno(Errno::INVAL))?;
            let vf_device = pf.sriov.as_ref().map_or(pf.device, |sriov| sriov.vf_device);
            let mut vf = Device::new(address, pf.vendor, vf_device, pf.class);
            vf.numa_node = pf.numa_node;
            let vf_dir = parent.join(address.to_string());
            self.create_directory(&vf_dir, &vf)?;
            self.tree.link(vf_dir.join("physfn"), dir)?;
            self.tree.link(dir.join(format!("virtfn{index}")), &vf_dir)?;
            if pf.iommu_group.is_some() {
                self.join_group(&vf_dir, self.free_group())?;
            }
            self.event(Action::Add, &vf_dir, "pci");
            self.event(Action::Change, &vf_dir, "pci");
            self.probe(&vf_dir);
        }
        self.tree.set(dir.join("sriov_numvfs"), format!("{number}\n"))?;
        self.event(Action::Change, dir, "pci");
        Ok(())
    }

    /// Removes all virtual functions of a device.
    pub(super) fn remove_vfs(&mut self, dir: &Path) -> io::Result<()> {
        for link in self.tree.list(dir).into_iter().filter(|entry| entry.starts_with("virtfn")) {
            let vf = self.tree.link_name(dir.join(&link)).and_then(|vf| vf.parse().ok());
            self.tree.remove(dir.join(&link))?;
            if let Some(vf_dir) = vf.and_then(|address| self.device_dir(address)) {
                self.remove_device(&vf_dir)?;
            }
        }
        // No event about the device itself: those about its functions have to do.
        self.tree.set(dir.join("sriov_numvfs"), "0\n")
    }

    /// Adds the types of mediated devices of a parent.
    pub(super) fn add_mdev_types(&mut self, driver: &str, dir: &Path) -> io::Result<()> {
        let Some(types) = self.mdev_types(dir) else { return Ok(()) };
        for mdev_type in &types.types {
            let api = mdev_type.device_api.as_deref().unwrap_or(VFIO);
            let mut files = vec![
                ("device_api".to_owned(), format!("{api}\n").into_bytes()),
                ("available_instances".to_owned(), b"0\n".to_vec()),
                ("create".to_owned(), Vec::new()),
            ];
            if let Some(name) = &mdev_type.name {
                files.push(("name".to_owned(), format!("{name}\n").into_bytes()));
            }
            if let Some(description) = &mdev_type.description {
                files.push(("description".to_owned(), format!("{description}\n").into_bytes()));
            }
            let type_dir = dir.join("mdev_supported_types").join(&mdev_type.id);
            self.tree.make_with(&type_dir, &files)?;
            self.tree.make(type_dir.join("devices"))?;
        }
        self.tree.make(Path::new("sys/bus/mdev/drivers").join(driver))?;
        self.tree.make("sys/bus/mdev/devices")?;
        self.update_available(dir, &types)?;
        self.tree.link(Path::new("sys/class/mdev_bus").join(name(dir)), dir)
    }

    /// Removes the types of a parent with all instances.
    pub(super) fn remove_mdev_types(&mut self, dir: &Path) -> io::Result<()> {
        for mdev_type in self.tree.list(dir.join("mdev_supported_types")) {
            for uuid in self.tree.list(dir.join("mdev_supported_types").join(&mdev_type).join("devices")) {
                self.remove_mdev(&dir.join(&uuid))?;
            }
        }
        self.tree.remove(Path::new("sys/class/mdev_bus").join(name(dir)))?;
        self.tree.remove(dir.join("mdev_supported_types"))
    }

    /// Makes a mediated device: the kernel's `create_store`.
    pub(super) fn create_mdev(&mut self, parent: &Path, type_id: &str, uuid: &str) -> io::Result<()> {
        let is_uuid = uuid.len() == 36 && uuid::Uuid::try_parse(uuid).is_ok();
        if !is_uuid {
            return Err(errno(Errno::INVAL));
        }
        let uuid = uuid.to_ascii_lowercase();
        if self.tree.exists(Path::new("sys/bus/mdev/devices").join(&uuid)) {
            return Err(errno(Errno::EXIST));
        }
        let types = self.mdev_types(parent).ok_or_else(|| errno(Errno::NODEV))?;
        let type_dir = parent.join("mdev_supported_types").join(type_id);
        let dir = parent.join(&uuid);
        if self.tree.read(type_dir.join("available_instances"))? == "0" {
            // As with the kernel's samples, the driver notices when the device is there already.
            self.event(Action::Add, &dir, "mdev");
            self.event(Action::Remove, &dir, "mdev");
            return Err(errno(Errno::NOSPC));
        }
        self.tree.make_with(&dir, &[("remove".to_owned(), Vec::new())])?;
        self.tree.link(dir.join("mdev_type"), &type_dir)?;
        self.tree.link(dir.join("subsystem"), "sys/bus/mdev")?;
        self.join_group(&dir, self.free_group())?;
        self.tree.link(type_dir.join("devices").join(&uuid), &dir)?;
        self.tree.link(Path::new("sys/bus/mdev/devices").join(&uuid), &dir)?;
        self.update_available(parent, &types)?;
        self.event(Action::Add, &dir, "mdev");
        let driver = self.driver(parent).unwrap_or_else(|| name(parent));
        self.tree.link(dir.join("driver"), Path::new("sys/bus/mdev/drivers").join(driver))?;
        self.add_vfio(&dir)?;
        self.event(Action::Bind, &dir, "mdev");
        Ok(())
    }

    /// Removes a mediated device.
    pub(super) fn remove_mdev(&mut self, dir: &Path) -> io::Result<()> {
        let parent = dir.parent().unwrap_or(dir).to_owned();
        if let Some(type_id) = self.tree.link_name(dir.join("mdev_type")) {
            self.tree.remove(parent.join("mdev_supported_types").join(type_id).join("devices").join(name(dir)))?;
        }
        self.remove_vfio(dir)?;
        self.tree.remove(dir.join("driver"))?;
        self.event(Action::Unbind, dir, "mdev");
        self.drop_group_node(dir)?;
        self.leave_group(dir)?;
        self.tree.remove(Path::new("sys/bus/mdev/devices").join(name(dir)))?;
        self.tree.remove(dir)?;
        if let Some(types) = self.mdev_types(&parent) {
            self.update_available(&parent, &types)?;
        }
        self.event(Action::Remove, dir, "mdev");
        Ok(())
    }

    /// Sets how many more instances of each type there can be: all types share the capacity.
    fn update_available(&self, parent: &Path, types: &MdevTypes) -> io::Result<()> {
        let type_dir = |id: &str| parent.join("mdev_supported_types").join(id);
        let instances =
            |id: &str| u32::try_from(self.tree.list(type_dir(id).join("devices")).len()).unwrap_or(u32::MAX);
        let used: u32 = types.types.iter().map(|known| known.cost() * instances(&known.id)).sum();
        let in_use = types.types.iter().find(|known| instances(&known.id) > 0);
        for known in &types.types {
            let is_excluded = types.homogeneous && in_use.is_some_and(|other| other.id != known.id);
            let available = if is_excluded { 0 } else { types.capacity.saturating_sub(used) / known.cost() };
            self.tree.set(type_dir(&known.id).join("available_instances"), format!("{available}\n"))?;
        }
        Ok(())
    }
}

/// Returns the address of a virtual function: its routing id follows from that of the physical function.
fn vf_address(pf: &Device, index: u16) -> Option<PciAddress> {
    let sriov = pf.sriov.as_ref()?;
    let address = pf.address;
    let id = u16::from(address.bus()) << 8 | u16::from(address.device()) << 3 | u16::from(address.function());
    let id = id.checked_add(sriov.offset)?.checked_add(index.checked_mul(sriov.stride)?)?;
    format!("{:04x}:{:02x}:{:02x}.{:x}", address.domain(), id >> 8, id >> 3 & 0x1f, id & 7).parse().ok()
}
