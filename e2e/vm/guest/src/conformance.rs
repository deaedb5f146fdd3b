//! The simulated kernel against the real one: the same writes to both have the same errors, the same effects on links, files
//! and nodes, and the same uevents.
//!
//! The simulation is built from the real inventory. What a step may leave different is said where it is: nothing is filtered
//! silently.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drakkar_sysfs::simulation::{
    Description, Device, Driver, MdevType, MdevTypes, Simulation, Sriov, Vfio, VirtualParent,
};
use drakkar_sysfs::{DeviceEvent, HostKernel, Inventory, Kernel, PciAddress, Roots, Uevent, UeventSocket};

use crate::guest::{Guest, modprobe, names};
use crate::mediated::uuid;

/// The subsystems whose events a driver of devices reads.
const SUBSYSTEMS: [&str; 3] = ["mdev", "pci", "vfio-dev"];

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    for module in ["vfio-pci", "iommufd", "igbvf", "mtty"] {
        modprobe(module)?;
    }
    let inventory = guest.scan()?;
    let directory = tempfile::tempdir()?;
    let simulation = Simulation::create(directory.path(), &description(&inventory)?)?;
    let mut differences = Vec::new();
    let mut both = Both {
        real: guest.sysfs.roots().clone(),
        simulated: simulation.roots(),
        netlink: UeventSocket::open()?,
        channel: simulation.uevents(),
        simulation: &simulation,
        known: BTreeSet::new(),
        is_first: true,
    };
    let steps = steps(guest)?;
    both.compare_state("at the start", &mut differences);
    for (file, value) in &steps {
        both.step(file, value, &mut differences)?;
    }
    for difference in &differences {
        println!("{difference}");
    }
    ensure!(differences.is_empty(), "{} differences between the simulation and the kernel", differences.len());
    println!("{} writes, no difference", steps.len());
    Ok(())
}

