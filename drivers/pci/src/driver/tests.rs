//! Claims on a simulated host that begins to use its devices itself.

use std::fs;
use std::path::Path;

use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::simulation::{Description, Simulation};
use tempfile::TempDir;

use super::*;
use crate::attributes::Numa;
use crate::config::Config;
use crate::devices::Scan;
use crate::metrics::Metrics;
use crate::plan::Held;
use crate::prepare::ManagerSettings;

const HOST: &str = "
drivers:
- {name: nvme, ids: ['144d:*']}
- {name: igb, ids: ['8086:10c9'], sriov: true}
- {name: igbvf, ids: ['8086:10ca']}
devices:
- {address: '0000:01:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 1, nvme: nvme1}
- {address: '0000:02:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 2, nvme: nvme0}
- {address: '0000:17:00.0', vendor: '8086', device: 10c9, class: '020000', iommuGroup: 3, sriov: {totalVfs: 4, vfDevice: 10ca}}
files: {proc/1/mountinfo: '22 1 0:25 / / rw - btrfs /dev/nvme1n1 rw'}
";
const RULES: &str = "
apiVersion: pci.drakkar.dev/v1alpha1
kind: DriverConfig
devices:
- {name: disks, match: {classes: [nvme]}}
- {name: nics, match: {ids: ['8086:10c9']}, virtualFunctions: {count: 2}}
";

struct Bench {
    simulation: Simulation,
    devices: Devices,
    manager: Arc<DeviceManager>,
    directory: TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let description: Description = serde_saphyr::from_str(HOST).unwrap();
        let simulation = Simulation::create(directory.path().join("host"), &description).unwrap();
        let settings = ManagerSettings {
            driver: "pci.drakkar.dev".parse().unwrap(),
            state_directory: directory.path().join("state"),
            cdi_directory: directory.path().join("cdi"),
            host_dev: simulation.roots().dev,
        };
        let manager = Arc::new(DeviceManager::open(simulation.sysfs(), &settings).unwrap());
        manager.recover(|_| true).unwrap();
        let holder = manager.clone();
        let holdings = move || {
            let held = holder.held().into_iter().map(|held| {
                let made = Held { address: held.address, uuid: held.mdev_uuid, is_prepared: held.is_prepared };
                (held.target, made)
            });
            (held.collect(), holder.former_drivers())
        };
        let scan = Scan::new(simulation.sysfs()).unwrap();
        let numa = Numa::new(simulation.roots().sys, NumaForm::Number);
        let config = Arc::new(Config::from_yaml(RULES).unwrap());
        let devices = Devices::new(scan, "node", config, numa, Metrics::default(), holdings, |_| ());
        devices.publish();
        Self { simulation, devices, manager, directory }
    }

    fn prepare(&self, name: &str, device: &str) -> Result<Prepared, String> {
        let device = Device { device_name: device.to_owned(), ..Device::default() };
        let wanted = vec![Wanted { device, config: ClaimConfig::default() }];
        prepare(&self.devices, &self.manager, &claim(name), wanted).map_err(|error| error.to_string())
    }

    fn kernel_driver(&self, address: &str) -> Option<String> {
        let link = self.simulation.roots().pci_devices().join(address).join("driver");
        Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// Gives a function a network interface with a route.
    fn route_over(&self, address: &str) {
        let roots = self.simulation.roots();
        let path = fs::canonicalize(roots.pci_devices().join(address)).unwrap();
        let below = path.strip_prefix(fs::canonicalize(&roots.sys).unwrap()).unwrap().to_owned();
        fs::create_dir_all(path.join("net/eth9")).unwrap();
        fs::create_dir_all(roots.sys.join("class/net")).unwrap();
        let target = Path::new("../..").join(below).join("net/eth9");
        std::os::unix::fs::symlink(target, roots.sys.join("class/net/eth9")).unwrap();
        let route = "eth9\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        fs::write(roots.proc.join("1/net/route"), route).unwrap();
    }
}

fn claim(name: &str) -> ClaimRef {
    ClaimRef {
        namespace: "default".parse().unwrap(),
        name: name.parse().unwrap(),
        uid: format!("{name}-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11").parse().unwrap(),
    }
}

#[test]
fn a_virtual_function_that_the_host_has_begun_to_use_is_not_given_away() {
    let bench = Bench::new();
    // All of them are made for the first claim.
    bench.prepare("a", "vf-0000-17-00-0-0").unwrap();
    bench.route_over("0000:17:10.1");
    let error = bench.prepare("b", "vf-0000-17-00-0-1").unwrap_err();
    assert!(error.contains("0000:17:10.1: the host has begun to use it: the route to 192.168.0.0/16"), "{error}");
    assert_eq!(bench.kernel_driver("0000:17:10.1").as_deref(), Some("igbvf"));
    // A claim that has it already goes on.
    bench.prepare("a", "vf-0000-17-00-0-0").unwrap();
}

#[test]
fn a_virtual_function_of_this_driver_is_given_away_while_the_routes_are_not_known() {
    let bench = Bench::new();
    bench.prepare("a", "vf-0000-17-00-0-0").unwrap();
    fs::remove_file(bench.simulation.roots().proc.join("1/net/route")).unwrap();
    bench.prepare("b", "vf-0000-17-00-0-1").unwrap();
}

#[test]
fn virtual_functions_stay_if_the_host_uses_one_when_the_last_claim_ends() {
    let bench = Bench::new();
    bench.prepare("a", "vf-0000-17-00-0-0").unwrap();
    bench.route_over("0000:17:10.1");
    bench.manager.unprepare(&claim("a").uid).unwrap();
    assert_eq!(bench.kernel_driver("0000:17:10.1").as_deref(), Some("igbvf"), "the host uses it");
    assert!(bench.manager.held().is_empty());
}

#[test]
fn a_half_prepared_disk_that_the_host_has_mounted_since_is_not_given_away() {
    let bench = Bench::new();
    // The CDI spec can neither be written nor removed: the disk is put back, and the claim's record stays.
    let spec = bench.directory.path().join(format!("cdi/pci.drakkar.dev_device_{}.json", claim("a").uid));
    fs::create_dir_all(spec.join("in-the-way")).unwrap();
    let error = bench.prepare("a", "pci-0000-02-00-0").unwrap_err();
    assert!(bench.manager.has_unfinished(), "{error}");
    assert_eq!(bench.kernel_driver("0000:02:00.0").as_deref(), Some("nvme"));
    fs::remove_dir_all(spec).unwrap();
    let mounts = bench.simulation.roots().proc.join("1/mountinfo");
    let text = "22 1 0:25 / / rw - btrfs /dev/nvme1n1 rw\n23 1 0:26 / /data rw - btrfs /dev/nvme0n1 rw\n";
    fs::write(mounts, text).unwrap();
    let error = bench.prepare("a", "pci-0000-02-00-0").unwrap_err();
    assert!(error.contains("/dev/nvme0n1 is mounted at /data"), "{error}");
    assert_eq!(bench.kernel_driver("0000:02:00.0").as_deref(), Some("nvme"));
}

#[test]
fn a_disk_is_not_given_away_when_a_volume_of_unknown_disks_is_mounted() {
    let bench = Bench::new();
    let roots = bench.simulation.roots();
    fs::create_dir_all(roots.sys.join("devices/virtual/block/zd0")).unwrap();
    std::os::unix::fs::symlink("../../devices/virtual/block/zd0", roots.sys.join("class/block/zd0")).unwrap();
    let text = "22 1 0:25 / / rw - btrfs /dev/nvme1n1 rw\n23 1 0:26 / /data rw - btrfs /dev/zd0 rw\n";
    fs::write(roots.proc.join("1/mountinfo"), text).unwrap();
    let error = bench.prepare("a", "pci-0000-02-00-0").unwrap_err();
    assert!(error.contains("not known any more whether the host uses it: /dev/zd0: "), "{error}");
    assert_eq!(bench.kernel_driver("0000:02:00.0").as_deref(), Some("nvme"));
}
