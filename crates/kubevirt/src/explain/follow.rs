//! Follows an entry from its claim to its XML.

use super::{ClaimObjects, DeviceExplanation, Outcome, Steps, Stopped, remedy};
use crate::behaviour::Behaviour;
use crate::device_plugin::{Environment, ResourceKind};
use crate::hostdev::{Conversion, DeviceList, DeviceRef, HostDevError, Options, convert};
use crate::resolve::{ResolvedDevice, ResolvedRequest, Resolver};
use crate::vmi::{ClaimRequest, ResourceClaimRef, VirtualMachineInstance};
use crate::xml::{Form, write};

/// An entry of a VMI, or of an annotation.
pub(super) struct Entry<'a> {
    pub(super) list: DeviceList,
    pub(super) name: &'a str,
    /// The entry in the conversion; absent for a network without SR-IOV interface.
    pub(super) device: Option<DeviceRef>,
    pub(super) device_name: &'a str,
    pub(super) request: Option<&'a ClaimRequest>,
}

/// A VMI, and what became of it.
pub(super) struct Explainer<'a> {
    vmi: &'a VirtualMachineInstance,
    objects: &'a ClaimObjects,
    resolver: &'a Resolver,
    environment: &'a Environment,
    converted: Conversion,
    /// The conversion of released KubeVirt, unless that is the one that was asked for.
    released: Option<Conversion>,
}

impl<'a> Explainer<'a> {
    pub(super) fn new(
        vmi: &'a VirtualMachineInstance,
        objects: &'a ClaimObjects,
        resolver: &'a Resolver,
        environment: &'a Environment,
    ) -> Self {
        let options = Options::with_annotated();
        let released = match resolver.behaviour() {
            Behaviour::Strict => None,
            Behaviour::Extended => resolver.as_released().ok(),
        };
        Self {
            vmi,
            objects,
            resolver,
            environment,
            converted: convert(vmi, resolver, environment, &options),
            released: released.map(|released| convert(vmi, &released, environment, &options)),
        }
    }

    pub(super) fn explain(&self, entry: &Entry<'_>) -> DeviceExplanation {
        let mut steps = Steps::default();
        // The result is in the steps: an error ends them.
        let _ = self.follow(entry, &mut steps);
        DeviceExplanation { kind: entry.list.kind(), name: entry.name.to_owned(), steps: steps.0 }
    }

    /// Explains the errors that are about several devices.
    pub(super) fn explain_together(&self) -> Option<DeviceExplanation> {
        let mut steps = Steps::default();
        for error in self.converted.errors.iter().filter(|error| error.device().is_none()) {
            // Each entry says which variables are not set.
            if !matches!(error, HostDevError::Count { variables, .. } if variables.is_empty()) {
                steps.failed(error, self.resolver);
            }
        }
        let found = !steps.0.is_empty();
        found.then(|| DeviceExplanation { kind: "all", name: "devices".to_owned(), steps: steps.0 })
    }

    fn follow(&self, entry: &Entry<'_>, steps: &mut Steps) -> Result<(), Stopped> {
        let request = match (entry.device_name, entry.request) {
            ("", Some(request)) => request,
            ("", None) => {
                let remedy = "set claimName and requestName, or deviceClassName and run drakkar kubevirt claims";
                return Err(steps.stop("claim", "neither a claim nor a deviceName", remedy));
            }
            (resource, None) => {
                self.device_plugin(entry, resource, steps);
                return Ok(());
            }
            (_, Some(_)) => {
                let remedy = "remove deviceName, or claimName and requestName";
                return Err(steps.stop("claim", "both a claim and a deviceName", remedy));
            }
        };
        self.annotation(entry, steps)?;
        let claim = claim(&self.vmi.spec.resource_claims, entry.list, request, steps)?;
        self.objects.check(claim, entry, request, steps)?;
        let Some(device) = &entry.device else { return self.network(request, steps) };
        if let Some(resolved) = self.converted.resolved_of(device) {
            describe(resolved, steps);
        }
        if let Some(error) = self.converted.error_of(device) {
            steps.failed(error, self.resolver);
            return Err(Stopped);
        }
        if let Some(error) = self.released.as_ref().and_then(|released| released.error_of(device)) {
            let text = format!("KubeVirt 1.9 fails: {}", remedy::text(error));
            let remedy = remedy::for_released(error, entry.list, entry.name, request, self.resolver);
            steps.add("kubevirt", Outcome::Warning, text, remedy);
        }
        self.xml(device, steps);
        Ok(())
    }

    fn xml(&self, device: &DeviceRef, steps: &mut Steps) {
        let form = match self.resolver.behaviour() {
            Behaviour::Extended => Form::Canonical,
            Behaviour::Strict => Form::Kubevirt,
        };
        steps.fine("xml", write(&self.converted.devices_of(device), form).trim_end());
    }