/// The writes: each error and each effect that the driver relies on.
fn steps(guest: &mut Guest) -> Result<Vec<(String, String)>> {
    let nic = guest.address("nic0")?.to_string();
    let pf = guest.address("sriov")?;
    let vf = format!("{:04x}:{:02x}:10.0", pf.domain(), pf.bus());
    let pf = pf.to_string();
    let (old0, old1) = (guest.address("old0")?.to_string(), guest.address("old1")?.to_string());
    let device = |address: &str, file: &str| format!("bus/pci/devices/{address}/{file}");
    let driver = |name: &str, file: &str| format!("bus/pci/drivers/{name}/{file}");
    let probe = || "bus/pci/drivers_probe".to_owned();
    let mdev = |kind: &str| format!("class/mdev_bus/mtty/mdev_supported_types/{kind}/create");
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut add = |file: String, value: &str| steps.push((file, value.to_owned()));

    // Busy, not wanted, no such device, not bound to it.
    add(driver("e1000e", "bind"), &nic);
    add(driver("vfio-pci", "bind"), &nic);
    add(driver("e1000e", "bind"), "0000:7f:00.0");
    add(driver("vfio-pci", "unbind"), &nic);
    add(probe(), "0000:7f:00.0");
    add(probe(), "nonsense");
    // To VFIO, there again, and back.
    add(device(&nic, "driver_override"), "vfio-pci");
    add(driver("e1000e", "unbind"), &nic);
    add(driver("e1000e", "unbind"), &nic);
    add(driver("e1000e", "bind"), &nic);
    add(driver("vfio-pci", "bind"), &nic);
    add(driver("vfio-pci", "bind"), &nic);
    add(device(&nic, "driver_override"), "\n");
    add(driver("vfio-pci", "unbind"), &nic);
    add(probe(), &nic);
    // An override to a driver that is not there: nothing takes the device.
    add(device(&nic, "driver_override"), "no-such-driver");
    add(driver("e1000e", "unbind"), &nic);
    add(probe(), &nic);
    add(device(&nic, "driver_override"), "\n");
    add(driver("e1000e", "bind"), &nic);
    // A group of several: its node is there while one of them is with VFIO.
    add(device(&old1, "driver_override"), "vfio-pci");
    add(probe(), &old1);
    add(device(&old0, "driver_override"), "vfio-pci");
    add(driver("e1000", "unbind"), &old0);
    add(driver("vfio-pci", "bind"), &old0);
    add(driver("vfio-pci", "unbind"), &old1);
    add(driver("vfio-pci", "unbind"), &old0);
    add(device(&old0, "driver_override"), "\n");
    add(device(&old1, "driver_override"), "\n");
    add(probe(), &old0);
    add(probe(), &old1);
    // Virtual functions.
    add(device(&pf, "sriov_numvfs"), "99");
    add(device(&pf, "sriov_numvfs"), "many");
    add(device(&pf, "sriov_numvfs"), "0");
    add(device(&pf, "sriov_numvfs"), "2");
    add(device(&pf, "sriov_numvfs"), "2");
    add(device(&pf, "sriov_numvfs"), "3");
    add(device(&vf, "driver_override"), "vfio-pci");
    add(driver("igbvf", "unbind"), &vf);
    add(driver("vfio-pci", "bind"), &vf);
    add(device(&pf, "sriov_numvfs"), "0");
    add(device(&pf, "sriov_drivers_autoprobe"), "0");
    add(device(&pf, "sriov_drivers_autoprobe"), "maybe");
    add(device(&pf, "sriov_numvfs"), "1");
    add(probe(), &vf);
    add(driver("igbvf", "bind"), &vf);
    add(device(&vf, "driver_override"), "igbvf");
    add(probe(), &vf);
    add(device(&pf, "sriov_numvfs"), "0");
    add(device(&pf, "sriov_drivers_autoprobe"), "1");
    // A physical function without its driver cannot make any; with VFIO neither.
    add(driver("igb", "unbind"), &pf);
    add(device(&pf, "sriov_numvfs"), "1");
    add(device(&pf, "driver_override"), "vfio-pci");
    add(probe(), &pf);
    add(device(&pf, "sriov_numvfs"), "1");
    add(driver("vfio-pci", "unbind"), &pf);
    add(device(&pf, "driver_override"), "\n");
    add(probe(), &pf);
    // Mediated devices.
    add(mdev("mtty-2"), "not-a-uuid");
    for number in 0..12 {
        add(mdev("mtty-2"), &uuid(number));
    }
    add(mdev("mtty-1"), &uuid(0));
    add(mdev("mtty-1"), &uuid(99));
    for number in 0..11 {
        add(format!("bus/mdev/devices/{}/remove", uuid(number)), "1");
    }
    add(format!("bus/mdev/devices/{}/remove", uuid(11)), "0");
    add(format!("bus/mdev/devices/{}/remove", uuid(11)), "x");
    add(mdev("mtty-1"), &uuid(98));
    add(format!("bus/mdev/devices/{}/remove", uuid(11)), "1");
    add(format!("bus/mdev/devices/{}/remove", uuid(98)), "1");
    // A device that is removed by software.
    add(device(&old1, "remove"), "0");
    add(device(&old1, "remove"), "1");
    add(device(&old1, "driver_override"), "vfio-pci");
    Ok(steps)
}

