//! Trees that look like sysfs, devtmpfs and procfs, made file by file: also such as no kernel would make.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use drakkar_sysfs::{Action, DeviceEvent, Inventory, PciAddress, PciDevice, Roots, Sysfs, Uevent};
use tempfile::TempDir;

pub(crate) struct Tree {
    directory: TempDir,
}

impl Tree {
    /// A host with an IOMMU and without devices.
    pub(crate) fn new() -> Self {
        // In memory where that is possible, as sysfs is.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = Self { directory };
        for directory in ["sys/bus/pci/devices", "sys/kernel/iommu_groups", "dev", "proc/1/net"] {
            tree.directory(directory);
        }
        // Every kernel has it, also one without routes.
        tree.file(
            "proc/1/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n",
        );
        tree
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::below(self.directory.path())
    }

    pub(crate) fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.roots())
    }

    pub(crate) fn scan(&self) -> Inventory {
        Inventory::scan(&self.sysfs()).unwrap()
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(path)
    }

    pub(crate) fn directory(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// Makes a link to a path of the tree, relative as the kernel's are.
    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        let up = "../".repeat(Path::new(path).components().count() - 1);
        self.raw_link(path, &format!("{up}{target}"))
    }

    pub(crate) fn raw_link(&self, path: &str, target: &str) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(std::fs::remove_file(&path));
        symlink(target, path).unwrap();
        self
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_symlink() || path.is_file() {
            std::fs::remove_file(path).unwrap();
        } else {
            std::fs::remove_dir_all(path).unwrap();
        }
    }

    /// Adds an Ethernet card without a driver. The path is that below `sys/devices`.
    pub(crate) fn pci(&self, path: &str) -> Pci<'_> {
        let address = Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
        let pci = Pci { tree: self, directory: format!("sys/devices/{path}"), address };
        let files = [
            ("vendor", "0x8086"),
            ("device", "0x10d3"),
            ("subsystem_vendor", "0x8086"),
            ("subsystem_device", "0xa01f"),
            ("class", "0x020000"),
            ("revision", "0x01"),
            ("driver_override", "(null)"),
            ("numa_node", "-1"),
            ("power_state", "D0"),
            ("d3cold_allowed", "1"),
            ("enable", "0"),
            ("reset_method", "flr bus"),
        ];
        for (name, content) in files {
            pci.file(name, format!("{content}\n"));
        }
        pci.file("config", [0x86; 256]);
        self.link(&format!("sys/bus/pci/devices/{}", pci.address), &pci.directory);
        pci
    }

    pub(crate) fn mdev(&self, uuid: &str, parent: &str, type_id: &str, group: u32) {
        let directory = format!("sys/devices/{parent}/{uuid}");
        self.directory(&directory);
        self.link(&format!("{directory}/mdev_type"), &format!("sys/devices/{parent}/mdev_supported_types/{type_id}"));
        self.link(&format!("{directory}/iommu_group"), &format!("sys/kernel/iommu_groups/{group}"));
        self.link(&format!("{directory}/driver"), "sys/bus/mdev/drivers/vfio_mdev");
        self.link(&format!("sys/kernel/iommu_groups/{group}/devices/{uuid}"), &directory);
        self.link(&format!("sys/bus/mdev/devices/{uuid}"), &directory);
    }

    pub(crate) fn mdev_type(&self, parent: &str, id: &str, available: u32) {
        let directory = format!("sys/devices/{parent}/mdev_supported_types/{id}");
        self.file(&format!("{directory}/name"), format!("Name of {id}\n"));
        self.file(&format!("{directory}/description"), "num_heads=4, frl_config=60\n");
        self.file(&format!("{directory}/device_api"), "vfio-pci\n");
        self.file(&format!("{directory}/available_instances"), format!("{available}\n"));
    }
}

/// A PCI device of a tree.
pub(crate) struct Pci<'a> {
    tree: &'a Tree,
    directory: String,
    address: String,
}

impl Pci<'_> {
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        self.tree.file(&format!("{}/{name}", self.directory), content);
        self
    }

    pub(crate) fn without(&self, name: &str) -> &Self {
        self.tree.remove(&format!("{}/{name}", self.directory));
        self
    }

    pub(crate) fn link(&self, name: &str, target: &str) -> &Self {
        self.tree.link(&format!("{}/{name}", self.directory), target);
        self
    }

    pub(crate) fn driver(&self, driver: &str) -> &Self {
        self.link("driver", &format!("sys/bus/pci/drivers/{driver}"))
    }

    pub(crate) fn group(&self, group: u32) -> &Self {
        self.tree.link(&format!("sys/kernel/iommu_groups/{group}/devices/{}", self.address), &self.directory);
        self.link("iommu_group", &format!("sys/kernel/iommu_groups/{group}"))
    }

    pub(crate) fn class(&self, class: u32) -> &Self {
        self.file("class", format!("{class:#08x}\n"))
    }

    /// Makes it the virtual function of another device with this number.
    pub(crate) fn virtual_function_of(&self, physical: &Pci<'_>, number: u16) -> &Self {
        physical.link(&format!("virtfn{number}"), &self.directory);
        self.link("physfn", &physical.directory)
    }
}

pub(crate) fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// The device with this address.
pub(crate) fn device<'a>(inventory: &'a Inventory, text: &str) -> &'a PciDevice {
    &inventory.devices[&address(text)]
}

pub(crate) fn event(action: Action, subsystem: &str, path: &str) -> Uevent {
    Uevent::Device(DeviceEvent {
        action,
        path: PathBuf::from(format!("devices/{path}")),
        subsystem: subsystem.to_owned(),
        properties: Default::default(),
    })
}

/// The problems of a device as text.
pub(crate) fn problems(device: &PciDevice) -> String {
    device.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
