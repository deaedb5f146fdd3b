//! Checking a driver's metadata files: whether KubeVirt can make a virtual machine's device from them.
//!
//! A file can be valid for Kubernetes and useless for KubeVirt, which fails only when the virtual machine starts. This says so
//! before, for the files of any driver, and names the remedy. What is checked is what KubeVirt 1.9 demands.

use std::path::Path;

use drakkar_metadata::path::ContainerFile;
use drakkar_metadata::well_known::{MDEV_UUID, NUMA_NODE, PCI_BUS_ID, PCIE_ROOT};
use drakkar_metadata::{DecodeError, Decoded, Decoder, Device, DeviceAttribute, Format, Metadata, PciAddress, Version};

use crate::behaviour::Behaviour;
use crate::hostdev::is_libvirt_uuid;
use crate::resolve::{StreamError, stream};

/// The attribute from which KubeVirt takes a PCI address.
const PCI: &str = PCI_BUS_ID[0];
/// The attribute from which KubeVirt takes the UUID of a mediated device.
const MDEV: &str = MDEV_UUID[0];

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// Works, but not as a user may expect.
    Warning,
    /// A virtual machine with this device does not start.
    Error,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One result of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub message: String,
    /// What the driver's author or the operator can do.
    pub remedy: &'static str,
}

/// What KubeVirt makes of a file, and what stands in the way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The device: `pci 0000:65:00.0` or `mdev UUID`. `None` if KubeVirt cannot tell.
    pub device: Option<String>,
    /// The findings, in the order of the file.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns whether KubeVirt can use the file.
    pub fn is_usable(&self) -> bool {
        self.device.is_some() && self.findings.iter().all(|finding| finding.severity < Severity::Error)
    }

    fn add(&mut self, severity: Severity, message: impl Into<String>, remedy: &'static str) {
        self.findings.push(Finding { severity, message: message.into(), remedy });
    }

    fn error(&mut self, message: impl Into<String>, remedy: &'static str) {
        self.add(Severity::Error, message, remedy);
    }
}

/// Checks the content of a metadata file. `path` is its path in a container, if known.
///
/// ```
/// # use drakkar_kubevirt::check::check;
/// let file = br#"{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1",
///     "metadata": {"name": "c"}, "requests": [{"name": "gpu", "devices": [{"driver": "gpu.example.com",
///     "pool": "n", "name": "gpu-0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}}}]}]}"#;
/// let report = check(None, file);
/// assert!(report.is_usable());
/// assert_eq!(report.device.as_deref(), Some("pci 0000:65:00.0"));
/// ```
pub fn check(path: Option<&Path>, bytes: &[u8]) -> Report {
    let mut report = Report::default();
    if bytes.starts_with(b"\xef\xbb\xbf") {
        report.error("the file starts with a byte order mark", "write plain UTF-8 without one");
        return report;
    }
    let Some(metadata) = readable_document(bytes, &mut report) else { return report };
    let file = path.and_then(|path| ContainerFile::parse(path).ok());
    if let Some(file) = &file {
        check_location(file, &metadata, &mut report);
    }
    if let Some(device) = only_device(&metadata, file.as_ref(), &mut report) {
        check_device(device, &mut report);
    }
    report
}

/// Returns the document that KubeVirt reads: the first of v1alpha1, by the rules of KubeVirt's own decoder.
fn readable_document(bytes: &[u8], report: &mut Report) -> Option<Metadata> {
    let error = match stream::decode(bytes, Behaviour::Strict) {
        Ok(metadata) => {
            warn_about_other_readers(bytes, &metadata, report);
            return Some(metadata);
        }
        Err(error) => error,
    };
    match error {
        StreamError::NoObjects => {
            report.error("the file has no document", "write the metadata before the claim counts as prepared");
        }
        StreamError::UnknownVersions(versions) => report.error(
            format!("the file has {} only, KubeVirt 1.9 reads v1alpha1 alone", versions.join(", ")),
            "write v1alpha1 too; with Drakkar --metadata-versions=v1beta1,v1alpha1",
        ),
        error => report.error(
            error.to_string(),
            "write valid documents only: KubeVirt fails on a broken one, even if a good one follows",
        ),
    }
    None
}

/// Adds what KubeVirt's decoder tolerates and others do not, such as a document without `kind`.
fn warn_about_other_readers(bytes: &[u8], kubevirts: &Metadata, report: &mut Report) {
    let mut is_first = true;
    for document in Decoder::new().decode_documents(bytes) {
        match document {
            Ok(Decoded { metadata, format: Format::Released(Version::V1Alpha1), .. }) => {
                if std::mem::take(&mut is_first) && addresses(&metadata) != addresses(kubevirts) {
                    report.add(
                        Severity::Warning,
                        "other readers than KubeVirt find other devices in the file",
                        "write the names of members as the schema has them, and each of them once",
                    );
                }
            }
            Ok(_) | Err(DecodeError::UnknownVersions(_)) => {}
            Err(error) => report.add(
                Severity::Warning,
                format!("KubeVirt reads the file, other readers do not: {error}"),
                "write what Kubernetes' schema of the metadata allows, in every document",
            ),
        }
    }
}

/// The devices of a document, as far as KubeVirt uses them.
fn addresses(metadata: &Metadata) -> Vec<(&str, Vec<[Option<&str>; 2]>)> {
    let mut all = Vec::new();
    for request in &metadata.requests {
        let devices = request.devices.iter().map(|device| {
            [MDEV, PCI].map(|name| device.attributes.get(name).and_then(DeviceAttribute::as_non_empty_str))
        });
        all.push((&*request.name, devices.collect()));
    }
    all
}

