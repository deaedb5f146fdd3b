//! The conversion of a VMI's entries to host devices.

use std::collections::BTreeMap;

use super::{DeviceList, DeviceRef, HostDev, HostDevError, MdevModel, Origin, PciFields, Source, check_uuid, unique};
use crate::behaviour::Behaviour;
use crate::device_plugin::{self, Environment};
use crate::hook::annotation::{DeviceKind, annotated_devices};
use crate::placement;
use crate::resolve::{ResolvedDevice, ResolvedRequest, Resolver, no_address, no_pci_bus_id};
use crate::vmi::{ClaimRequest, Gpu, HostDevice, Interface, Network, VgpuDisplay, VirtualMachineInstance, VmiSpec};

/// What a conversion knows besides the VMI, the metadata files and the environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Options {
    /// The PCI addresses of the SR-IOV networks of Multus by the name of the network, from the pod's network status.
    pub network_status: BTreeMap<String, String>,
    /// Whether to create the devices of the hook's annotations too. [`Behaviour::Strict`] never does: KubeVirt does not
    /// read them.
    pub annotated: bool,
}

impl Options {
    /// Creates the devices of the hook's annotations too.
    pub fn with_annotated() -> Self {
        Self { annotated: true, ..Self::default() }
    }
}

/// What became of the entries of a VMI.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Conversion {
    /// The devices that could be created, in KubeVirt's order. Each has its entry in [`Origin::entry`].
    pub devices: Vec<HostDev>,
    /// What the claims' entries were resolved to, also where no device could be created.
    pub resolved: Vec<(DeviceRef, ResolvedRequest)>,
    /// The errors, in KubeVirt's order.
    pub errors: Vec<HostDevError>,
}

impl Conversion {
    /// Returns the devices of an entry.
    pub fn devices_of(&self, entry: &DeviceRef) -> Vec<HostDev> {
        self.devices.iter().filter(|device| device.origin.entry.as_ref() == Some(entry)).cloned().collect()
    }

    /// Returns what an entry was resolved to.
    pub fn resolved_of(&self, entry: &DeviceRef) -> Option<&ResolvedRequest> {
        self.resolved.iter().find(|(resolved, _)| resolved == entry).map(|(_, request)| request)
    }

    /// Returns the error of an entry.
    pub fn error_of(&self, entry: &DeviceRef) -> Option<&HostDevError> {
        self.errors.iter().find(|error| error.device() == Some(entry))
    }

    /// Returns all devices.
    ///
    /// # Errors
    /// The first error, if there is any.
    pub fn into_result(self) -> Result<Vec<HostDev>, HostDevError> {
        self.errors.into_iter().next().map_or(Ok(self.devices), Err)
    }

    fn add(&mut self, created: Result<Vec<HostDev>, HostDevError>) {
        match created {
            Ok(devices) => self.devices.extend(devices),
            Err(error) => self.errors.push(error),
        }
    }
}

/// Converts all entries of a VMI, whether or not there are errors.
pub fn convert(
    vmi: &VirtualMachineInstance,
    resolver: &Resolver,
    environment: &Environment,
    options: &Options,
) -> Conversion {
    let behaviour = resolver.behaviour();
    let spec = &vmi.spec;
    let devices = &spec.domain.devices;
    let mut all = Conversion::default();
    all.add(device_plugin::host_devices(devices.host_devices(), environment, behaviour));
    all.add_host_devices(spec, resolver);
    all.add(device_plugin::gpus(&devices.gpus, environment, behaviour));
    all.add_gpus(spec, resolver);
    all.add_multus_interfaces(spec, options, behaviour);
    all.add_interfaces(spec, resolver);
    if placement::is_root_complex_requested(vmi) {
        let is_placed_first = |interface: &&Interface| !interface.sriov && interface.pci_address.is_empty();
        let taken = devices.interfaces.iter().filter(is_placed_first).count();
        all.errors.extend(placement::on_root_complex(&mut all.devices, taken).err().map(HostDevError::from));
    }
    if behaviour == Behaviour::Extended {
        if options.annotated {
            all.add_annotated(vmi, resolver);
        }
        all.errors.extend(unique::check(&all.devices).err());
    }
    all
}

/// Creates the devices of the GPUs that come from claims.
///
/// # Errors
/// If any device cannot be created.
pub fn dra_gpus(spec: &VmiSpec, resolver: &Resolver) -> Result<Vec<HostDev>, HostDevError> {
    let mut all = Conversion::default();
    all.add_gpus(spec, resolver);
    all.into_result()
}

/// Creates the devices of the host devices that come from claims.
///
/// # Errors
/// If any device cannot be created.
pub fn dra_host_devices(spec: &VmiSpec, resolver: &Resolver) -> Result<Vec<HostDev>, HostDevError> {
    let mut all = Conversion::default();
    all.add_host_devices(spec, resolver);
    all.into_result()
}