/// The simulation of this machine.
fn description(inventory: &Inventory) -> Result<Description> {
    let driver = |name: &str, id: &str, sriov: bool| Driver { name: name.to_owned(), ids: vec![id.to_owned()], sriov };
    let mut devices = Vec::new();
    // Bridges have to be described before what is behind them.
    let mut sorted: Vec<_> = inventory.devices.values().collect();
    sorted.sort_by_key(|device| device.path.components().count());
    for real in sorted {
        let mut device = Device::new(real.address, real.vendor, real.device, real.class);
        device.pcie_root = real.pcie_root.clone();
        device.parent = real.upstream;
        device.iommu_group = real.iommu_group;
        device.numa_node = real.numa_node;
        device.driver = Some(real.driver.clone().unwrap_or_default());
        device.sriov = real.sriov.as_ref().map(|sriov| Sriov {
            total_vfs: sriov.total_vfs,
            num_vfs: sriov.num_vfs,
            vf_device: 0x10ca,
            offset: 0x80,
            stride: 2,
        });
        devices.push(device);
    }
    let kinds = inventory.mdev_parents.get("mtty").context("no mtty")?.mdev_types.iter().zip([1, 2]);
    let kinds = kinds.map(|(known, cost)| MdevType {
        id: known.id.clone(),
        name: known.name.clone(),
        description: known.description.clone(),
        device_api: known.device_api.clone(),
        cost: Some(cost),
    });
    let mtty = MdevTypes { capacity: 24, homogeneous: false, types: kinds.collect() };
    Ok(Description {
        vfio: Vfio { loaded: true, cdev: true, iommufd: true },
        drivers: vec![
            driver("e1000", "8086:100e", false),
            driver("e1000e", "8086:10d3", false),
            driver("igb", "8086:10c9", true),
            driver("igbvf", "8086:10ca", false),
            driver("virtio-pci", "1af4:*", false),
        ],
        devices,
        mdev_parents: vec![VirtualParent { name: "mtty".to_owned(), mdev: mtty }],
        ..Description::default()
    })
}

/// What a write changed: path to content. Files are below `/sys` and `/dev`.
type State = BTreeMap<String, String>;

struct Both<'a> {
    real: Roots,
    simulated: Roots,
    netlink: UeventSocket,
    channel: Receiver<Uevent>,
    simulation: &'a Simulation,
    /// What differs since an earlier step.
    known: BTreeSet<String>,
    is_first: bool,
}

impl Both<'_> {
    fn step(&mut self, file: &str, value: &str, differences: &mut Vec<String>) -> Result<()> {
        let what = format!("{value:?} to {file}");
        println!("{what}");
        let errno = |outcome: std::io::Result<()>| outcome.err().map(|error| error.raw_os_error().unwrap_or(-1));
        let real = errno(HostKernel.write(&self.real.sys.join(file), value.as_bytes()));
        let simulated = errno(self.simulation.write(&self.simulated.sys.join(file), value.as_bytes()));
        if real != simulated {
            differences.push(format!("{what}: the kernel's errno is {real:?}, the simulation's {simulated:?}"));
        }
        self.compare_state(&what, differences);
        let (real, simulated) = (self.real_events()?, self.simulated_events());
        if real != simulated {
            differences.push(format!("{what}: the kernel's events:\n  {real:?}\n  the simulation's:\n  {simulated:?}"));
        }
        Ok(())
    }

    /// Adds what differs in the state since this step.
    fn compare_state(&mut self, what: &str, differences: &mut Vec<String>) {
        let mut found = self.differing();
        // The kernel removes a group's node when the last reference is dropped, shortly after the write has returned.
        for _ in 0..10 {
            if found.iter().all(|difference| self.known.contains(difference)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            found = self.differing();
        }
        let new = found.iter().filter(|difference| !self.known.contains(*difference));
        differences.extend(new.map(|difference| format!("{what}: {difference}")));
        self.known = found;
        self.is_first = false;
    }

    fn differing(&self) -> BTreeSet<String> {
        let with_fixed = self.is_first;
        let (real, simulated) = (state(&self.real, with_fixed), state(&self.simulated, with_fixed));
        let paths: BTreeSet<_> = real.keys().chain(simulated.keys()).collect();
        let differing = paths.into_iter().filter(|path| real.get(*path) != simulated.get(*path));
        differing
            .map(|path| {
                format!("{path}: the kernel has {:?}, the simulation {:?}", real.get(path), simulated.get(path))
            })
            .collect()
    }

    fn real_events(&self) -> Result<Vec<String>> {
        let mut events = Vec::new();
        // Events are sent before the write returns, so those of this step are there.
        for event in self.netlink.receive_all(10_000)? {
            events.extend(shown(&event));
        }
        Ok(events)
    }

    fn simulated_events(&self) -> Vec<String> {
        self.channel.try_iter().filter_map(|event| shown(&event)).collect()
    }
}

