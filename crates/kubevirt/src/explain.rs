//! Explaining a virtual machine's devices: from the entry in the VMI over its claim and its file to its XML, step by step.
//!
//! For a person who asks why a device is missing. Each step says what was found, or what is missing and what to do; after the
//! first error of a device there are no more steps, because each needs the one before it. What is wrong with the devices
//! taken together, two with one address for example, is the last explanation.
//!
//! The whole VMI is converted once, as [`host_devices`](crate::hostdev::host_devices) does it, and a second time with the
//! limits of released KubeVirt. Entries are identified by their position.

mod follow;
mod objects;
mod remedy;
#[cfg(test)]
mod tests;

pub use self::objects::ClaimObjects;
pub use self::remedy::unreadable;

use drakkar_metadata::read::ErrorClass;

use self::follow::{Entry, Explainer};
use crate::device_plugin::Environment;
use crate::hook::annotation::{AnnotatedDevice, DeviceKind, annotated_devices};
use crate::hostdev::{DeviceList, DeviceRef, HostDevError};
use crate::resolve::Resolver;
use crate::vmi::{VirtualMachineInstance, VmiSpec};

/// What became of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceExplanation {
    /// The kind of entry: `gpu`, `hostDevice` or `network`; `all` for the devices taken together.
    pub kind: &'static str,
    /// The entry's name.
    pub name: String,
    /// The steps, in order. The last is an error, or the XML.
    pub steps: Vec<Step>,
}

impl DeviceExplanation {
    /// Returns the most serious outcome of the steps.
    pub fn outcome(&self) -> Outcome {
        self.steps.iter().map(|step| step.outcome).max().unwrap_or(Outcome::Fine)
    }
}

/// A step from a VMI's entry to XML.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// What the step is about: `claim`, `request`, `file`, `device`, `kubevirt` or `xml`.
    pub subject: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found. Only XML has several lines; other text can have newlines from files, which must be escaped.
    pub text: String,
    /// What to do, if something is wrong.
    pub remedy: Option<String>,
}

/// How a step ended. Later outcomes are more serious.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Outcome {
    /// As expected.
    Fine,
    /// Works here, or works for now; released KubeVirt may fail.
    Warning,
    /// Nothing was found where it is expected: the device may be added later, or this is not a launcher's container.
    NotFound,
    /// The driver has not written the file yet.
    NotWritten,
    /// A file is there and cannot be read.
    Unreadable,
    /// It cannot work like this.
    Error,
}

impl From<ErrorClass> for Outcome {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::NotFound => Self::NotFound,
            ErrorClass::NotWritten => Self::NotWritten,
            ErrorClass::Unreadable => Self::Unreadable,
            _ => Self::Error,
        }
    }
}

/// Explains every device of a VMI: GPUs, host devices, networks, and the devices that the hook's annotations name.
///
/// `objects` are claims and templates to check requests against, where they are known.
pub fn explain(
    vmi: &VirtualMachineInstance,
    objects: &ClaimObjects,
    resolver: &Resolver,
    environment: &Environment,
) -> Vec<DeviceExplanation> {
    let explainer = Explainer::new(vmi, objects, resolver, environment);
    let mut all: Vec<DeviceExplanation> = entries(&vmi.spec).iter().map(|entry| explainer.explain(entry)).collect();
    // An annotation that cannot be understood is an error of the conversion.
    let annotated = annotated_devices(&vmi.metadata.annotations).unwrap_or_default();
    all.extend(annotated.iter().enumerate().map(|(index, device)| explainer.explain(&annotated_entry(index, device))));
    all.extend(explainer.explain_together());
    all
}

/// Returns the entries of a specification.
fn entries(spec: &VmiSpec) -> Vec<Entry<'_>> {
    let devices = &spec.domain.devices;
    let gpus = devices.gpus.iter().enumerate().map(|(index, gpu)| Entry {
        list: DeviceList::Gpus,
        name: &gpu.name,
        device: Some(DeviceRef::new(DeviceList::Gpus, index, &gpu.name)),
        device_name: &gpu.device_name,
        request: gpu.claim_request.as_ref(),
    });
    let host_devices = devices.host_devices().iter().enumerate().map(|(index, device)| Entry {
        list: DeviceList::HostDevices,
        name: &device.name,
        device: Some(DeviceRef::new(DeviceList::HostDevices, index, &device.name)),
        device_name: &device.device_name,
        request: device.claim_request.as_ref(),
    });
    let networks = spec.networks.iter().filter(|network| network.resource_claim.is_some()).map(|network| {
        let interface =
            devices.interfaces.iter().position(|interface| interface.sriov && interface.name == network.name);
        Entry {
            list: DeviceList::Interfaces,
            name: &network.name,
            device: interface.map(|index| DeviceRef::new(DeviceList::Interfaces, index, &network.name)),
            device_name: "",
            request: network.resource_claim.as_ref(),
        }
    });
    gpus.chain(host_devices).chain(networks).collect()
}

fn annotated_entry(index: usize, device: &AnnotatedDevice) -> Entry<'_> {
    let list = match device.kind {
        DeviceKind::Gpu => DeviceList::AnnotatedGpus,
        DeviceKind::HostDevice => DeviceList::AnnotatedHostDevices,
    };
    Entry {
        list,
        name: &device.name,
        device: Some(DeviceRef::new(list, index, &device.name)),
        device_name: "",
        request: Some(&device.request),
    }
}

/// The steps so far.
#[derive(Default)]
struct Steps(Vec<Step>);

/// An error was the last step.
struct Stopped;

impl Steps {
    fn add(&mut self, subject: &'static str, outcome: Outcome, text: impl Into<String>, remedy: Option<String>) {
        self.0.push(Step { subject, outcome, text: text.into(), remedy });
    }

    fn fine(&mut self, subject: &'static str, text: impl Into<String>) {
        self.add(subject, Outcome::Fine, text, None);
    }

    fn warn(&mut self, subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) {
        self.add(subject, Outcome::Warning, text, Some(remedy.into()));
    }

    fn stop(&mut self, subject: &'static str, text: impl Into<String>, remedy: &str) -> Stopped {
        self.add(subject, Outcome::Error, text, Some(remedy.to_owned()));
        Stopped
    }

    fn failed(&mut self, error: &HostDevError, resolver: &Resolver) {
        let outcome = Outcome::from(error.class());
        self.add(remedy::subject(error), outcome, remedy::text(error), remedy::remedy(error, resolver));
    }
}