    /// Says whose work an annotated device is.
    fn annotation(&self, entry: &Entry<'_>, steps: &mut Steps) -> Result<(), Stopped> {
        let Some(annotation) = entry.list.annotation() else { return Ok(()) };
        let text = format!("KubeVirt 1.9 does not read annotation {annotation}");
        if self.resolver.behaviour().is_strict() {
            steps.warn("kubevirt", format!("ignored: {text}"), "install the hook: docs/kubevirt-hook.md");
            return Err(Stopped);
        }
        steps.fine("kubevirt", format!("needs the hook, docs/kubevirt-hook.md: {text}"));
        Ok(())
    }

    /// Explains a network without SR-IOV interface, which is no host device.
    fn network(&self, request: &ClaimRequest, steps: &mut Steps) -> Result<(), Stopped> {
        match self.resolver.resolve(&self.vmi.spec.resource_claims, request) {
            Ok(resolved) => {
                describe(&resolved, steps);
                steps.fine("xml", "none: only an interface with binding sriov becomes a host device");
                Ok(())
            }
            Err(error) => {
                let outcome = Outcome::from(error.class());
                let remedy = remedy::unresolved(&error, DeviceList::Interfaces, self.resolver);
                steps.add("file", outcome, remedy::resolve_text(&error), remedy);
                Err(Stopped)
            }
        }
    }

    fn device_plugin(&self, entry: &Entry<'_>, resource: &str, steps: &mut Steps) {
        steps.fine("claim", format!("none: device plugin {resource}"));
        let kinds = [ResourceKind::Pci, ResourceKind::Mdev, ResourceKind::Usb];
        let names = kinds.map(|kind| kind.variable(resource));
        let set: Vec<String> =
            names.iter().filter_map(|name| Some(format!("{name}={}", self.environment.get(name)?))).collect();
        if set.is_empty() {
            let text = format!("none of the variables {} is set", names.join(", "));
            let remedy = "run it in the launcher's container, whose environment has it; if it has not, the device plugin \
                          has allocated nothing";
            steps.add("device", Outcome::NotFound, text, Some(remedy.to_owned()));
            return;
        }
        steps.fine("device", format!("from the environment: {}", set.join(", ")));
        let Some(device) = &entry.device else { return };
        if let Some(error) = self.converted.error_of(device) {
            steps.failed(error, self.resolver);
        } else if !self.converted.devices_of(device).is_empty() {
            self.xml(device, steps);
        }
    }
}

/// Finds the entry of `resourceClaims` that a device refers to.
fn claim<'a>(
    claims: &'a [ResourceClaimRef],
    list: DeviceList,
    request: &ClaimRequest,
    steps: &mut Steps,
) -> Result<&'a ResourceClaimRef, Stopped> {
    for (field, value) in [("claimName", &request.claim_name), ("requestName", &request.request_name)] {
        if value.is_empty() {
            return Err(steps.stop("claim", format!("{field} is empty"), "set both claimName and requestName"));
        }
    }
    let Some(entry) = claims.iter().find(|entry| entry.name == request.claim_name) else {
        let known: Vec<&str> = claims.iter().map(|entry| entry.name.as_str()).collect();
        let known = if known.is_empty() { "it is empty".to_owned() } else { format!("it has {}", known.join(", ")) };
        let text = format!("{} is not in spec.resourceClaims, {known}", request.claim_name);
        let field = list.annotation().unwrap_or("claimName");
        return Err(steps.stop("claim", text, &format!("add an entry of that name, or correct {field}")));
    };
    let source = match (&entry.resource_claim_name, &entry.resource_claim_template_name) {
        (Some(claim), _) if !claim.is_empty() => format!("existing claim {claim}"),
        (_, Some(template)) => format!("a claim per pod, from template {template}"),
        _ => {
            let text = format!("{} has neither resourceClaimName nor resourceClaimTemplateName", entry.name);
            return Err(steps.stop("claim", text, "set one of them"));
        }
    };
    steps.fine("claim", format!("{}: {source}", entry.name));
    Ok(entry)
}

fn describe(resolved: &ResolvedRequest, steps: &mut Steps) {
    for file in &resolved.files {
        steps.fine("file", file.display().to_string());
    }
    for device in &resolved.devices {
        steps.fine("device", describe_device(device));
    }
}

fn describe_device(device: &ResolvedDevice) -> String {
    let address = match (&device.mdev_uuid, &device.pci_bus_id) {
        (Some(uuid), _) => format!("mediated device {uuid}"),
        (None, Some(address)) => format!("PCI {address}"),
        (None, None) => "no address".to_owned(),
    };
    let node = device.numa_node.map(|node| format!(", NUMA node {node}")).unwrap_or_default();
    format!("{}: {address}{node}", device.id())
}
