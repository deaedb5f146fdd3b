//! The devices that a container gets, and their names in the pod's status.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};

use super::cache::CachedClaim;
use super::resolve::{ClaimName, claim_name};
use super::{Manager, SelectError};
use crate::kubelet::claim::Device;

/// A container's reference to a claim, or to one of its requests.
struct Reference<'a> {
    /// The name of the pod's claim; `None` for extended resources.
    entry: Option<&'a str>,
    request: Option<&'a str>,
    claim: CachedClaim,
}

impl Manager {
    /// Returns the CDI devices to inject into a container, in the plugins' order. A device can occur twice.
    pub(in crate::kubelet) fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, SelectError> {
        let references = self.references(pod, container)?;
        let selected = references.iter().flat_map(Reference::devices);
        Ok(selected.flat_map(|(_, device)| device.cdi_device_ids.iter().cloned()).collect())
    }

    /// Returns the health of a container's devices, for the pod's status.
    pub(in crate::kubelet) fn resource_statuses(&self, pod: &Pod, container: &Container) -> Vec<ResourceStatus> {
        let Ok(references) = self.references(pod, container) else { return Vec::new() };
        let mut statuses = Vec::new();
        for reference in &references {
            let Some(entry) = reference.entry else { continue };
            let name = match reference.request {
                Some(request) => format!("claim:{entry}/{request}"),
                None => format!("claim:{entry}"),
            };
            let mut resources: Vec<ResourceHealth> = Vec::new();
            for (driver, device) in reference.devices() {
                let Device { pool_name, device_name, .. } = device;
                let first = device.cdi_device_ids.first().cloned();
                let resource_id = first.unwrap_or_else(|| format!("{driver}/{pool_name}/{device_name}"));
                let (health, message) = self.health.of(driver, pool_name, device_name);
                let message = Some(message).filter(|message| !message.is_empty());
                if !resources.iter().any(|other| other.resource_id == resource_id) {
                    resources.push(ResourceHealth { health: Some(health.to_string()), message, resource_id });
                }
            }
            statuses.push(ResourceStatus { name, resources: Some(resources) });
        }
        statuses
    }

    fn references<'a>(&self, pod: &'a Pod, container: &'a Container) -> Result<Vec<Reference<'a>>, SelectError> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let cached = |name: String| {
            let found = self.cache.lock().claims.get(&(namespace.clone(), name.clone())).cloned();
            found.ok_or(SelectError { namespace: namespace.clone(), name, container: container.name.clone() })
        };
        let mut references = Vec::new();
        let requested = || container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        for entry in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
            for reference in requested().filter(|reference| reference.name == entry.name) {
                let ClaimName::Known { name, .. } = claim_name(pod, entry) else { continue };
                let request = reference.request.as_deref().filter(|request| !request.is_empty());
                references.push(Reference { entry: Some(&entry.name), request, claim: cached(name)? });
            }
        }
        if let Some(extended) = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref()) {
            for mapping in extended.request_mappings.iter().filter(|mapping| mapping.container_name == container.name) {
                let claim = cached(extended.resource_claim_name.clone())?;
                references.push(Reference { entry: None, request: Some(&mapping.request_name), claim });
            }
        }
        Ok(references)
    }
}

impl Reference<'_> {
    /// Returns the devices of this reference, each with its driver.
    fn devices(&self) -> impl Iterator<Item = (&str, &Device)> {
        let all = self.claim.drivers.iter();
        let all = all.flat_map(|(driver, devices)| devices.iter().map(move |device| (driver.as_str(), device)));
        all.filter(|(_, device)| is_for(device, self.request))
    }
}

/// Reports whether a device is for a request of its claim. Names are compared literally: `gpu/large` is not `gpu`.
fn is_for(device: &Device, request: Option<&str>) -> bool {
    let Some(request) = request else { return true };
    device.request_names.is_empty() || device.request_names.iter().any(|name| name == request)
}
