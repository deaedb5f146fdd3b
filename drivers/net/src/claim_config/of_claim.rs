//! The parameters of an allocated claim.

use drakkar_plugin::k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, DeviceRequestAllocationResult};
use drakkar_plugin::{Claim, ParameterSource};

use super::{ClaimConfig, FieldError, Layer, Merged};

/// Parameters that the driver cannot use: everything that is wrong, with paths as in the claim and the class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("request {request}: {}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ClaimConfigError {
    /// The request.
    pub request: String,
    /// All errors.
    pub errors: Vec<FieldError>,
}

impl ClaimConfig {
    /// Returns the parameters that apply to an allocated device: those of the claim over those of the class over `defaults`, the
    /// ones of the device's rule.
    pub fn of(
        claim: &Claim,
        result: &DeviceRequestAllocationResult,
        defaults: &Self,
    ) -> Result<Self, ClaimConfigError> {
        let mut merged = Merged::default();
        merged.add(Layer { path: "configuration of the driver".to_owned(), config: defaults.clone() });
        let mut errors = Vec::new();
        for parameters in claim.parameters(result) {
            let path = path_of(claim, parameters.source, parameters.value);
            match Self::parse(parameters.value, &path) {
                Ok(config) => merged.add(Layer { path, config }),
                Err(found) => errors.extend(found),
            }
        }
        if errors.is_empty() {
            errors = merged.validate();
        }
        if errors.is_empty() {
            Ok(merged.config)
        } else {
            Err(ClaimConfigError { request: result.request.clone(), errors })
        }
    }
}

/// Returns the path of parameters in the object that has them. The scheduler copies the entries of classes and of the claim
/// into one list, in order, so that their place among those of the same source is their place in the class or claim.
fn path_of(claim: &Claim, source: ParameterSource, value: &serde_json::Value) -> String {
    let entries: Vec<_> = claim.configurations().collect();
    let is_this = |entry: &DeviceAllocationConfiguration| {
        entry.opaque.as_ref().is_some_and(|opaque| std::ptr::eq(&raw const opaque.parameters.0, value))
    };
    let Some(position) = entries.iter().position(|entry| is_this(entry)) else { return "opaque.parameters".to_owned() };
    let entry = entries[position];
    let is_before = |other: &&&DeviceAllocationConfiguration| match source {
        ParameterSource::Class => other.source == entry.source && other.requests == entry.requests,
        ParameterSource::Claim => other.source == entry.source,
    };
    let index = entries[..position].iter().filter(is_before).count();
    let object = match source {
        ParameterSource::Class => "device class: ",
        ParameterSource::Claim => "",
    };
    format!("{object}config[{index}].opaque.parameters")
}
