//! A `ResourceClaim` as a driver sees it: allocated, checked, and reduced to the devices of that driver.

mod summary;

use std::sync::OnceLock;

use drakkar_client::{Bytes, ClaimRef};
use drakkar_metadata::name::{ClaimName, ClaimUid, DriverName, NameError, Namespace, PodClaimName};
use k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim};

pub(crate) use self::summary::Summary;

use crate::driver::Device;
use crate::parameters::{ParameterSource, Parameters};

/// An allocated claim with at least one device of the driver.
#[derive(Debug, Clone)]
pub struct Claim {
    reference: ClaimRef,
    driver: DriverName,
    /// The parts that each prepare needs.
    summary: Summary,
    /// The object, once somebody has asked for it. Boxed: claims are moved often, and few drivers ask.
    object: OnceLock<Box<ResourceClaim>>,
    /// The object as the API server sent it, in JSON and in the form of v1.
    body: Bytes,
}

impl Claim {
    /// Creates a claim from an object in JSON, in the form of v1. Nothing but the summary is decoded before it is needed.
    pub(crate) fn new(reference: ClaimRef, driver: DriverName, summary: Summary, body: Bytes) -> Self {
        Self { reference, driver, summary, object: OnceLock::new(), body }
    }

    /// Creates a claim as the named driver would receive it, for unit tests of a driver.
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
        let summary = Summary::of(&object);
        Ok(Self {
            reference,
            driver: DriverName::new(driver)?,
            summary,
            object: Box::new(object).into(),
            body: Bytes::new(),
        })
    }

    /// Returns the claim's namespace, name and UID.
    pub fn reference(&self) -> &ClaimRef {
        &self.reference
    }

    /// Returns the whole object as stored in the API server, without its managed fields.
    ///
    /// It is decoded at the first call: [`Self::results`] and [`Self::parameters`], which are enough for most drivers, do not
    /// need it.
    pub fn object(&self) -> &ResourceClaim {
        self.object.get_or_init(|| {
            let decoded = summary::decode_object(&self.body).unwrap_or_else(|error| {
                // The API server checks objects by the same types, so this is not expected.
                tracing::error!(claim = %self.reference, %error, "decoding the whole claim failed, using its allocation");
                self.summary.to_object(&self.reference)
            });
            Box::new(decoded)
        })
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns the allocation results of this driver: one for each request and device.
    pub fn results(&self) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
        let results = self.summary.devices.results.as_deref().unwrap_or_default();
        results.iter().filter(|result| result.driver == self.driver.as_str())
    }

    /// Returns the parameters for this driver that apply to an allocation result: those of the class first, then those of the
    /// claim. Later ones override earlier ones, as far as the driver lets users override administrators.
    pub fn parameters<'a>(&'a self, result: &'a DeviceRequestAllocationResult) -> impl Iterator<Item = Parameters<'a>> {
        self.configurations().filter(|configuration| applies(configuration, &result.request)).filter_map(
            |configuration| {
                let opaque = configuration.opaque.as_ref()?;
                let source = match configuration.source.as_str() {
                    "FromClass" => ParameterSource::Class,
                    _ => ParameterSource::Claim,
                };
                let parameters = Parameters { source, request: &result.request, value: &opaque.parameters.0 };
                (opaque.driver == self.driver.as_str()).then_some(parameters)
            },
        )
    }

    /// Returns the entry of `pod.spec.resourceClaims` for which the claim was created, if it was created from a template.
    ///
    /// Every user who can write a claim can write this annotation. It becomes part of a path, so it must be a DNS label.
    pub(crate) fn pod_claim_name(&self) -> Result<Option<PodClaimName>, NameError> {
        match self.summary.pod_claim_name.as_deref() {
            None | Some("") => Ok(None),
            Some(name) => PodClaimName::new(name).map(Some),
        }
    }

    /// Checks what [`Self::pod_claim_name`] returns.
    pub(crate) fn check_pod_claim_name(&self) -> Result<(), NameError> {
        match self.summary.pod_claim_name.as_deref() {
            None | Some("") => Ok(()),
            Some(name) => PodClaimName::check(name),
        }
    }

    /// Whether `status.devices` has an entry of this driver.
    pub(crate) fn has_reported_devices(&self) -> bool {
        self.summary.reported_by.iter().any(|driver| driver == self.driver.as_str())
    }

    /// Returns the configuration of the allocation, for all requests and drivers, in the order in which the scheduler copied it from
    /// classes and the claim. [`Self::parameters`] has those of a result.
    pub fn configurations(&self) -> impl Iterator<Item = &DeviceAllocationConfiguration> {
        self.summary.devices.config.as_deref().unwrap_or_default().iter()
    }
}

/// Whether a configuration applies to a request reference. Without requests it applies to all of them; with the name of a
/// request it applies to its subrequests too.
fn applies(configuration: &DeviceAllocationConfiguration, reference: &str) -> bool {
    let requests = configuration.requests.as_deref().unwrap_or_default();
    requests.is_empty() || requests.iter().any(|request| request == reference || request == base(reference))
}

/// Returns the request of a reference, without the subrequest.
pub(crate) fn base(reference: &str) -> &str {
    reference.split('/').next().unwrap_or_default()
}

/// Returns the allocated device for its request, without container edits, CDI device IDs and metadata.
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
