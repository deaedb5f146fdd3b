//! Devices of device plugins: environment variables with addresses, handed out to the entries of a VMI.
//!
//! A device plugin names the devices that it allocated in a variable per resource, for example
//! `PCI_RESOURCE_NVIDIA_COM_GP102GL_TESLA_P40=0000:65:00.0`. KubeVirt gives the addresses to the entries of a list in
//! order: first all entries that have a PCI variable, then those with one for mediated devices, then USB.

use std::collections::BTreeMap;

use crate::behaviour::Behaviour;
use crate::hostdev::{DeviceList, DeviceRef, HostDev, HostDevError, MdevModel, PciFields, Source};
use crate::vmi::{Gpu, HostDevice, VgpuDisplay};

/// The environment variables of the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Returns the variables of this process. Variables that are not Unicode are left out.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(text).collect()
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The kind of device that a variable lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    /// PCI addresses.
    Pci,
    /// UUIDs of mediated devices.
    Mdev,
    /// `bus:device` of USB devices.
    Usb,
}

impl ResourceKind {
    /// Returns the name of the variable for a resource.
    ///
    /// Only `/` and `.` are replaced: the name of a resource with a hyphen has a variable with a hyphen.
    ///
    /// ```
    /// use drakkar_kubevirt::device_plugin::ResourceKind;
    ///
    /// let name = ResourceKind::Mdev.variable("nvidia.com/GRID_P40-1Q");
    /// assert_eq!(name, "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_P40-1Q");
    /// ```
    pub fn variable(self, resource: &str) -> String {
        let prefix = match self {
            Self::Pci => "PCI_RESOURCE",
            Self::Mdev => "MDEV_PCI_RESOURCE",
            Self::Usb => "USB_RESOURCE",
        };
        format!("{prefix}_{}", resource.to_uppercase().replace(['/', '.'], "_"))
    }
}

/// The addresses of the resources of one kind, as the variables list them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressPool {
    addresses: BTreeMap<String, Vec<String>>,
}

/// A resource without an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The variable of the resource is not set.
    #[error("resource {0} does not exist: its environment variable is not set")]
    Unknown(
        /// The resource.
        String,
    ),
    /// All addresses of the resource are handed out, or its variable is empty.
    #[error("no more addresses to allocate for resource {0}")]
    Exhausted(
        /// The resource.
        String,
    ),
}

impl AddressPool {
    /// Reads the variables of some resources.
    pub fn load<'a>(
        kind: ResourceKind,
        resources: impl IntoIterator<Item = &'a str>,
        environment: &Environment,
    ) -> Self {
        let mut addresses = BTreeMap::new();
        for resource in resources {
            let Some(value) = environment.get(&kind.variable(resource)) else { continue };
            let value = value.strip_suffix(',').unwrap_or(value);
            let list = if value.is_empty() { Vec::new() } else { value.split(',').map(str::to_owned).collect() };
            addresses.insert(resource.to_owned(), list);
        }
        Self { addresses }
    }

    /// Takes the next address of a resource. No other resource that lists the same address gets it again.
    ///
    /// # Errors
    /// If the variable of the resource is not set, or has no more addresses.
    pub fn pop(&mut self, resource: &str) -> Result<String, PoolError> {
        let list = self.addresses.get(resource).ok_or_else(|| PoolError::Unknown(resource.to_owned()))?;
        let address = list.first().cloned().ok_or_else(|| PoolError::Exhausted(resource.to_owned()))?;
        for list in self.addresses.values_mut() {
            list.retain(|other| *other != address);
        }
        Ok(address)
    }

    /// Takes the next address of a resource, if there is one that is not empty.
    fn try_pop(&mut self, resource: &str) -> Option<String> {
        self.pop(resource).ok().filter(|address| !address.is_empty())
    }
}

/// Creates the devices of the GPUs that device plugins allocated.
///
/// # Errors
/// If an address is not valid, or the number of devices is not that of the entries.
pub fn gpus(gpus: &[Gpu], environment: &Environment, behaviour: Behaviour) -> Result<Vec<HostDev>, HostDevError> {
    let resources = || gpus.iter().map(|gpu| gpu.device_name.as_str());
    let mut devices = Vec::new();
    let mut pool = AddressPool::load(ResourceKind::Pci, resources(), environment);
    for (index, gpu) in gpus.iter().enumerate() {
        if let Some(address) = pool.try_pop(&gpu.device_name) {
            let mut device = pci("gpu-", DeviceRef::new(DeviceList::Gpus, index, &gpu.name), &address, behaviour)?;
            apply_pci_display(&mut device, gpu.display(), behaviour);
            devices.push(device);
        }
    }
    let first_mdev = devices.len();
    let mut pool = AddressPool::load(ResourceKind::Mdev, resources(), environment);
    for (index, gpu) in gpus.iter().enumerate() {
        if let Some(uuid) = pool.try_pop(&gpu.device_name) {
            let mut device = mdev("gpu-", DeviceRef::new(DeviceList::Gpus, index, &gpu.name), uuid, behaviour)?;
            apply_display(&mut device, gpu.display());
            devices.push(device);
        }
    }
    if gpus.iter().all(|gpu| gpu.display().is_none())
        && let Some(first) = devices.get_mut(first_mdev)
    {
        first.display = true;
        first.ramfb = true;
    }
    let entries = gpus.iter().filter(|gpu| !gpu.is_dra()).map(|gpu| gpu.device_name.as_str());
    check_count("gpus", entries, devices, environment)
}

