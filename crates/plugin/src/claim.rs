//! A `ResourceClaim`, as a driver sees it: allocated, checked, and narrowed down to what concerns that driver.

use drakkar_metadata::name::{ClaimName, ClaimUid, DriverName, NameError, Namespace, PodClaimName};
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};

use crate::driver::Device;
use drakkar_client::ClaimRef;

/// What the claim controller notes on a claim that it made from a template: the entry of `pod.spec.resourceClaims`.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// An allocated claim, of which at least one device is the driver's.
#[derive(Debug, Clone)]
pub struct Claim {
    reference: ClaimRef,
    driver: DriverName,
    object: ResourceClaim,
}

/// Parameters that somebody has for a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters<'a> {
    /// Who.
    pub source: ParameterSource,
    /// What, in a form that the driver defines.
    pub value: &'a serde_json::Value,
}

/// Who chose parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterSource {
    /// The administrator, in a device class.
    Class,
    /// Whoever made the claim, which is any user: not to be trusted with what only administrators may do.
    Claim,
}

impl Claim {
    pub(crate) fn new(reference: ClaimRef, driver: DriverName, object: ResourceClaim) -> Self {
        Self { reference, driver, object }
    }

    /// A claim as a driver of that name would see it, for tests of a driver's own code.
    ///
    /// ```
    /// # use drakkar_plugin::Claim;
    /// let claim = Claim::from_object("gpu.example.com", serde_json::from_value(serde_json::json!({
    ///     "metadata": {"namespace": "default", "name": "train", "uid": "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"},
    ///     "spec": {},
    ///     "status": {"allocation": {"devices": {"results": [
    ///         {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"},
    ///     ]}}},
    /// }))?)?;
    /// assert_eq!(claim.results().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_object(driver: &str, object: ResourceClaim) -> Result<Self, NameError> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let reference = ClaimRef {
            namespace: Namespace::new(text(&object.metadata.namespace))?,
            name: ClaimName::new(text(&object.metadata.name))?,
            uid: ClaimUid::new(text(&object.metadata.uid))?,
        };
        Ok(Self::new(reference, DriverName::new(driver)?, object))
    }

    /// Which claim.
    pub fn reference(&self) -> &ClaimRef {
        &self.reference
    }

    /// The whole object as the API server has it, without its managed fields.
    pub fn object(&self) -> &ResourceClaim {
        &self.object
    }

    /// The devices that were allocated from this driver, one for each request that got it.
    pub fn results(&self) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
        let results = self.devices().and_then(|devices| devices.results.as_deref()).unwrap_or_default();
        results.iter().filter(|result| result.driver == self.driver.as_str())
    }

    /// The parameters for this driver that apply to a device: those of its class first, then those of the claim.
    /// Later ones are meant to override earlier ones, as far as a driver lets users override administrators.
    pub fn parameters<'a>(&'a self, result: &'a DeviceRequestAllocationResult) -> impl Iterator<Item = Parameters<'a>> {
        self.configurations().filter(|configuration| applies(configuration, &result.request)).filter_map(
            |configuration| {
                let opaque = configuration.opaque.as_ref()?;
                let source = match configuration.source.as_str() {
                    "FromClass" => ParameterSource::Class,
                    _ => ParameterSource::Claim,
                };
                (opaque.driver == self.driver.as_str()).then_some(Parameters { source, value: &opaque.parameters.0 })
            },
        )
    }

    /// The entry of `pod.spec.resourceClaims` that the claim was made for, if it was made from a template.
    ///
    /// Whoever may write a claim may write this annotation. It becomes part of a path, so it has to be a DNS label.
    pub(crate) fn pod_claim_name(&self) -> Result<Option<PodClaimName>, NameError> {
        let annotations = self.object.metadata.annotations.as_ref();
        match annotations.and_then(|annotations| annotations.get(POD_CLAIM_NAME)).map(String::as_str) {
            None | Some("") => Ok(None),
            Some(name) => PodClaimName::new(name).map(Some),
        }
    }

    fn devices(&self) -> Option<&DeviceAllocationResult> {
        self.object.status.as_ref()?.allocation.as_ref()?.devices.as_ref()
    }

    fn configurations(&self) -> impl Iterator<Item = &DeviceAllocationConfiguration> {
        let configurations = self.devices().and_then(|devices| devices.config.as_deref()).unwrap_or_default();
        configurations.iter()
    }
}

/// A configuration without requests is for all of them; one that names a request is for its subrequests too.
fn applies(configuration: &DeviceAllocationConfiguration, reference: &str) -> bool {
    let requests = configuration.requests.as_deref().unwrap_or_default();
    requests.is_empty() || requests.iter().any(|request| request == reference || request == base(reference))
}

/// The request of a reference, without a subrequest.
pub(crate) fn base(reference: &str) -> &str {
    reference.split('/').next().unwrap_or_default()
}

/// The device that was allocated, for its request. What is missing is how it gets into containers and what they are
/// told of it.
impl From<&DeviceRequestAllocationResult> for Device {
    fn from(result: &DeviceRequestAllocationResult) -> Self {
        Self {
            requests: vec![result.request.clone()],
            pool_name: result.pool.clone(),
            device_name: result.device.clone(),
            share_id: result.share_id.clone(),
            ..Self::default()
        }
    }
}