/// Creates the devices of the SR-IOV interfaces whose network comes from a claim.
///
/// # Errors
/// If any device cannot be created.
pub fn dra_interfaces(spec: &VmiSpec, resolver: &Resolver) -> Result<Vec<HostDev>, HostDevError> {
    let mut all = Conversion::default();
    all.add_interfaces(spec, resolver);
    all.into_result()
}

/// An entry with a claim.
struct Entry<'a> {
    device: DeviceRef,
    request: Option<&'a ClaimRequest>,
    display: Option<&'a VgpuDisplay>,
}

impl Conversion {
    fn add_gpus(&mut self, spec: &VmiSpec, resolver: &Resolver) {
        let gpus = &spec.domain.devices.gpus;
        let first = self.devices.len();
        for (index, gpu) in gpus.iter().enumerate().filter(|(_, gpu)| Gpu::is_dra(gpu)) {
            let device = DeviceRef::new(DeviceList::Gpus, index, &gpu.name);
            let entry = Entry { device, request: gpu.claim_request.as_ref(), display: gpu.display() };
            self.add_entry(entry, "dra-gpu-", MdevModel::VfioPci, spec, resolver);
        }
        // Any display option of any GPU, even a disabled one, turns the default off.
        if gpus.iter().all(|gpu| gpu.display().is_none()) {
            self.set_default_display(first);
        }
    }

    fn add_host_devices(&mut self, spec: &VmiSpec, resolver: &Resolver) {
        let entries = spec.domain.devices.host_devices().iter().enumerate();
        for (index, entry) in entries.filter(|(_, device)| HostDevice::is_dra(device)) {
            let device = DeviceRef::new(DeviceList::HostDevices, index, &entry.name);
            let entry = Entry { device, request: entry.claim_request.as_ref(), display: None };
            self.add_entry(entry, "dra-hostdevice-", host_device_model(spec), spec, resolver);
        }
    }

    /// Adds the devices of the hook's annotations, in the hook's order.
    fn add_annotated(&mut self, vmi: &VirtualMachineInstance, resolver: &Resolver) {
        let annotated = match annotated_devices(&vmi.metadata.annotations) {
            Ok(annotated) => annotated,
            Err(error) => return self.errors.push(error.into()),
        };
        let spec = &vmi.spec;
        for (kind, list, prefix, model) in [
            (DeviceKind::HostDevice, DeviceList::AnnotatedHostDevices, "dra-hostdevice-", host_device_model(spec)),
            (DeviceKind::Gpu, DeviceList::AnnotatedGpus, "dra-gpu-", MdevModel::VfioPci),
        ] {
            let first = self.devices.len();
            for (index, named) in annotated.iter().enumerate().filter(|(_, named)| named.kind == kind) {
                let device = DeviceRef::new(list, index, &named.name);
                let entry = Entry { device, request: Some(&named.request), display: None };
                self.add_entry(entry, prefix, model, spec, resolver);
            }
            // KubeVirt decides which of its own GPUs has the display, and libvirt allows one.
            if kind == DeviceKind::Gpu && spec.domain.devices.gpus.is_empty() {
                self.set_default_display(first);
            }
        }
    }

    /// Gives the first mediated device from a position on the display.
    fn set_default_display(&mut self, first: usize) {
        if let Some(device) = self.devices.iter_mut().skip(first).find(|device| device.is_mdev()) {
            device.display = true;
            device.ramfb = true;
        }
    }

