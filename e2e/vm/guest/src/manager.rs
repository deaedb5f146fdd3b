//! The PCI driver's device manager on the real kernel: a claim with all kinds of devices is prepared and taken back, and a process
//! that dies before any of its writes to the kernel leaves nothing that the next one does not put in order.

use std::collections::BTreeMap;
use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use drakkar_pci::{DeviceManager, DeviceRequest, ManagerSettings, Target};
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{HostKernel, Kernel, MdevParentName, Roots, Sysfs};

use crate::ensure_eq;
use crate::guest::{Guest, modprobe, names, wait};

/// More than a claim takes: a test that never reaches the end is wrong.
const MANY_WRITES: u32 = 100;

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    load_modules()?;
    let requests = requests(guest)?;
    let before = state(guest)?;
    let manager = manager(guest.sysfs.clone())?;
    manager.recover(|_| true)?;
    let prepared = manager.prepare(&claim()?, &requests)?;
    for device in &prepared {
        println!("{}: {:?} {:?}", device.target, device.driver, device.nodes);
        ensure!(!device.nodes.is_empty() && device.nodes.iter().all(|node| node.exists()), "{device:?}");
        ensure!(device.cdi_id.is_some());
    }
    ensure_eq!(names("/run/cdi").len(), 1);
    // Again: the same answer.
    ensure_eq!(manager.prepare(&claim()?, &requests)?, prepared);
    // A new process finds it.
    let next = self::manager(guest.sysfs.clone())?;
    ensure_eq!(next.recover(|_| true)?.prepared.len(), 1);
    ensure_eq!(next.prepare(&claim()?, &requests)?, prepared);
    next.unprepare(&claim()?.uid)?;
    ensure_eq!(names("/run/cdi").len(), 0);
    settle(guest, &before)?;

    // A device of the claim is unplugged before it is prepared: nothing of the others stays changed.
    guest.unplug("nic0")?;
    let before = state(guest)?;
    let error = next.prepare(&claim()?, &requests).err().context("nic0 is gone")?;
    println!("without nic0: {error}");
    ensure!(error.is_gone(), "{error:?}");
    settle(guest, &before)
}

pub(crate) fn kills(guest: &mut Guest) -> Result<()> {
    load_modules()?;
    let requests = requests(guest)?;
    let before = state(guest)?;
    for call in ["prepare", "unprepare"] {
        let mut rounds = 0;
        for write in 1..=MANY_WRITES {
            if call == "unprepare" {
                let manager = manager(guest.sysfs.clone())?;
                manager.recover(|_| true)?;
                manager.prepare(&claim()?, &requests)?;
            }
            let mut child = Command::new(env::current_exe()?);
            let status = child.args(["die", call, &write.to_string()]).status()?;
            ensure!(status.success() || status.signal() == Some(6), "{call}: {status}");
            let next = manager(guest.sysfs.clone())?;
            let recovery = next.recover(|_| true)?;
            ensure!(recovery.problems.is_empty(), "{call}, write {write}: {:?}", recovery.problems);
            match (call, status.success()) {
                ("prepare", true) => ensure_eq!(recovery.prepared.len(), 1),
                // Nothing is prepared that was not finished, and nothing is left of it.
                _ => ensure_eq!(recovery.prepared.len(), 0, "{call}, write {write}"),
            }
            next.unprepare(&claim()?.uid)?;
            settle(guest, &before).with_context(|| format!("{call}, killed before write {write}"))?;
            rounds = write;
            if status.success() {
                break;
            }
        }
        println!("{call}: killed before each of its {} writes", rounds - 1);
        ensure!(rounds > 8 && rounds < MANY_WRITES, "{call} ended after {rounds} rounds");
    }
    Ok(())
}

/// The process that is killed: `die CALL NUMBER`.
pub(crate) fn die(guest: &mut Guest, call: &str, number: &str) -> Result<()> {
    let kernel = Dying { number: number.parse()?, writes: AtomicU32::new(0) };
    let manager = manager(Sysfs::with_kernel(Roots::default(), Arc::new(kernel)))?;
    match call {
        "prepare" => {
            manager.recover(|_| true)?;
            manager.prepare(&claim()?, &requests(guest)?)?;
        }
        "unprepare" => {
            manager.recover(|_| true)?;
            manager.unprepare(&claim()?.uid)?;
        }
        other => bail!("unknown call {other}"),
    }
    Ok(())
}

