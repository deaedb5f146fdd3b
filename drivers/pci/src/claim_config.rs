//! Opaque parameters of device classes and claims for this driver.
//!
//! ```yaml
//! config:
//! - requests: [gpu]
//!   opaque:
//!     driver: pci.drakkar.dev
//!     parameters:
//!       apiVersion: pci.drakkar.dev/v1alpha1
//!       kind: ClaimConfig
//!       mode: vfio
//!       iommuBackend: iommufd
//! ```
//!
//! What a claim sets overrides its class, and what a class sets overrides the rule of the device. A field that is not set
//! overrides nothing.

use drakkar_plugin::k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use drakkar_plugin::{Claim, ParametersError};
use serde::Deserialize;

use crate::config::API_VERSION;
use crate::mode::{IommuBackend, Mode};

/// The kind of the parameters.
pub const KIND: &str = "ClaimConfig";

/// What a class or a claim asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimConfig {
    /// The mode, if it is set.
    pub mode: Option<Mode>,
    /// The interface of VFIO, if it is set.
    pub iommu_backend: Option<IommuBackend>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    mode: Option<Mode>,
    iommu_backend: Option<IommuBackend>,
}

impl ClaimConfig {
    /// Returns the parameters that apply to an allocated device.
    pub fn of(claim: &Claim, result: &DeviceRequestAllocationResult) -> Result<Self, ParametersError> {
        let mut config = Self::default();
        for parameters in claim.parameters(result) {
            let Fields { mode, iommu_backend } = parameters.decode_as(API_VERSION, KIND)?;
            config = Self { mode: mode.or(config.mode), iommu_backend: iommu_backend.or(config.iommu_backend) };
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn claim(config: &Value) -> Claim {
        let object = json!({
            "metadata": {"namespace": "default", "name": "vm", "uid": "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"},
            "spec": {},
            "status": {"allocation": {"devices": {
                "results": [{"request": "gpu", "driver": "pci.drakkar.dev", "pool": "node-1", "device": "pci-0000-65-00-0"}],
                "config": config,
            }}},
        });
        Claim::from_object("pci.drakkar.dev", serde_json::from_value(object).unwrap()).unwrap()
    }

    fn entry(source: &str, mut parameters: Value, driver: &str) -> Value {
        let object = parameters.as_object_mut().unwrap();
        object.entry("apiVersion").or_insert_with(|| API_VERSION.into());
        object.entry("kind").or_insert_with(|| KIND.into());
        json!({"source": source, "opaque": {"driver": driver, "parameters": parameters}})
    }

    fn of(config: &Value) -> Result<ClaimConfig, ParametersError> {
        let claim = claim(config);
        let result = claim.results().next().unwrap().clone();
        ClaimConfig::of(&claim, &result)
    }

    #[test]
    fn a_claim_overrides_its_class_field_by_field() {
        let config = of(&json!([
            entry("FromClass", json!({"mode": "kernel", "iommuBackend": "legacy"}), "pci.drakkar.dev"),
            entry("FromClaim", json!({"mode": "vfio"}), "pci.drakkar.dev"),
            entry("FromClaim", json!({"mode": "what"}), "other.example.com"),
        ]));
        let expected = ClaimConfig { mode: Some(Mode::Vfio), iommu_backend: Some(IommuBackend::Legacy) };
        assert_eq!(config.unwrap(), expected);
        assert_eq!(of(&json!([])).unwrap(), ClaimConfig::default());
    }

    #[rstest]
    #[case(json!({"mode": "vfoi"}), "request gpu: parameters of the claim: mode: unknown variant `vfoi`, expected one of `vfio`, `kernel`, `none`")]
    #[case(json!({"driver": "x"}), "unknown field `driver`")]
    #[case(json!({"kind": "GpuConfig"}), "they are pci.drakkar.dev/v1alpha1 GpuConfig: this driver reads")]
    fn an_error_names_the_request_and_the_field(#[case] parameters: Value, #[case] expected: &str) {
        let error = of(&json!([entry("FromClaim", parameters, "pci.drakkar.dev")])).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