/// Checks that KubeVirt looks where the file lies, and that the file belongs there.
fn check_location(file: &ContainerFile, metadata: &Metadata, report: &mut Report) {
    match file {
        ContainerFile::Claim { .. } | ContainerFile::Template { .. } => {}
        _ => report.add(
            Severity::Warning,
            "KubeVirt from 1.8.3 on does not look in this directory",
            "mount the file below /var/run/kubernetes.io/dra-device-attributes too; with Drakkar --metadata-layout=kep,kubernetes",
        ),
    }
    let driver = file.driver().as_str();
    let others = metadata.requests.iter().flat_map(|request| &request.devices).find(|device| device.driver != driver);
    if let Some(device) = others {
        report.add(
            Severity::Warning,
            format!("the file's name says driver {driver}, its device says {:?}", device.driver),
            "name the file after the driver of its devices",
        );
    }
}

/// Returns the one device of the one request. KubeVirt accepts no other number.
fn only_device<'a>(metadata: &'a Metadata, file: Option<&ContainerFile>, report: &mut Report) -> Option<&'a Device> {
    let expected = file.and_then(ContainerFile::request);
    let request = match &metadata.requests[..] {
        [] => {
            report.error("the file has no request", "write the request's devices at prepare");
            return None;
        }
        [request] => request,
        [first, rest @ ..] => {
            report.add(
                Severity::Warning,
                format!("the file has {} requests", rest.len() + 1),
                "write one file per request, so that a container sees its own requests only",
            );
            let named = |name: &str| metadata.requests.iter().find(|request| request.name == name);
            expected.and_then(|name| named(name.as_str())).unwrap_or(first)
        }
    };
    if request.name.contains('/') {
        report.error(
            format!(
                "the request is called {:?}: KubeVirt 1.9 does not find subrequests (firstAvailable)",
                request.name
            ),
            "ask for exactly one kind of device, or use the Drakkar hook",
        );
    } else if let Some(expected) = expected.filter(|name| name.as_str() != request.name) {
        report.error(
            format!("the file lies in the directory of request {expected}, its content is about {:?}", request.name),
            "write each request's file into the request's directory",
        );
    }
    match &request.devices[..] {
        [device] => Some(device),
        [] => {
            report.error(
                format!("request {:?} has no device", request.name),
                "write the devices at prepare: KubeVirt reads the file once and does not wait",
            );
            None
        }
        devices => {
            report.error(
                format!("request {:?} has {} devices: KubeVirt 1.9 takes exactly one", request.name, devices.len()),
                "ask for each device with a request of its own, or use the Drakkar hook",
            );
            None
        }
    }
}

/// Checks the attributes from which KubeVirt makes a `<hostdev>`.
fn check_device(device: &Device, report: &mut Report) {
    let mdev = text(device, MDEV, report);
    let pci = text(device, PCI, report);
    if let Some(uuid) = mdev {
        if !is_libvirt_uuid(uuid) {
            report.error(
                format!("{MDEV} is {uuid:?}, which is not a UUID"),
                "libvirt refuses it: write 8-4-4-4-12 hex digits",
            );
        }
        if pci.is_some() {
            report.add(Severity::Note, format!("the device has {MDEV} and {PCI}"), "KubeVirt uses the mediated device");
        }
        report.device = Some(format!("mdev {uuid}"));
    } else if let Some(address) = pci {
        match address.parse::<PciAddress>() {
            Ok(parsed) if parsed.device() <= 0x1f => {}
            Ok(_) => report.error(format!("{PCI} is {address:?}: a slot is at most 1f"), "libvirt refuses the address"),
            Err(error) => {
                report.error(format!("{PCI}: {error}"), "write domain:bus:slot.function, such as 0000:65:00.0");
            }
        }
        report.device = Some(format!("pci {address}"));
    } else {
        let found: Vec<&str> =
            device.attributes.keys().filter(|name| is_misspelling(name)).map(String::as_str).collect();
        if found.is_empty() {
            report.error(
                format!("device {:?} has neither {PCI} nor {MDEV}", device.name),
                "publish one of them as a string attribute in the metadata",
            );
        } else {
            report.error(
                format!("device {:?} has {}, which KubeVirt does not read", device.name, found.join(", ")),
                "use the names resource.kubernetes.io/pciBusID and mdevUUID, exactly",
            );
        }
    }
    for name in [NUMA_NODE, PCIE_ROOT] {
        if !device.attributes.contains_key(name) {
            report.add(
                Severity::Note,
                format!("the device has no {name}"),
                "add it where it is known: the Drakkar hook places the device in the guest's topology by it",
            );
        }
    }
}

/// Returns an attribute's text. A value of another type is a finding, because KubeVirt ignores it.
fn text<'a>(device: &'a Device, name: &str, report: &mut Report) -> Option<&'a str> {
    let attribute: &DeviceAttribute = device.attributes.get(name)?;
    let text = attribute.as_non_empty_str();
    if text.is_none() {
        report.add(
            Severity::Warning,
            format!("{name} is {attribute}, KubeVirt reads a string that is not empty"),
            "write it as a string",
        );
    }
    text
}

/// Returns whether an attribute looks like one that KubeVirt reads, under another name.
fn is_misspelling(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let address =
        ["pcibusid", "pciaddress", "pci_bus_id", "pci_address", "busid", "bdf", "mdevuuid", "mdev_uuid", "mdev"];
    address.contains(&last.as_str())
}

#[cfg(test)]
mod tests;