/// The kernel of this machine for a process that is killed before one of its writes.
#[derive(Debug)]
struct Dying {
    number: u32,
    writes: AtomicU32,
}

impl Kernel for Dying {
    fn write(&self, path: &Path, value: &[u8]) -> std::io::Result<()> {
        if self.writes.fetch_add(1, Ordering::SeqCst) + 1 == self.number {
            std::process::abort();
        }
        HostKernel.write(path, value)
    }
}

fn load_modules() -> Result<()> {
    ["vfio-pci", "vfio_iommu_type1", "iommufd", "igbvf", "mtty"].into_iter().try_for_each(modprobe)
}

fn manager(sysfs: Sysfs) -> Result<DeviceManager> {
    let settings = ManagerSettings {
        driver: "pci.drakkar.dev".parse()?,
        state_directory: "/run/state".into(),
        cdi_directory: "/run/cdi".into(),
        host_dev: "/dev".into(),
    };
    Ok(DeviceManager::open(sysfs, &settings)?)
}

fn claim() -> Result<ClaimRef> {
    Ok(ClaimRef {
        namespace: "default".parse()?,
        name: "devices".parse()?,
        uid: "0f0f0f0f-0000-4000-8000-000000000001".parse()?,
    })
}

/// A device alone in its group, one with a companion, a virtual function that has to be made, and a mediated device.
fn requests(guest: &mut Guest) -> Result<Vec<DeviceRequest>> {
    let mut together = DeviceRequest::new(Target::Function(guest.address("old1")?));
    together.companions = vec![guest.address("old0")?];
    let mut function = DeviceRequest::new(Target::VirtualFunction { physical: guest.address("sriov")?, index: 1 });
    function.virtual_functions = 2;
    let parent = MdevParentName::Other("mtty".to_owned());
    let mediated = Target::NewMdev { parent, type_id: "mtty-2".to_owned(), slot: 0 };
    // By its first address: a test unplugs it.
    let alone = DeviceRequest::new(Target::Function("0000:01:00.0".parse()?));
    Ok(vec![alone, together, function, DeviceRequest::new(mediated)])
}

/// What a claim can change.
fn state(guest: &Guest) -> Result<BTreeMap<String, String>> {
    let inventory = guest.scan()?;
    let mut state = BTreeMap::new();
    for (address, device) in &inventory.devices {
        let functions = device.sriov.as_ref().map_or(0, |sriov| sriov.num_vfs);
        let binding = (&device.driver, &device.driver_override, device.iommu_group, functions);
        state.insert(address.to_string(), format!("{binding:?}"));
    }
    for (id, group) in &inventory.groups {
        state.insert(format!("group {id}"), format!("{:?}", group.devices));
    }
    state.insert("mediated devices".to_owned(), format!("{:?}", inventory.mdevs.keys()));
    for directory in ["/dev/vfio", "/dev/vfio/devices", "/run/state", "/run/cdi"] {
        let entries: Vec<_> = names(directory).into_iter().filter(|name| name != "devices").collect();
        state.insert(directory.to_owned(), entries.join(" "));
    }
    Ok(state)
}

/// Waits until the state is as it was: nodes go shortly after the write that removes their device.
fn settle(guest: &Guest, before: &BTreeMap<String, String>) -> Result<()> {
    let same = wait("the state before", || Ok(state(guest)? == *before));
    same.with_context(|| {
        let now = state(guest).unwrap_or_default();
        let differs = |key: &&String| now.get(*key) != before.get(*key);
        let keys = now.keys().chain(before.keys()).filter(differs);
        keys.map(|key| format!("{key}: {:?}, before {:?}", now.get(key), before.get(key)))
            .collect::<Vec<_>>()
            .join("\n")
    })
}