fn shown(event: &Uevent) -> Option<String> {
    let Uevent::Device(DeviceEvent { action, path, subsystem, .. }) = event else { return Some("lost".to_owned()) };
    let name = path.file_name()?.to_string_lossy();
    SUBSYSTEMS.contains(&subsystem.as_str()).then(|| format!("{action:?} {subsystem} {name}"))
}

/// What a driver of devices reads, of all devices that are there. What no write changes is left out unless wanted.
fn state(roots: &Roots, with_fixed: bool) -> State {
    let mut state = State::new();
    let devices = names(roots.sys.join("bus/pci/devices"));
    state.insert("PCI devices".to_owned(), devices.join(" "));
    for name in devices {
        let Ok(address) = name.parse::<PciAddress>() else { continue };
        let directory = roots.pci_device(&address);
        let mut read = |file: &str, content: Option<String>| {
            state.extend(content.map(|content| (format!("{name}/{file}"), content)));
        };
        for file in ["driver", "iommu_group", "physfn", "subsystem"] {
            read(file, link(&directory.join(file)));
        }
        let fixed: &[&str] = if with_fixed { &["vendor", "device", "class", "numa_node"] } else { &[] };
        for file in ["driver_override", "sriov_numvfs", "sriov_drivers_autoprobe"].iter().chain(fixed) {
            read(file, fs::read_to_string(directory.join(file)).ok());
        }
        for entry in names(&directory).iter().filter(|entry| entry.starts_with("virtfn")) {
            read(entry, link(&directory.join(entry)));
        }
        // The driver igb lowers the number that the hardware has, for as long as it is bound.
        if link(&directory.join("driver")).as_deref() == Some("igb") {
            let total = fs::read_to_string(directory.join("sriov_totalvfs")).unwrap_or_default();
            state.insert(format!("{name}/sriov_totalvfs"), total);
        }
        add_vfio(&mut state, &name, &directory);
        let target = fs::canonicalize(&directory).ok();
        let target =
            target.and_then(|target| Some(target.strip_prefix(fs::canonicalize(&roots.sys).ok()?).ok()?.to_owned()));
        state.extend(target.map(|target| (format!("{name} is at"), target.display().to_string())));
    }
    for driver in ["e1000", "e1000e", "igb", "igbvf", "vfio-pci"] {
        let bound: Vec<_> = names(roots.pci_driver(driver)).into_iter().filter(|name| name.contains(':')).collect();
        state.insert(format!("driver {driver}"), bound.join(" "));
    }
    for group in names(roots.sys.join("kernel/iommu_groups")) {
        let members = names(roots.sys.join("kernel/iommu_groups").join(&group).join("devices"));
        state.insert(format!("group {group}"), members.join(" "));
    }
    for uuid in names(roots.sys.join("bus/mdev/devices")) {
        let directory = roots.mdev(&uuid);
        for file in ["driver", "iommu_group", "mdev_type", "subsystem"] {
            state.extend(link(&directory.join(file)).map(|target| (format!("{uuid}/{file}"), target)));
        }
        add_vfio(&mut state, &uuid, &directory);
    }
    let types = roots.sys.join("class/mdev_bus/mtty/mdev_supported_types");
    for kind in names(&types) {
        for file in ["available_instances", "device_api", "name"] {
            let content = fs::read_to_string(types.join(&kind).join(file)).unwrap_or_default();
            state.insert(format!("{kind}/{file}"), content);
        }
        state.insert(format!("{kind}/devices"), names(types.join(&kind).join("devices")).join(" "));
    }
    for directory in ["vfio", "vfio/devices"] {
        state.insert(format!("/dev/{directory}"), names(roots.dev.join(directory)).join(" "));
    }
    state
}

fn add_vfio(state: &mut State, name: &str, directory: &Path) {
    for vfio in names(directory.join("vfio-dev")) {
        let has_node = directory.join("vfio-dev").join(&vfio).join("dev").exists();
        state.insert(format!("{name}/vfio-dev/{vfio}"), format!("node: {has_node}"));
    }
}

/// The last component of a link's target.
fn link(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}
