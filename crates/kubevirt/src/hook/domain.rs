//! The change that the hook makes to a domain: a function of the VMI, the domain and the metadata files.
//!
//! In this order:
//!
//! 1. The devices that annotations name are added, or corrected where they are already there.
//! 2. Every host device without a `mode` gets `mode="subsystem"`, which KubeVirt's plugins require.
//! 3. If an annotation asks for it, PCI host devices without a guest address are placed on the guest's NUMA node that stands
//!    for their host's node, as the metadata has it.
//!
//! Everything else stays byte for byte. Applied to its own result the function changes nothing, also after libvirt has
//! given addresses to the devices.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::annotation::{AnnotatedDevice, AnnotationError, DeviceKind, NUMA_PLACEMENT, annotated_devices};
use crate::hostdev::{HostDev, HostDevError, Source, dra_gpus, dra_host_devices, dra_interfaces};
use crate::placement::numa::NumaOptions;
use crate::placement::{DomainPlacementError, HostTopology, place_in_domain};
use crate::resolve::Resolver;
use crate::vmi::{Gpu, HostDevice, VirtualMachineInstance, VmiSpec};
use crate::xml::edit::{self, EditError};

/// What the hook knows besides the VMI, the domain and the files.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HookOptions {
    /// The host's NUMA topology, for devices whose metadata does not have their node.
    pub host: HostTopology,
}

/// A domain that the hook cannot change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// An annotation of the VMI cannot be understood.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    /// An annotation names a claim that the VMI does not have.
    #[error("annotation {annotation}: claim {claim:?} is not in spec.resourceClaims of the VMI: add it there")]
    UnknownClaim {
        /// The annotation.
        annotation: &'static str,
        /// The claim.
        claim: String,
    },
    /// A device cannot be created from its metadata.
    #[error(
        "{source}; the hook reads the files in its own container, which the admission policy of the hook gives the claims \
         of the launcher"
    )]
    Device {
        /// The cause.
        source: HostDevError,
    },
    /// Another host device of the domain has the same device.
    #[error(
        "{ours} and {other} are the same device of the host: name each request once, in the VMI or in an annotation"
    )]
    SameDevice {
        /// The alias of the annotated device.
        ours: String,
        /// The alias of the other.
        other: String,
    },
    /// Two devices would have the same alias.
    #[error(
        "annotations {} and {}: the alias {alias:?} is that of another device of the VMI: choose another name",
        DeviceKind::Gpu.annotation(), DeviceKind::HostDevice.annotation()
    )]
    SameAlias {
        /// The alias.
        alias: String,
    },
    /// The domain is not a domain document.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The annotation for NUMA placement has another value.
    #[error("annotation {NUMA_PLACEMENT}: {value:?} is not a placement: use \"preferred\" or \"required\"")]
    UnknownPlacement {
        /// The value.
        value: String,
    },
    /// A device cannot be placed.
    #[error("annotation {NUMA_PLACEMENT}: {0}")]
    Placement(#[from] DomainPlacementError),
}

/// Changes the domain of a VMI. Returns it as it was if there is nothing to change.
pub fn mutate_domain<'a>(
    vmi: &VirtualMachineInstance,
    domain_xml: &'a str,
    resolver: &Resolver,
    options: &HookOptions,
) -> Result<Cow<'a, str>, HookError> {
    let annotated = annotated_host_devices(vmi, resolver)?;
    check_devices(domain_xml, &annotated)?;
    let mut domain = edit::put_hostdevs(domain_xml, &annotated)?;
    domain = edit::set_mode(&domain)?;
    if let Some(placement) = requested_placement(vmi)? {
        let numa = NumaOptions::new(placement == Placement::Required, resolver.behaviour());
        domain = place_devices(&domain, &numa_nodes(vmi, &annotated, resolver), options, numa)?;
    }
    Ok(if domain == domain_xml { Cow::Borrowed(domain_xml) } else { Cow::Owned(domain) })
}

