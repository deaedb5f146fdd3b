//! The machine as its tests see it: sysfs, and QEMU's view of the same devices over QMP.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drakkar_sysfs::{Inventory, PciAddress, PciDevice, Sysfs};
use drakkar_vm::guest::Host;
use serde_json::{Value, json};

/// How long a condition may take. The processor is emulated, on a host with other work.
const LIMIT: Duration = Duration::from_secs(120);

/// A PCI device as QEMU knows it.
#[derive(Debug)]
pub(crate) struct Hardware {
    /// The name on QEMU's command line, if it has one.
    pub(crate) id: String,
    /// The number of the root bus that it is below.
    pub(crate) root_bus: u64,
    pub(crate) vendor: u64,
    pub(crate) device: u64,
    /// Base class and subclass.
    pub(crate) class: u64,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) sysfs: Sysfs,
    pub(crate) host: Host,
}

impl Guest {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { sysfs: Sysfs::default(), host: Host::connect().context("open the line to the host")? })
    }

    /// Asks QEMU for its PCI devices.
    pub(crate) fn hardware(&mut self) -> Result<BTreeMap<PciAddress, Hardware>> {
        let buses = self.host.qmp("query-pci", &Value::Null)?;
        let mut found = BTreeMap::new();
        for bus in buses.as_array().context("query-pci: no list")? {
            add(&mut found, bus["bus"].as_u64().unwrap_or_default(), &bus["devices"])?;
        }
        Ok(found)
    }

    /// The address of a device by its name on QEMU's command line.
    pub(crate) fn address(&mut self, id: &str) -> Result<PciAddress> {
        let hardware = self.hardware()?;
        let found = hardware.iter().find(|(_, hardware)| hardware.id == id);
        Ok(*found.with_context(|| format!("QEMU has no device {id}"))?.0)
    }

    /// Unplugs a device, and waits until it is gone.
    pub(crate) fn unplug(&mut self, id: &str) -> Result<()> {
        let address = self.address(id)?;
        let path = self.sysfs.roots().pci_device(&address);
        self.host.qmp("device_del", &json!({ "id": id }))?;
        wait(&format!("{} to be gone", path.display()), || Ok(!path.exists()))
    }

    pub(crate) fn scan(&self) -> Result<Inventory> {
        Ok(Inventory::scan(&self.sysfs)?)
    }

    /// A device as it is now.
    pub(crate) fn device(&self, address: PciAddress) -> Result<PciDevice> {
        self.scan()?.devices.remove(&address).with_context(|| format!("the inventory has no {address}"))
    }
}

fn add(found: &mut BTreeMap<PciAddress, Hardware>, root_bus: u64, devices: &Value) -> Result<()> {
    for device in devices.as_array().into_iter().flatten() {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let (bus, slot) = (number(&device["bus"]), number(&device["slot"]));
        let address = format!("0000:{bus:02x}:{slot:02x}.{:x}", number(&device["function"]));
        let hardware = Hardware {
            id: device["qdev_id"].as_str().unwrap_or_default().to_owned(),
            root_bus,
            vendor: number(&device["id"]["vendor"]),
            device: number(&device["id"]["device"]),
            class: number(&device["class_info"]["class"]),
        };
        found.insert(address.parse()?, hardware);
        add(found, root_bus, &device["pci_bridge"]["devices"])?;
    }
    Ok(())
}

/// Loads a module with those that it needs.
pub(crate) fn modprobe(module: &str) -> Result<()> {
    run(Command::new("modprobe").arg(module)).map(drop)
}

/// Runs a command and returns what it printed; fails if the command does.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?}: {}: {printed}", output.status);
    Ok(printed)
}

/// Waits until a condition holds.
pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !condition()? {
        if Instant::now() > deadline {
            bail!("waited {} s for {what}", LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The names in a directory, sorted; none if it does not exist.
pub(crate) fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Checks that two values are equal, and shows both if not.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr $(,)?) => {
        $crate::ensure_eq!($left, $right, "{}", stringify!($left))
    };
    ($left:expr, $right:expr, $($context:tt)+) => {
        // A match keeps what the expressions borrow from alive.
        match (&$left, &$right) {
            (left, right) => {
                let what = format!($($context)+);
                anyhow::ensure!(left == right, "{}:{}: {what}: {left:?} != {right:?}", file!(), line!());
            }
        }
    };
}
