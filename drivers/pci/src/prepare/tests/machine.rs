//! A simulated machine with a driver that can die at any step.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_cdi::Spec;
pub(super) use drakkar_driver_kit::files::faults::Life;
use drakkar_driver_kit::files::faults::MortalFiles;
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::simulation::{Description, Simulation};
use drakkar_sysfs::{Kernel, MdevParentName, PciAddress, Sysfs};
use tempfile::TempDir;

use crate::prepare::{DeviceManager, DeviceRequest, ManagerSettings, Recovery};
use crate::target::Target;

pub(super) const GPU: &str = "0000:65:00.0";
pub(super) const AUDIO: &str = "0000:65:00.1";
pub(super) const DISK: &str = "0000:03:00.0";
pub(super) const NIC: &str = "0000:17:00.0";
pub(super) const LONER: &str = "0000:18:00.0";

/// How long a test waits for something that will happen.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

pub(super) fn description() -> Description {
    serde_json::from_value(serde_json::json!({
        "vfio": {"cdev": true, "iommufd": true},
        "drivers": [
            {"name": "nvidia", "ids": ["10de:2331"]},
            {"name": "snd_hda_intel", "ids": ["10de:10fa"]},
            {"name": "nvme", "ids": ["144d:*"]},
            {"name": "igb", "ids": ["8086:10c9"], "sriov": true},
            {"name": "igbvf", "ids": ["8086:10ca"]},
        ],
        "devices": [
            {"address": "0000:64:00.0", "vendor": "8086", "device": "347a", "class": "060400", "pcieRoot": "pci0000:64", "iommuGroup": 12},
            {"address": GPU, "vendor": "10de", "device": "2331", "class": "030200", "parent": "0000:64:00.0", "iommuGroup": 12,
             "drm": ["card0", "renderD128"],
             "mdev": {"capacity": 4, "types": [{"id": "nvidia-1"}, {"id": "nvidia-2", "cost": 2}]}},
            {"address": AUDIO, "vendor": "10de", "device": "10fa", "class": "040300", "parent": "0000:64:00.0", "iommuGroup": 12},
            {"address": DISK, "vendor": "144d", "device": "a80a", "class": "010802", "iommuGroup": 5, "nvme": "nvme0"},
            {"address": NIC, "vendor": "8086", "device": "10c9", "class": "020000", "iommuGroup": 3, "net": ["eth0"],
             "sriov": {"totalVfs": 7, "vfDevice": "10ca"}},
            {"address": LONER, "vendor": "8086", "device": "ffff", "class": "020000"},
        ],
        "mdevParents": [{"name": "mtty", "capacity": 2, "types": [{"id": "mtty-1"}]}],
    }))
    .unwrap()
}