/// Creates the devices of the host devices that device plugins allocated.
///
/// # Errors
/// If an address is not valid, or the number of devices is not that of the entries.
pub fn host_devices(
    host_devices: &[HostDevice],
    environment: &Environment,
    behaviour: Behaviour,
) -> Result<Vec<HostDev>, HostDevError> {
    let resources = || host_devices.iter().map(|device| device.device_name.as_str());
    let mut devices = Vec::new();
    for kind in [ResourceKind::Pci, ResourceKind::Mdev, ResourceKind::Usb] {
        let mut pool = AddressPool::load(kind, resources(), environment);
        for (index, entry) in host_devices.iter().enumerate() {
            let Some(address) = pool.try_pop(&entry.device_name) else { continue };
            let device = DeviceRef::new(DeviceList::HostDevices, index, &entry.name);
            devices.push(match kind {
                ResourceKind::Pci => pci("hostdevice-", device, &address, behaviour)?,
                ResourceKind::Mdev => mdev("hostdevice-", device, address, behaviour)?,
                ResourceKind::Usb => usb(device, &address)?,
            });
        }
    }
    let entries = host_devices.iter().filter(|device| !device.is_dra()).map(|device| device.device_name.as_str());
    check_count("hostDevices", entries, devices, environment)
}

fn pci(prefix: &str, device: DeviceRef, text: &str, behaviour: Behaviour) -> Result<HostDev, HostDevError> {
    match PciFields::parse(text, behaviour) {
        Ok(fields) => Ok(created(prefix, device, Source::Pci(fields))),
        Err(error) => Err(HostDevError::Pci { device, error }),
    }
}

fn mdev(prefix: &str, device: DeviceRef, uuid: String, behaviour: Behaviour) -> Result<HostDev, HostDevError> {
    crate::hostdev::check_uuid(&device, &uuid, behaviour)?;
    Ok(created(prefix, device, Source::Mdev { uuid, model: MdevModel::VfioPci }))
}

fn usb(device: DeviceRef, text: &str) -> Result<HostDev, HostDevError> {
    match text.split_once(':') {
        Some((bus, number)) if !number.contains(':') => {
            Ok(created("usb-host-", device, Source::Usb { bus: bus.to_owned(), device: number.to_owned() }))
        }
        _ => Err(HostDevError::Usb { device, text: text.to_owned() }),
    }
}

fn created(prefix: &str, entry: DeviceRef, source: Source) -> HostDev {
    let mut device = HostDev::new(format!("{prefix}{}", entry.name()), source);
    device.origin.entry = Some(entry);
    device
}

/// Sets the display of a mediated device: on unless it is disabled.
pub(crate) fn apply_display(device: &mut HostDev, display: Option<&VgpuDisplay>) {
    if let Some(display) = display {
        device.display = display.is_enabled();
        device.ramfb = display.is_ram_fb_enabled();
    }
}

/// Sets the display of a PCI device, which may be a vGPU or a whole GPU: only if it is enabled explicitly.
///
/// KubeVirt 1.9.0 then wants the frame buffer enabled explicitly as well; later versions do not.
fn apply_pci_display(device: &mut HostDev, display: Option<&VgpuDisplay>, behaviour: Behaviour) {
    let Some(display) = display.filter(|display| display.enabled == Some(true)) else { return };
    device.display = true;
    let ramfb = display.ram_fb.as_ref().and_then(|ramfb| ramfb.enabled);
    device.ramfb = ramfb.unwrap_or(!behaviour.is_strict());
}

/// Checks that each entry of a device plugin has one device.
fn check_count<'a>(
    list: &'static str,
    entries: impl Iterator<Item = &'a str>,
    devices: Vec<HostDev>,
    environment: &Environment,
) -> Result<Vec<HostDev>, HostDevError> {
    let resources: Vec<&str> = entries.collect();
    if resources.is_empty() || resources.len() == devices.len() {
        return Ok(devices);
    }
    let mut names: Vec<&str> = resources.clone();
    names.sort_unstable();
    names.dedup();
    let kinds = [ResourceKind::Pci, ResourceKind::Mdev, ResourceKind::Usb];
    let variables = names.iter().flat_map(|name| kinds.map(|kind| kind.variable(name)));
    let variables: Vec<String> =
        variables.filter_map(|name| Some(format!("{name}={}", environment.get(&name)?))).collect();
    Err(HostDevError::Count {
        list,
        entries: resources.len(),
        devices: devices.len(),
        resources: names.into_iter().map(str::to_owned).collect(),
        variables,
    })
}
