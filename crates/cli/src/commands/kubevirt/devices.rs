//! What the commands about devices share: the resolver, errors with their exit codes, and notes about released KubeVirt.

use std::path::Path;

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::device_plugin::Environment;
use drakkar_kubevirt::explain::unreadable;
use drakkar_kubevirt::hook::annotated_devices;
use drakkar_kubevirt::hostdev::{Conversion, HostDevError, Options, convert};
use drakkar_kubevirt::resolve::{Layout, ResolveError, Resolver};
use drakkar_kubevirt::vmi::VirtualMachineInstance;
use drakkar_metadata::show::Printable;

use crate::args::kubevirt::{LayoutName, Resolution};
use crate::exit::Failure;

/// Creates the resolver that the command line describes.
pub(crate) fn resolver(root: &Path, options: &Resolution, behaviour: Behaviour) -> Result<Resolver, Failure> {
    let layout = match options.layout {
        LayoutName::Released => Layout::Released,
        LayoutName::Kep => Layout::Kep,
        LayoutName::Vep10 => Layout::Vep10Seed,
    };
    let resolver = Resolver::with_root(root).map_err(|error| resolve_failure(&error, error.to_string()))?;
    Ok(resolver.layout(layout).with_behaviour(behaviour))
}

/// Returns the failure for an error, which names the device.
pub(crate) fn failure(error: &HostDevError) -> Failure {
    match error {
        HostDevError::Resolve { error: cause, .. } => resolve_failure(cause, error.to_string()),
        error => Failure::new(error.class().into(), error.to_string()),
    }
}

/// Returns the failure for an error in resolving, with a message about it.
pub(crate) fn resolve_failure(error: &ResolveError, message: String) -> Failure {
    let failure = Failure::new(error.class().into(), message);
    let hint = match error {
        ResolveError::Read(error) => unreadable(error),
        ResolveError::NoFile { .. } | ResolveError::NoPodClaim { .. } => {
            Some("`drakkar kubevirt explain FILE` says what is missing")
        }
        _ => None,
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Says on standard error where released KubeVirt does not do what was done here.
pub(crate) fn note_released(
    vmi: &VirtualMachineInstance,
    resolver: &Resolver,
    environment: &Environment,
    converted: &Conversion,
) {
    let annotated = annotated_devices(&vmi.metadata.annotations).unwrap_or_default();
    if resolver.behaviour().is_strict() {
        for device in annotated {
            let annotation = device.kind.annotation();
            note(&format!("{:?} is left out: KubeVirt 1.9 does not read annotation {annotation}", device.name));
        }
        return;
    }
    if let Ok(released) = resolver.as_released() {
        for error in convert(vmi, &released, environment, &Options::default()).errors {
            if error.device().is_some_and(|device| converted.error_of(device).is_none()) {
                note(&format!("KubeVirt 1.9 fails here: {error}"));
            }
        }
    }
    for device in annotated {
        let annotation = device.kind.annotation();
        note(&format!(
            "{:?} of annotation {annotation}: KubeVirt 1.9 needs the hook for it (docs/kubevirt-hook.md)",
            device.name
        ));
    }
}

/// Prints a note on standard error.
pub(crate) fn note(text: &str) {
    anstream::eprintln!("drakkar: {}", Printable::whole(text));
}
