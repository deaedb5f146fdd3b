//! The remedies of errors, one for each kind.

use std::io::ErrorKind;

use drakkar_metadata::read::ReadError;

use crate::hostdev::{DeviceList, DeviceRef, HostDevError};
use crate::resolve::{ResolveError, Resolver, StreamError};
use crate::vmi::ClaimRequest;

/// Returns what an error is about, as the subject of a step.
pub(super) fn subject(error: &HostDevError) -> &'static str {
    let HostDevError::Resolve { error, .. } = error else {
        return if error.device().is_some() { "device" } else { "xml" };
    };
    match **error {
        ResolveError::UnknownClaim { .. } | ResolveError::Ambiguous { .. } => "claim",
        ResolveError::Name(_)
        | ResolveError::NoRequest { .. }
        | ResolveError::NoDevices { .. }
        | ResolveError::SeveralDevices { .. }
        | ResolveError::SeveralFiles { .. } => "request",
        ResolveError::NoAttribute(_) => "device",
        _ => "file",
    }
}

/// Returns the text of an error, without the entry, which the explanation is about.
pub(super) fn text(error: &HostDevError) -> String {
    match error {
        HostDevError::Resolve { error, .. } => resolve_text(error),
        error => {
            let text = error.to_string();
            let entry = error.device().map(|device| format!("{device}: ")).unwrap_or_default();
            text.strip_prefix(&entry).map(str::to_owned).unwrap_or(text)
        }
    }
}

/// Returns the text of an error in resolving, without the remedy.
pub(super) fn resolve_text(error: &ResolveError) -> String {
    match error {
        ResolveError::NoFile { pattern, nearby, .. } => format!("no file matches {}: {nearby}", pattern.display()),
        error => error.to_string(),
    }
}

/// Returns what to do about an error; `None` if its text says it.
pub(super) fn remedy(error: &HostDevError, resolver: &Resolver) -> Option<String> {
    let list = error.device().map_or(DeviceList::Gpus, DeviceRef::list);
    let remedy = match error {
        HostDevError::Resolve { error, .. } => return unresolved(error, list, resolver),
        HostDevError::Incomplete { .. } => "set both claimName and requestName",
        HostDevError::Pci { .. } => "the driver must publish the device's address in resource.kubernetes.io/pciBusID",
        HostDevError::GuestPci { .. } => "correct pciAddress of the interface",
        HostDevError::Usb { .. } => "the device plugin must set the variable to BUS:DEVICE",
        HostDevError::Count { .. } => "each entry needs one device: check the device plugin, and the VM's entries",
        HostDevError::NoNetworkStatus { .. } => "check the network's attachment definition, and the device plugin",
        HostDevError::DuplicateAddress { .. } | HostDevError::DuplicateUuid { .. } => {
            "name each request once; if you do, the driver has given one device twice"
        }
        HostDevError::DuplicateGuestAddress { .. } => "change pciAddress of one of them",
        HostDevError::Annotation(_) => "correct the annotation: docs/kubevirt-hook.md",
        _ => return None,
    };
    Some(remedy.to_owned())
}

/// Returns what to do about a request that cannot be resolved; `None` if its text says it.
pub(super) fn unresolved(error: &ResolveError, list: DeviceList, resolver: &Resolver) -> Option<String> {
    let field = list.annotation().unwrap_or("requestName");
    Some(match error {
        ResolveError::NoFile { .. } => missing_file(resolver).to_owned(),
        ResolveError::NoPodClaim { .. } => "the driver must write podClaimName, or use --layout released".to_owned(),
        ResolveError::Name(_) => format!("correct {field}: the name must be one that a request of a claim can have"),
        ResolveError::NoRequest { .. } => format!("correct {field}: it is the name of a request in the claim"),
        ResolveError::NoDevices { .. } => "the driver has prepared no device for it: see the driver's log".to_owned(),
        ResolveError::SeveralDevices { .. } => "use one request per device, with count 1".to_owned(),
        ResolveError::SeveralFiles { .. } => "use one request per driver: a device class of one driver".to_owned(),
        ResolveError::NoAttribute(missing) if list == DeviceList::Interfaces => {
            format!("an interface needs a PCI device: the driver must publish {}", missing.attribute)
        }
        ResolveError::NoAttribute(missing) => {
            format!("the driver must publish {}, under exactly that name", missing.attribute)
        }
        ResolveError::Stream { error: StreamError::NoObjects, .. } => {
            "the driver must write the file before the container starts".to_owned()
        }
        ResolveError::Stream { error: StreamError::UnknownVersions(_), .. } => {
            "let the driver write v1alpha1 too; with Drakkar --metadata-versions=v1beta1,v1alpha1".to_owned()
        }
        ResolveError::Stream { path, .. } | ResolveError::Document { path, .. } => {
            format!("drakkar kubevirt check {} says what is wrong with it", path.display())
        }
        ResolveError::Read(error) => unreadable(error)?.to_owned(),
        ResolveError::UnknownClaim { .. } | ResolveError::Ambiguous { .. } => return None,
    })
}