pub(super) struct Machine {
    pub(super) directory: TempDir,
    pub(super) kernel: Simulation,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self::with(&description())
    }

    pub(super) fn with(description: &Description) -> Self {
        // Thousands of small files, for which memory is faster than a disk.
        let directory = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        let kernel = Simulation::create(directory.path().join("host"), description).unwrap();
        Self { directory, kernel }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub(super) fn settings(&self) -> ManagerSettings {
        ManagerSettings {
            driver: "pci.drakkar.dev".parse().unwrap(),
            state_directory: self.path("state"),
            cdi_directory: self.path("cdi"),
            host_dev: self.path("host/dev"),
        }
    }

    /// Returns a driver that has just started.
    pub(super) fn start(&self) -> DeviceManager {
        let manager = DeviceManager::open(self.kernel.sysfs(), &self.settings()).unwrap();
        let recovery = manager.recover(|_| true).unwrap();
        assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
        manager
    }

    /// Returns a driver that has just started, and what it found.
    pub(super) fn restart(&self, exists: impl Fn(&ClaimRef) -> bool) -> (DeviceManager, Recovery) {
        let manager = DeviceManager::open(self.kernel.sysfs(), &self.settings()).unwrap();
        let recovery = manager.recover(exists).unwrap();
        (manager, recovery)
    }

    /// Returns a driver that dies after some steps, without having recovered anything.
    pub(super) fn mortal(&self, life: &Arc<Life>) -> DeviceManager {
        let kernel = MortalKernel { kernel: self.kernel.clone(), life: life.clone() };
        let sysfs = Sysfs::with_kernel(self.kernel.roots(), Arc::new(kernel));
        let files = Arc::new(MortalFiles::new(life.clone()));
        fs::create_dir_all(self.path("state")).unwrap();
        fs::create_dir_all(self.path("cdi")).unwrap();
        DeviceManager::open_with(sysfs, &self.settings(), files).unwrap()
    }

    /// Returns everything that can be seen of the kernel, by path.
    pub(super) fn kernel_state(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for root in ["host/sys", "host/dev"] {
            walk(self.directory.path(), &self.path(root), &mut all);
        }
        all
    }

    /// Fails if anything in the kernel is not as it was.
    #[track_caller]
    pub(super) fn assert_state(&self, before: &BTreeMap<String, String>, when: &str) {
        let now = self.kernel_state();
        let lost: BTreeMap<_, _> = before.iter().filter(|(path, content)| now.get(*path) != Some(content)).collect();
        let new: BTreeMap<_, _> = now.iter().filter(|(path, content)| before.get(*path) != Some(content)).collect();
        assert!(lost.is_empty() && new.is_empty(), "{when}: not as it was: lost {lost:#?}, new {new:#?}");
    }

    /// Returns the files of the driver: its journal and its CDI specs.
    pub(super) fn driver_files(&self) -> Vec<String> {
        let mut all = BTreeMap::new();
        for root in ["state", "cdi"] {
            if self.path(root).exists() {
                walk(self.directory.path(), &self.path(root), &mut all);
            }
        }
        all.into_keys().collect()
    }

    /// Returns the paths that containers with each CDI device of a claim get, by CDI device.
    pub(super) fn spec(&self, claim: &ClaimRef) -> BTreeMap<String, Vec<String>> {
        let path = self.path("cdi").join(format!("pci.drakkar.dev_device_{}.json", claim.uid));
        let Ok(content) = fs::read(path) else { return BTreeMap::new() };
        let spec = Spec::parse(&content).unwrap();
        let devices = spec.devices.iter().map(|device| {
            let edits = &device.container_edits;
            let mounts = edits.mounts.iter().map(|mount| {
                assert!(Path::new(&mount.host_path).exists(), "{mount:?}");
                mount.container_path.clone()
            });
            (format!("{}={}", spec.kind, device.name), mounts.collect())
        });
        devices.collect()
    }

    pub(super) fn driver(&self, device: &str) -> Option<String> {
        let link = self.path(&format!("host/sys/bus/pci/devices/{device}/driver"));
        Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path("host").join(path).exists()
    }

    pub(super) fn mdevs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("host/sys/bus/mdev/devices")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn walk(root: &Path, path: &Path, all: &mut BTreeMap<String, String>) {
    let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
    let status = path.symlink_metadata().unwrap();
    if status.is_symlink() {
        all.insert(name, fs::read_link(path).unwrap().to_string_lossy().into_owned());
    } else if status.is_dir() {
        // Directories alone do not count: some are made for their first entry and stay.
        for entry in fs::read_dir(path).unwrap() {
            walk(root, &entry.unwrap().path(), all);
        }
    } else {
        all.insert(name, String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned());
    }
}

#[derive(Debug)]
struct MortalKernel {
    kernel: Simulation,
    life: Arc<Life>,
}

impl Kernel for MortalKernel {
    fn write(&self, path: &Path, value: &[u8]) -> io::Result<()> {
        self.life.step()?;
        self.kernel.write(path, value)
    }
}

pub(super) fn claim(name: &str) -> ClaimRef {
    ClaimRef {
        namespace: "default".parse().unwrap(),
        name: name.parse().unwrap(),
        uid: format!("{name}-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11").parse().unwrap(),
    }
}

pub(super) fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

pub(super) fn function(device: &str) -> DeviceRequest {
    DeviceRequest::new(Target::Function(address(device)))
}

pub(super) fn gpu_with_audio() -> DeviceRequest {
    DeviceRequest { companions: vec![address(AUDIO)], ..function(GPU) }
}

pub(super) fn vf(index: u16) -> DeviceRequest {
    let target = Target::VirtualFunction { physical: address(NIC), index };
    DeviceRequest { virtual_functions: 4, ..DeviceRequest::new(target) }
}

pub(super) fn mdev(type_id: &str, slot: u32) -> DeviceRequest {
    let parent = MdevParentName::Pci(address(GPU));
    DeviceRequest::new(Target::NewMdev { parent, type_id: type_id.into(), slot })
}