/// Creates the host devices that annotations name, all devices of each request.
fn annotated_host_devices(vmi: &VirtualMachineInstance, resolver: &Resolver) -> Result<Vec<HostDev>, HookError> {
    let annotated = annotated_devices(&vmi.metadata.annotations)?;
    for device in &annotated {
        if !vmi.spec.resource_claims.iter().any(|claim| claim.name == device.request.claim_name) {
            let claim = device.request.claim_name.clone();
            return Err(HookError::UnknownClaim { annotation: device.kind.annotation(), claim });
        }
    }
    // The VMI as it would be if KubeVirt could resolve these requests.
    let mut spec = vmi.spec.clone();
    let named = |kind| annotated.iter().filter(move |device| device.kind == kind);
    let request = |device: &AnnotatedDevice| Some(device.request.clone());
    spec.domain.devices.gpus = named(DeviceKind::Gpu)
        .map(|device| Gpu { name: device.name.clone(), claim_request: request(device), ..Gpu::default() })
        .collect();
    let host_devices = named(DeviceKind::HostDevice).map(|device| HostDevice {
        name: device.name.clone(),
        claim_request: request(device),
        ..HostDevice::default()
    });
    spec.domain.devices.host_devices = Some(host_devices.collect());
    let failed = |source| HookError::Device { source };
    let mut devices = dra_host_devices(&spec, resolver).map_err(failed)?;
    let mut gpus = dra_gpus(&spec, resolver).map_err(failed)?;
    if !vmi.spec.domain.devices.gpus.is_empty() {
        // KubeVirt has decided which of its own GPUs has the display, and libvirt allows one.
        for gpu in &mut gpus {
            gpu.display = false;
            gpu.ramfb = false;
        }
    }
    devices.append(&mut gpus);
    check_aliases(&vmi.spec, &devices)?;
    Ok(devices)
}

/// Checks that no alias is there twice. Those of KubeVirt's own devices are known from their names.
fn check_aliases(spec: &VmiSpec, annotated: &[HostDev]) -> Result<(), HookError> {
    let gpus = spec.domain.devices.gpus.iter().map(|gpu| format!("dra-gpu-{}", gpu.name));
    let others = spec.domain.devices.host_devices().iter().map(|device| format!("dra-hostdevice-{}", device.name));
    let mut taken: BTreeSet<String> = gpus.chain(others).collect();
    match annotated.iter().find(|device| !taken.insert(device.alias.clone())) {
        Some(device) => Err(HookError::SameAlias { alias: device.alias.clone() }),
        None => Ok(()),
    }
}

/// Checks that no device of the host is there twice: among the annotated ones, and besides those of the domain.
fn check_devices(domain: &str, annotated: &[HostDev]) -> Result<(), HookError> {
    let ours: BTreeSet<&str> = annotated.iter().map(|device| device.alias.as_str()).collect();
    let mut aliases: BTreeMap<String, String> = edit::host_devices(domain)?
        .into_iter()
        .filter(|existing| !ours.contains(existing.device.alias.as_str()))
        .map(|existing| (identity(&existing.device), existing.device.user_alias()))
        .collect();
    for device in annotated {
        if let Some(other) = aliases.insert(identity(device), device.user_alias()) {
            return Err(HookError::SameDevice { ours: device.user_alias(), other });
        }
    }
    Ok(())
}

/// What a device is on the host, whatever its notation.
fn identity(device: &HostDev) -> String {
    match &device.source {
        Source::Pci(fields) => fields.to_lowercase().to_string(),
        Source::Mdev { uuid, .. } => uuid.replace('-', "").to_lowercase(),
        other => format!("{other:?}"),
    }
}

/// A placement that an annotation asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// A device that cannot be placed is left to libvirt.
    Preferred,
    /// A device that cannot be placed is an error.
    Required,
}

fn requested_placement(vmi: &VirtualMachineInstance) -> Result<Option<Placement>, HookError> {
    match vmi.metadata.annotations.get(NUMA_PLACEMENT).map(String::as_str) {
        None => Ok(None),
        Some("preferred") => Ok(Some(Placement::Preferred)),
        Some("required") => Ok(Some(Placement::Required)),
        Some(value) => Err(HookError::UnknownPlacement { value: value.to_owned() }),
    }
}

/// Places the PCI host devices of a domain.
fn place_devices(
    domain: &str,
    numa_nodes: &BTreeMap<String, u32>,
    options: &HookOptions,
    numa: NumaOptions,
) -> Result<String, HookError> {
    let (domain, warnings) = place_in_domain(domain, numa_nodes, &options.host, numa)?;
    #[cfg(feature = "hook")]
    for warning in &warnings {
        tracing::warn!(warning, "device not placed");
    }
    #[cfg(not(feature = "hook"))]
    drop(warnings);
    Ok(domain)
}

/// Returns the NUMA nodes of devices by their alias, as far as the metadata has them.
fn numa_nodes(vmi: &VirtualMachineInstance, annotated: &[HostDev], resolver: &Resolver) -> BTreeMap<String, u32> {
    // KubeVirt has resolved its own devices. Where the hook cannot, sysfs says where they are.
    let own = [dra_host_devices, dra_gpus, dra_interfaces]
        .into_iter()
        .flat_map(|create| create(&vmi.spec, resolver).unwrap_or_default());
    own.chain(annotated.iter().cloned()).filter_map(|device| Some((device.alias, device.origin.numa_node?))).collect()
}

#[cfg(test)]
mod tests;
