//! What a simulated driver makes of its device: VFIO's nodes, network interfaces, disks, graphics nodes, types of mediated
//! devices.

use std::io;
use std::path::Path;

use super::host::{Host, VFIO, name};
use crate::Action;

impl Host {
    /// Adds what VFIO makes of a device or a mediated device.
    pub(super) fn add_vfio(&mut self, dir: &Path) -> io::Result<()> {
        let taken = self.tree.list("sys/class/vfio-dev");
        let vfio = (0..).map(|number: u32| format!("vfio{number}")).find(|vfio| !taken.contains(vfio));
        let vfio = vfio.unwrap_or_default();
        let vfio_dir = dir.join("vfio-dev").join(&vfio);
        self.tree.make(&vfio_dir)?;
        if self.description.vfio.cdev {
            // Without character devices the directory is there all the same, and has no file `dev`.
            self.tree.set(vfio_dir.join("dev"), format!("511:{}\n", vfio.trim_start_matches("vfio")))?;
            self.tree.set(Path::new("dev/vfio/devices").join(&vfio), "")?;
        }
        self.tree.link(Path::new("sys/class/vfio-dev").join(&vfio), &vfio_dir)?;
        self.event(Action::Add, &vfio_dir, "vfio-dev");
        if let Some(group) = self.group(dir) {
            self.tree.set(Path::new("dev/vfio").join(group.to_string()), "")?;
        }
        Ok(())
    }

    /// Removes what VFIO made, except the group's node.
    pub(super) fn remove_vfio(&mut self, dir: &Path) -> io::Result<()> {
        for vfio in self.tree.list(dir.join("vfio-dev")) {
            self.tree.remove(Path::new("sys/class/vfio-dev").join(&vfio))?;
            self.tree.remove(Path::new("dev/vfio/devices").join(&vfio))?;
            self.event(Action::Remove, &dir.join("vfio-dev").join(&vfio), "vfio-dev");
        }
        if self.tree.list("dev/vfio/devices").is_empty() {
            self.tree.remove("dev/vfio/devices")?;
        }
        self.tree.remove(dir.join("vfio-dev"))
    }

    /// Removes the node of a device's group unless another member is with VFIO.
    pub(super) fn drop_group_node(&mut self, dir: &Path) -> io::Result<()> {
        let Some(group) = self.group(dir) else { return Ok(()) };
        let with_vfio = |member: &String| {
            let address = member.parse().ok().and_then(|address| self.device_dir(address));
            address.is_some_and(|other| other != dir && self.driver(&other).is_some_and(|driver| driver == VFIO))
        };
        if self.group_members(group).iter().any(with_vfio) {
            return Ok(());
        }
        self.tree.remove(Path::new("dev/vfio").join(group.to_string()))
    }

    /// Adds what a kernel driver makes of its device, as the description says.
    pub(super) fn add_kernel_devices(&mut self, driver: &str, dir: &Path) -> io::Result<()> {
        let device = self.description.devices.iter().find(|device| device.address.to_string() == name(dir)).cloned();
        let Some(device) = device else { return Ok(()) };
        for interface in &device.net {
            let interface_dir = dir.join("net").join(interface);
            self.tree.make(&interface_dir)?;
            self.tree.set(interface_dir.join("operstate"), "up\n")?;
            self.tree.set(interface_dir.join("address"), "52:54:00:12:34:56\n")?;
            self.tree.link(interface_dir.join("device"), dir)?;
            self.tree.link(Path::new("sys/class/net").join(interface), &interface_dir)?;
            self.event(Action::Add, &interface_dir, "net");
        }
        for node in &device.drm {
            let node_dir = dir.join("drm").join(node);
            let minor: String = node.chars().filter(char::is_ascii_digit).collect();
            self.tree.make(&node_dir)?;
            self.tree.set(node_dir.join("dev"), format!("226:{minor}\n"))?;
            self.tree.set(node_dir.join("uevent"), format!("DEVNAME=dri/{node}\n"))?;
            self.tree.link(node_dir.join("device"), dir)?;
            self.tree.link(Path::new("sys/class/drm").join(node), &node_dir)?;
            self.tree.set(Path::new("dev/dri").join(node), "")?;
        }
        if let Some(controller) = &device.nvme {
            let controller_dir = dir.join("nvme").join(controller);
            let disk = format!("{controller}n1");
            let disk_dir = controller_dir.join(&disk);
            self.tree.make(&disk_dir)?;
            self.tree.set(controller_dir.join("dev"), "241:0\n")?;
            self.tree.set(controller_dir.join("uevent"), format!("DEVNAME={controller}\n"))?;
            self.tree.set(disk_dir.join("dev"), "259:0\n")?;
            self.tree.set(disk_dir.join("uevent"), format!("DEVNAME={disk}\nDEVTYPE=disk\n"))?;
            self.tree.link(controller_dir.join("device"), dir)?;
            self.tree.link(Path::new("sys/class/nvme").join(controller), &controller_dir)?;
            self.tree.link(Path::new("sys/class/block").join(&disk), &disk_dir)?;
            self.tree.link(Path::new("sys/block").join(&disk), &disk_dir)?;
            self.tree.link(Path::new("sys/dev/block/259:0"), &disk_dir)?;
            self.tree.set(Path::new("dev").join(controller), "")?;
            self.tree.set(Path::new("dev").join(&disk), "")?;
            self.event(Action::Add, &disk_dir, "block");
        }
        if device.mdev.is_some() {
            self.add_mdev_types(driver, dir)?;
        }
        self.tree.set(dir.join("enable"), "1\n")
    }

    /// Removes what a kernel driver made of its device.
    pub(super) fn remove_kernel_devices(&mut self, dir: &Path) -> io::Result<()> {
        for interface in self.tree.list(dir.join("net")) {
            self.tree.remove(Path::new("sys/class/net").join(&interface))?;
            self.event(Action::Remove, &dir.join("net").join(&interface), "net");
        }
        for node in self.tree.list(dir.join("drm")) {
            self.tree.remove(Path::new("sys/class/drm").join(&node))?;
            self.tree.remove(Path::new("dev/dri").join(&node))?;
        }
        for controller in self.tree.list(dir.join("nvme")) {
            let disk = format!("{controller}n1");
            for path in ["sys/class/block", "sys/block", "dev"] {
                self.tree.remove(Path::new(path).join(&disk))?;
            }
            self.tree.remove("sys/dev/block/259:0")?;
            self.tree.remove(Path::new("sys/class/nvme").join(&controller))?;
            self.tree.remove(Path::new("dev").join(&controller))?;
        }
        self.remove_mdev_types(dir)?;
        for made in ["net", "drm", "nvme"] {
            self.tree.remove(dir.join(made))?;
        }
        self.tree.set(dir.join("enable"), "0\n")
    }
}
