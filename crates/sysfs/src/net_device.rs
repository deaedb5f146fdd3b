//! What sysfs knows of a network interface and netlink does not: the device behind it, its port, its speed.
//!
//! `class/net` has the interfaces of the network namespace in which the sysfs was mounted.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use drakkar_metadata::PciAddress;

use crate::Sysfs;
use crate::in_use::{controller, target};

/// The limit for a file: all have one short line.
const MAX_FILE: u64 = 4096;

/// The device behind a network interface. What the kernel does not know is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetDevice {
    /// The directory of the interface below sysfs, without links: `devices/pci0000:64/0000:65:00.0/net/eth0`.
    pub path: PathBuf,
    /// Whether there is a device behind it. Virtual interfaces have none.
    pub has_device: bool,
    /// The PCI device, also if there is another bus between, as with virtio.
    pub pci: Option<PciAddress>,
    /// The driver of the device.
    pub driver: Option<String>,
    /// The number of the port, from 0: several interfaces can be of one device.
    pub port: u16,
    /// The name of the port. That of a virtual function's representor is such as `pf0vf3`.
    pub port_name: Option<String>,
    /// The speed in Mbit/s. Unknown while there is no carrier.
    pub speed: Option<u32>,
    /// Whether it sends and receives at once: `full` or `half`.
    pub duplex: Option<String>,
}

impl NetDevice {
    /// Reads what there is about an interface. `None` if sysfs has no interface of this name.
    pub fn read(sysfs: &Sysfs, name: &str) -> Option<Self> {
        let is_name = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
        let path = target(sysfs, &Path::new("class/net").join(name)).filter(|_| is_name)?;
        let dir = sysfs.roots().sys.join(&path);
        let has_device = dir.join("device").symlink_metadata().is_ok();
        if !has_device {
            // No file of a virtual interface says anything, except that a bond adds up its members.
            let speed = if dir.join("bonding").is_dir() { speed(&dir) } else { None };
            return Some(Self { path, speed, ..Self::default() });
        }
        let driver = std::fs::read_link(dir.join("device/driver")).ok();
        Some(Self {
            has_device,
            pci: controller(&path),
            driver: driver.and_then(|driver| Some(driver.file_name()?.to_str()?.to_owned())),
            port: text(&dir.join("dev_port")).and_then(|port| port.parse().ok()).unwrap_or_default(),
            port_name: text(&dir.join("phys_port_name")),
            speed: speed(&dir),
            duplex: text(&dir.join("duplex")).filter(|duplex| duplex != "unknown"),
            path,
        })
    }
}

/// Reads the speed. Without a carrier it is -1, or the file cannot be read.
fn speed(dir: &Path) -> Option<u32> {
    text(&dir.join("speed"))?.parse().ok().filter(|speed| *speed > 0 && *speed < u32::MAX)
}

/// Reads a line. Files of what a driver does not support are there and cannot be read.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{Description, Simulation};

    fn host() -> (tempfile::TempDir, Simulation) {
        let directory = tempfile::tempdir().unwrap();
        let description: Description = serde_json::from_value(serde_json::json!({
            "drivers": [{"name": "igb", "ids": ["8086:10c9"]}],
            "devices": [
                {"address": "0000:17:00.0", "vendor": "8086", "device": "10c9", "class": "020000", "net": ["ens1f0"]},
            ],
        }))
        .unwrap();
        let simulation = Simulation::create(directory.path(), &description).unwrap();
        (directory, simulation)
    }

    #[test]
    fn the_device_behind_an_interface_is_found() {
        let (_directory, host) = host();
        let sysfs = host.sysfs();
        let dir = sysfs.roots().sys.join("class/net/ens1f0");
        let device = NetDevice::read(&sysfs, "ens1f0").unwrap();
        assert_eq!(device.pci, "0000:17:00.0".parse().ok());
        assert_eq!((device.driver.as_deref(), device.port, device.speed), (Some("igb"), 0, None));
        for (file, content) in
            [("speed", "25000\n"), ("duplex", "full\n"), ("dev_port", "1\n"), ("phys_port_name", "p1\n")]
        {
            std::fs::write(dir.join(file), content).unwrap();
        }
        let device = NetDevice::read(&sysfs, "ens1f0").unwrap();
        assert_eq!((device.speed, device.port), (Some(25_000), 1));
        assert_eq!((device.duplex.as_deref(), device.port_name.as_deref()), (Some("full"), Some("p1")));
        std::fs::write(dir.join("speed"), "-1\n").unwrap();
        assert_eq!(NetDevice::read(&sysfs, "ens1f0").unwrap().speed, None);
    }

    #[test]
    fn a_virtual_interface_has_no_device_and_an_unknown_one_is_none() {
        let (_directory, host) = host();
        let sysfs = host.sysfs();
        let sys = &sysfs.roots().sys;
        std::fs::create_dir_all(sys.join("devices/virtual/net/dummy0")).unwrap();
        std::os::unix::fs::symlink("../../devices/virtual/net/dummy0", sys.join("class/net/dummy0")).unwrap();
        let device = NetDevice::read(&sysfs, "dummy0").unwrap();
        assert_eq!((device.has_device, device.pci, device.driver), (false, None, None));
        for name in ["none", "", "..", "../net/dummy0"] {
            assert_eq!(NetDevice::read(&sysfs, name), None, "{name}");
        }
    }
}
