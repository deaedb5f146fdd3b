//! What KubeVirt admits and what then fails, or does nothing, when the pod or the domain is made.

use std::collections::HashSet;
use std::fmt;

use crate::gates::Gate;
use crate::hook::annotated_devices;
use crate::vmi::{ClaimRequest, Workload};

use super::name::label_problems;

/// Something that is admitted and will not do what the user expects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// No device uses the claim; the pod gets it all the same, and its devices are allocated.
    UnusedClaim {
        /// The entry of `resourceClaims`.
        field: String,
        /// The name of the claim.
        claim: String,
    },
    /// The request's name is not a DNS label: the API server refuses the pod.
    RequestName {
        /// The `requestName`.
        field: String,
        /// The name.
        name: String,
    },
    /// Another device of the list has the name: libvirt refuses the domain, because aliases are unique.
    RepeatedDeviceName {
        /// The `name` of the device.
        field: String,
        /// The name.
        name: String,
    },
    /// The name is unfit for libvirt's alias, which is dropped.
    DeviceName {
        /// The `name` of the device.
        field: String,
        /// The name.
        name: String,
    },
    /// The tag has no effect on a DRA device.
    Tag {
        /// The `tag` of the device.
        field: String,
    },
    /// An annotation for the [hook](crate::hook) cannot be understood: the launcher pod is refused.
    Annotation {
        /// The annotations.
        field: String,
        /// Which one, and why.
        reason: String,
    },
    /// KubeVirt refuses the object unless a feature gate is on, and it is not known whether it is.
    FeatureGate {
        /// The field that needs the gate.
        field: String,
        /// The gate.
        gate: Gate,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnusedClaim { field, claim } => {
                write!(f, "{field}: no device uses claim {claim:?}, but it is allocated to the pod all the same")
            }
            Self::RequestName { field, name } => {
                write!(f, "{field}: {name:?} is not a DNS label, so the launcher pod will be refused")
            }
            Self::RepeatedDeviceName { field, name } => {
                write!(
                    f,
                    "{field}: {name:?} is repeated, so libvirt will refuse the domain: give each device its own name"
                )
            }
            Self::DeviceName { field, name } => {
                write!(f, "{field}: {name:?} cannot be a libvirt alias: use letters, digits and -_. only")
            }
            Self::Tag { field } => write!(f, "{field}: has no effect on a device of a claim"),
            Self::Annotation { field, reason } => write!(f, "{field}: {reason}"),
            Self::FeatureGate { field, gate } => {
                write!(f, "{field}: needs KubeVirt's feature gate {gate}, which is off unless your cluster turns it on")
            }
        }
    }
}

/// What will fail or do nothing although it is admitted, in the order of the document's lists.
#[must_use]
pub fn warnings(workload: &Workload) -> Vec<Warning> {
    let prefix = workload.field_prefix();
    let spec = &workload.vmi().spec;
    let mut warnings = unused_claims(workload);
    let devices = &spec.domain.devices;
    let gpus = devices.gpus.iter().map(|gpu| Device {
        name: &gpu.name,
        is_dra: gpu.is_dra(),
        claim_request: gpu.claim_request.as_ref(),
        has_tag: !gpu.tag.is_empty(),
    });
    device_warnings(&format!("{prefix}.domain.devices.gpus"), gpus, &mut warnings);
    let host_devices = devices.host_devices().iter().map(|device| Device {
        name: &device.name,
        is_dra: device.is_dra(),
        claim_request: device.claim_request.as_ref(),
        has_tag: !device.tag.is_empty(),
    });
    device_warnings(&format!("{prefix}.domain.devices.hostDevices"), host_devices, &mut warnings);
    for (index, network) in spec.networks.iter().enumerate() {
        if let Some(request) = &network.resource_claim {
            request_name(&format!("{prefix}.networks[{index}].resourceClaim"), request, &mut warnings);
        }
    }
    warnings
}

/// The claims that no device uses: neither one of the document nor one that an annotation names for the hook.
fn unused_claims(workload: &Workload) -> Vec<Warning> {
    let prefix = workload.field_prefix();
    let spec = &workload.vmi().spec;
    let annotated = match annotated_devices(&workload.vmi().metadata.annotations) {
        Ok(annotated) => annotated,
        Err(error) => {
            let field = format!("{}metadata.annotations", prefix.trim_end_matches("spec"));
            return vec![Warning::Annotation { field, reason: error.to_string() }];
        }
    };
    // Devices of an instance type are not in the document.
    if workload.has_instancetype() {
        return Vec::new();
    }
    let devices = &spec.domain.devices;
    let requests = devices
        .gpus
        .iter()
        .map(|gpu| &gpu.claim_request)
        .chain(devices.host_devices().iter().map(|device| &device.claim_request))
        .chain(spec.networks.iter().map(|network| &network.resource_claim));
    let requests = requests.flatten().chain(annotated.iter().map(|device| &device.request));
    let used: HashSet<&str> = requests.map(|request| &*request.claim_name).collect();
    let claims = spec.resource_claims.iter().enumerate();
    claims
        .filter(|(_, claim)| !used.contains(&*claim.name))
        .map(|(index, claim)| Warning::UnusedClaim {
            field: format!("{prefix}.resourceClaims[{index}]"),
            claim: claim.name.clone(),
        })
        .collect()
}

struct Device<'a> {
    name: &'a str,
    is_dra: bool,
    claim_request: Option<&'a ClaimRequest>,
    has_tag: bool,
}

fn device_warnings<'a>(list: &str, devices: impl Iterator<Item = Device<'a>>, warnings: &mut Vec<Warning>) {
    // The alias of a DRA device has another prefix than that of a device plugin.
    let mut names = HashSet::new();
    for (index, device) in devices.enumerate() {
        let entry = format!("{list}[{index}]");
        let field = || format!("{entry}.name");
        if !names.insert((device.is_dra, device.name)) {
            warnings.push(Warning::RepeatedDeviceName { field: field(), name: device.name.to_owned() });
        } else if !is_alias(device.name) {
            warnings.push(Warning::DeviceName { field: field(), name: device.name.to_owned() });
        }
        if let Some(request) = device.claim_request.filter(|_| device.is_dra) {
            request_name(&entry, request, warnings);
            if device.has_tag {
                warnings.push(Warning::Tag { field: format!("{entry}.tag") });
            }
        }
    }
}

/// Whether a name can be a part of libvirt's alias.
fn is_alias(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn request_name(entry: &str, request: &ClaimRequest, warnings: &mut Vec<Warning>) {
    let name = &request.request_name;
    // An empty name is refused.
    if !name.is_empty() && !label_problems(name).is_empty() {
        warnings.push(Warning::RequestName { field: format!("{entry}.requestName"), name: name.clone() });
    }
}