    /// Adds the devices of an entry. Several devices get aliases with their number.
    fn add_entry(&mut self, entry: Entry<'_>, prefix: &str, model: MdevModel, spec: &VmiSpec, resolver: &Resolver) {
        let Entry { device, request, display } = entry;
        let Some(request) =
            request.filter(|request| !request.claim_name.is_empty() && !request.request_name.is_empty())
        else {
            return self.errors.push(HostDevError::Incomplete { device });
        };
        let resolved = match resolver.resolve(&spec.resource_claims, request) {
            Ok(resolved) => resolved,
            Err(error) => return self.errors.push(HostDevError::Resolve { device, error: Box::new(error) }),
        };
        let has_several = resolved.devices.len() > 1;
        let mut created = Vec::with_capacity(resolved.devices.len());
        let mut failed = None;
        for (number, found) in resolved.devices.iter().enumerate() {
            let suffix = if has_several { format!("-{number}") } else { String::new() };
            let alias = format!("{prefix}{}{suffix}", device.name());
            match source(&device, request, found, model, resolver.behaviour()) {
                Ok(source) => {
                    created.push(HostDev { origin: origin(&device, found), ..HostDev::new(alias, source) });
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let Some(first) = created.iter_mut().find(|device| device.is_mdev()) {
            device_plugin::apply_display(first, display);
        }
        self.resolved.push((device, resolved));
        self.add(failed.map_or(Ok(created), Err));
    }

    fn add_interfaces(&mut self, spec: &VmiSpec, resolver: &Resolver) {
        for (index, interface) in sriov_interfaces(spec) {
            let network = network_of(spec, interface);
            let Some(request) = network.and_then(|network| network.resource_claim.as_ref()) else { continue };
            let entry = DeviceRef::new(DeviceList::Interfaces, index, &interface.name);
            match resolver.resolve(&spec.resource_claims, request) {
                Ok(resolved) => {
                    let created = interface_device(&entry, interface, request, &resolved, resolver.behaviour());
                    self.resolved.push((entry, resolved));
                    self.add(created.map(|device| vec![device]));
                }
                Err(error) => self.errors.push(HostDevError::Resolve { device: entry, error: Box::new(error) }),
            }
        }
    }

    fn add_multus_interfaces(&mut self, spec: &VmiSpec, options: &Options, behaviour: Behaviour) {
        for (index, interface) in sriov_interfaces(spec) {
            let is_multus = network_of(spec, interface).is_some_and(|network| network.multus.is_some());
            if !is_multus || options.network_status.is_empty() {
                continue;
            }
            let device = DeviceRef::new(DeviceList::Interfaces, index, &interface.name);
            match options.network_status.get(&interface.name) {
                Some(address) => self.add(sriov(&device, interface, address, behaviour).map(|device| vec![device])),
                None => self.errors.push(HostDevError::NoNetworkStatus { device }),
            }
        }
    }
}

fn host_device_model(spec: &VmiSpec) -> MdevModel {
    if spec.architecture == "s390x" { MdevModel::VfioAp } else { MdevModel::VfioPci }
}

/// Returns the source of a device that may be mediated.
fn source(
    entry: &DeviceRef,
    request: &ClaimRequest,
    found: &ResolvedDevice,
    model: MdevModel,
    behaviour: Behaviour,
) -> Result<Source, HostDevError> {
    // A mediated device may also have the PCI address of its parent.
    if let Some(uuid) = &found.mdev_uuid {
        check_uuid(entry, uuid, behaviour)?;
        return Ok(Source::Mdev { uuid: uuid.clone(), model });
    }
    let Some(address) = &found.pci_bus_id else {
        let error = Box::new(no_address(request, found));
        return Err(HostDevError::Resolve { device: entry.clone(), error });
    };
    let fields = PciFields::parse(address, behaviour);
    fields.map(Source::Pci).map_err(|error| HostDevError::Pci { device: entry.clone(), error })
}

/// Creates the device of an SR-IOV interface whose network comes from a claim.
fn interface_device(
    entry: &DeviceRef,
    interface: &Interface,
    request: &ClaimRequest,
    resolved: &ResolvedRequest,
    behaviour: Behaviour,
) -> Result<HostDev, HostDevError> {
    let [found] = &resolved.devices[..] else {
        return Err(HostDevError::SeveralForInterface { device: entry.clone(), count: resolved.devices.len() });
    };
    let Some(address) = &found.pci_bus_id else {
        let error = Box::new(no_pci_bus_id(request, found));
        return Err(HostDevError::Resolve { device: entry.clone(), error });
    };
    let device = sriov(entry, interface, address, behaviour)?;
    Ok(HostDev { origin: origin(entry, found), ..device })
}

/// Creates the device of an SR-IOV interface.
fn sriov(
    entry: &DeviceRef,
    interface: &Interface,
    address: &str,
    behaviour: Behaviour,
) -> Result<HostDev, HostDevError> {
    let fields =
        PciFields::parse(address, behaviour).map_err(|error| HostDevError::Pci { device: entry.clone(), error })?;
    let mut device = HostDev::new(format!("sriov-{}", interface.name), Source::Pci(fields));
    if !interface.pci_address.is_empty() {
        let guest = PciFields::parse(&interface.pci_address, behaviour);
        device.guest_address = Some(guest.map_err(|error| HostDevError::GuestPci { device: entry.clone(), error })?);
    }
    device.boot_order = interface.boot_order;
    device.origin.entry = Some(entry.clone());
    Ok(device)
}

fn sriov_interfaces(spec: &VmiSpec) -> impl Iterator<Item = (usize, &Interface)> {
    spec.domain.devices.interfaces.iter().enumerate().filter(|(_, interface)| interface.sriov)
}

/// Returns the network of an interface; the last of several with its name, as in KubeVirt.
fn network_of<'a>(spec: &'a VmiSpec, interface: &Interface) -> Option<&'a Network> {
    spec.networks.iter().rev().find(|network| network.name == interface.name)
}

fn origin(entry: &DeviceRef, device: &ResolvedDevice) -> Origin {
    Origin {
        entry: Some(entry.clone()),
        device: Some(device.id()),
        numa_node: device.numa_node,
        pcie_root: device.pcie_root.clone(),
    }
}