/// The remedy for a file that is there and cannot be read.
pub fn unreadable(error: &ReadError) -> Option<&'static str> {
    match error {
        ReadError::Io { error, .. } => match error.kind() {
            ErrorKind::NotFound => Some(
                "the file is a link to nothing, or was removed: the driver must write the file that it mounts; recreate \
                 the pod",
            ),
            ErrorKind::PermissionDenied => Some("run it as a user that can read the file"),
            _ => Some("the driver must write a regular file; recreate the pod"),
        },
        ReadError::NotAFile { .. } => Some("the driver must write a regular file"),
        _ => None,
    }
}

/// The remedy for a request without file: it depends on where this is.
fn missing_file(resolver: &Resolver) -> &'static str {
    let exists = |path: &str| resolver.root().join(path).exists();
    let is_launcher = ["usr/bin/virt-launcher", "var/run/kubevirt", "var/run/kubevirt-private", "var/run/libvirt"]
        .into_iter()
        .any(exists);
    if exists("var/run/kubernetes.io/dra-device-attributes") {
        "check that the driver writes metadata (--enable-device-metadata), that the launcher's container compute \
         references the request (a feature gate that is off removes it), and the names of claim and request"
    } else if is_launcher {
        "this container has no metadata at all: turn metadata on in the driver (Drakkar: --enable-device-metadata), and \
         check that the container compute references the claim (a feature gate that is off removes it); if this is the \
         node and not the launcher, use --root /proc/PID/root"
    } else {
        "this is not a launcher's container: run it there, or from its node with --root /proc/PID/root"
    }
}

/// Returns what to do where only released KubeVirt fails.
pub(super) fn for_released(
    error: &HostDevError,
    list: DeviceList,
    name: &str,
    request: &ClaimRequest,
    resolver: &Resolver,
) -> Option<String> {
    let HostDevError::Resolve { error, .. } = error else { return remedy(error, resolver) };
    let first = match &**error {
        ResolveError::SeveralDevices { .. } => "use one request per device",
        ResolveError::SeveralFiles { .. } => "use one request per driver",
        ResolveError::Stream { error: StreamError::UnknownVersions(_), .. } => "let the driver write v1alpha1 too",
        ResolveError::NoRequest { .. } => "use a request without alternatives (firstAvailable)",
        error => return unresolved(error, list, resolver),
    };
    Some(or_hook(first, list, name, request))
}

/// Adds the hook to a remedy, where the hook can help: it reads annotations, and knows no interfaces.
pub(super) fn or_hook(first: &str, list: DeviceList, name: &str, request: &ClaimRequest) -> String {
    let annotated = match list {
        DeviceList::Gpus => DeviceList::AnnotatedGpus,
        DeviceList::HostDevices => DeviceList::AnnotatedHostDevices,
        DeviceList::Interfaces | DeviceList::AnnotatedGpus | DeviceList::AnnotatedHostDevices => {
            return first.to_owned();
        }
    };
    let annotation = annotated.annotation().unwrap_or_default();
    let ClaimRequest { claim_name, request_name } = request;
    format!(
        "{first}, or the hook: remove the entry from {}s, and annotate {annotation}: {name}={claim_name}/{request_name} \
         (docs/kubevirt-hook.md)",
        list.kind()
    )
}
