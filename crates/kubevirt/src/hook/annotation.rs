//! The annotations of a VMI that name devices for the hook.
//!
//! KubeVirt resolves every device of `spec.domain.devices` itself and fails on a request with several devices before a hook
//! runs. It neither reads nor refuses claims that no device refers to, so such a request is named in an annotation instead:
//! the VMI lists the claim in `spec.resourceClaims`, and the annotation says which request of it becomes which device.
//! KubeVirt copies the annotations of a VMI to its launcher pod, where [`launcher_pod`](super::launcher_pod) reads them too.
//!
//! The format is a list and not JSON, since an admission policy in CEL, which has no JSON parser, reads it as well.

use std::collections::{BTreeMap, BTreeSet};

use drakkar_metadata::name::syntax::is_dns_label;

use crate::vmi::ClaimRequest;

/// The annotation with GPUs: what `spec.domain.devices.gpus` is to KubeVirt.
pub const GPUS: &str = "drakkar.dev/gpus";
/// The annotation with other devices: what `spec.domain.devices.hostDevices` is to KubeVirt.
pub const HOST_DEVICES: &str = "drakkar.dev/host-devices";
/// The annotation that asks for PCI devices on the guest's NUMA nodes that stand for their host's: `preferred` or `required`.
pub const NUMA_PLACEMENT: &str = "drakkar.dev/numa-placement";

/// The kind of an annotated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// From the annotation [`GPUS`].
    Gpu,
    /// From the annotation [`HOST_DEVICES`].
    HostDevice,
}

impl DeviceKind {
    /// The annotation that lists devices of this kind.
    #[must_use]
    pub fn annotation(self) -> &'static str {
        match self {
            Self::Gpu => GPUS,
            Self::HostDevice => HOST_DEVICES,
        }
    }
}

/// A device that an annotation names: all devices of one request of one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotatedDevice {
    /// The annotation that it is from.
    pub kind: DeviceKind,
    /// Its name, which becomes part of the libvirt alias.
    pub name: String,
    /// The claim of the VMI and the request of the claim.
    pub request: ClaimRequest,
}

/// An annotation that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// An entry does not have the form of an entry.
    #[error("annotation {annotation}: entry {entry:?}: must be NAME=CLAIM/REQUEST, for example gpus=train/gpus")]
    Form {
        /// The annotation.
        annotation: &'static str,
        /// The entry.
        entry: String,
    },
    /// The device name has other characters than libvirt allows in an alias.
    #[error(
        "annotation {annotation}: entry {entry:?}: the name may have letters, digits, '.', '_' and '-' only, \
         as it becomes part of a libvirt alias"
    )]
    Name {
        /// The annotation.
        annotation: &'static str,
        /// The entry.
        entry: String,
    },
    /// The claim or the request is not a DNS label.
    #[error("annotation {annotation}: entry {entry:?}: {part} must be a DNS label (lower case, digits, '-')")]
    Label {
        /// The annotation.
        annotation: &'static str,
        /// The entry.
        entry: String,
        /// `CLAIM` or `REQUEST`.
        part: &'static str,
    },
    /// Two entries of one annotation have the same name.
    #[error("annotation {annotation}: two entries have the name {name:?}: give each its own")]
    DuplicateName {
        /// The annotation.
        annotation: &'static str,
        /// The name.
        name: String,
    },
    /// Two entries have the same request.
    #[error(
        "annotation {annotation}: entry {entry:?}: another entry has the same request: one entry takes all its devices"
    )]
    DuplicateRequest {
        /// The annotation of the later entry.
        annotation: &'static str,
        /// The later entry.
        entry: String,
    },
}

/// Reads both annotations: GPUs first, each in the order of its list. Without annotations the list is empty.
pub fn annotated_devices(annotations: &BTreeMap<String, String>) -> Result<Vec<AnnotatedDevice>, AnnotationError> {
    let mut devices: Vec<AnnotatedDevice> = vec![];
    let mut names = BTreeSet::new();
    for kind in [DeviceKind::Gpu, DeviceKind::HostDevice] {
        let annotation = kind.annotation();
        let list = annotations.get(annotation).map_or("", String::as_str);
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let device = parse(kind, entry)?;
            if !names.insert((kind, device.name.clone())) {
                return Err(AnnotationError::DuplicateName { annotation, name: device.name });
            }
            if devices.iter().any(|other| other.request == device.request) {
                return Err(AnnotationError::DuplicateRequest { annotation, entry: entry.to_owned() });
            }
            devices.push(device);
        }
    }
    Ok(devices)
}

fn parse(kind: DeviceKind, entry: &str) -> Result<AnnotatedDevice, AnnotationError> {
    let annotation = kind.annotation();
    let form = || AnnotationError::Form { annotation, entry: entry.to_owned() };
    let (name, request) = entry.split_once('=').ok_or_else(form)?;
    let (claim, request) = request.trim().split_once('/').ok_or_else(form)?;
    let name = name.trim();
    if name.is_empty() || request.contains('/') {
        return Err(form());
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) {
        return Err(AnnotationError::Name { annotation, entry: entry.to_owned() });
    }
    for (part, text) in [("CLAIM", claim), ("REQUEST", request)] {
        if !is_dns_label(text) {
            return Err(AnnotationError::Label { annotation, entry: entry.to_owned(), part });
        }
    }
    let request = ClaimRequest { claim_name: claim.to_owned(), request_name: request.to_owned() };
    Ok(AnnotatedDevice { kind, name: name.to_owned(), request })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(list: &[(&str, &str)]) -> Result<Vec<AnnotatedDevice>, AnnotationError> {
        annotated_devices(&list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    fn device(kind: DeviceKind, name: &str, claim: &str, request: &str) -> AnnotatedDevice {
        let request = ClaimRequest { claim_name: claim.into(), request_name: request.into() };
        AnnotatedDevice { kind, name: name.into(), request }
    }

    #[test]
    fn a_vmi_without_annotations_has_no_annotated_devices() {
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(read(&[(GPUS, " , "), (HOST_DEVICES, "")]), Ok(vec![]));
    }

    #[test]
    fn gpus_come_first_and_lists_keep_their_order() {
        let devices = read(&[(HOST_DEVICES, "nvme=disks/data"), (GPUS, "b=train/b, a = train/a ,")]).unwrap();
        assert_eq!(
            devices,
            [
                device(DeviceKind::Gpu, "b", "train", "b"),
                device(DeviceKind::Gpu, "a", "train", "a"),
                device(DeviceKind::HostDevice, "nvme", "disks", "data"),
            ]
        );
    }

    #[rstest]
    #[case("gpu", "must be NAME=CLAIM/REQUEST")]
    #[case("gpu=train", "must be NAME=CLAIM/REQUEST")]
    #[case("=train/gpu", "must be NAME=CLAIM/REQUEST")]
    #[case("gpu=train/gpu/sub", "must be NAME=CLAIM/REQUEST")]
    #[case("a b=train/gpu", "the name may have letters")]
    #[case("g=../gpu", "CLAIM must be a DNS label")]
    #[case("g=train/..", "REQUEST must be a DNS label")]
    #[case("g=train/", "REQUEST must be a DNS label")]
    #[case("g=a/b, g=a/c", "two entries have the name \"g\"")]
    #[case("g=a/b, h=a/b", "another entry has the same request")]
    fn an_entry_that_cannot_be_right_is_refused_by_name(#[case] list: &str, #[case] expected: &str) {
        let error = read(&[(GPUS, list)]).unwrap_err().to_string();
        assert!(error.contains(GPUS) && error.contains(expected), "{error}");
    }
}
