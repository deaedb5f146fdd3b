//! Opaque configuration parameters of a device, and their decoding into a type of the driver.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The fields that say what an object is, by Kubernetes' convention.
const API_VERSION: &str = "apiVersion";
const KIND: &str = "kind";

/// Opaque configuration parameters for a device.
///
/// By Kubernetes' convention parameters are an object with `apiVersion` and `kind`, so that the driver can read more than
/// one version:
///
/// ```
/// # use drakkar_plugin::Parameters;
/// #[derive(serde::Deserialize)]
/// #[serde(rename_all = "camelCase", deny_unknown_fields)]
/// struct GpuConfig {
///     exclusive: bool,
/// }
///
/// fn read(parameters: Parameters<'_>) -> Result<GpuConfig, drakkar_plugin::ParametersError> {
///     parameters.decode_as("gpu.example.com/v1", "GpuConfig")
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters<'a> {
    /// Where the parameters come from.
    pub source: ParameterSource,
    /// The request, or `request/subrequest`, for which the device is allocated.
    pub request: &'a str,
    /// The opaque value, in a format that the driver defines.
    pub value: &'a Value,
}

/// Where configuration parameters come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterSource {
    /// A device class, written by an administrator.
    Class,
    /// The claim, written by any user: do not trust it with settings that are reserved for administrators.
    Claim,
}

impl fmt::Display for ParameterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Class => "device class",
            Self::Claim => "claim",
        })
    }
}

/// Parameters that the driver cannot read. The message names request, source and field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("request {request}: parameters of the {origin}: {problem}")]
pub struct ParametersError {
    request: String,
    origin: ParameterSource,
    problem: String,
}

impl<'a> Parameters<'a> {
    /// Returns the version of the object, such as `gpu.example.com/v1`, if it has one.
    pub fn api_version(&self) -> Option<&'a str> {
        self.value.get(API_VERSION).and_then(Value::as_str)
    }

    /// Returns the kind of the object, if it has one.
    pub fn kind(&self) -> Option<&'a str> {
        self.value.get(KIND).and_then(Value::as_str)
    }

    /// Decodes the parameters, whatever `apiVersion` and `kind` they have. The type does not have these two fields, and may
    /// deny unknown fields.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ParametersError> {
        let decoded = match self.value {
            Value::Object(fields) if fields.contains_key(API_VERSION) || fields.contains_key(KIND) => {
                let mut fields = fields.clone();
                fields.remove(API_VERSION);
                fields.remove(KIND);
                serde_path_to_error::deserialize(Value::Object(fields))
            }
            value => serde_path_to_error::deserialize(value),
        };
        decoded.map_err(|error| {
            let path = error.path().to_string();
            let problem = error.into_inner();
            self.error(if path == "." { problem.to_string() } else { format!("{path}: {problem}") })
        })
    }

    /// Decodes the parameters, which must have this `apiVersion` and `kind`. The type does not have these two fields, and may
    /// deny unknown fields.
    ///
    /// A driver that reads several versions decides by [`Self::api_version`] first.
    pub fn decode_as<T: DeserializeOwned>(&self, api_version: &str, kind: &str) -> Result<T, ParametersError> {
        match (self.api_version(), self.kind()) {
            (Some(version), Some(own)) if version == api_version && own == kind => self.decode(),
            (Some(version), Some(own)) => {
                Err(self.error(format!("they are {version} {own}: this driver reads {api_version} {kind}")))
            }
            (version, _) => {
                let missing = if version.is_none() { API_VERSION } else { KIND };
                Err(self.error(format!("they have no {missing}: this driver reads {api_version} {kind}")))
            }
        }
    }

    fn error(&self, problem: String) -> ParametersError {
        ParametersError { request: self.request.to_owned(), origin: self.source, problem }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Config {
        exclusive: bool,
        limits: Limits,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Limits {
        max_power: u32,
    }

    fn parameters(value: &Value) -> Parameters<'_> {
        Parameters { source: ParameterSource::Claim, request: "gpu", value }
    }

    #[test]
    fn a_type_that_denies_unknown_fields_is_decoded_with_and_without_version_and_kind() {
        let expected = Config { exclusive: true, limits: Limits { max_power: 300 } };
        let bare = json!({"exclusive": true, "limits": {"maxPower": 300}});
        assert_eq!(parameters(&bare).decode::<Config>().as_ref(), Ok(&expected));
        let mut typed = bare.clone();
        typed["apiVersion"] = "gpu.example.com/v1".into();
        typed["kind"] = "GpuConfig".into();
        assert_eq!(parameters(&typed).decode::<Config>().as_ref(), Ok(&expected));
        assert_eq!(parameters(&typed).decode_as::<Config>("gpu.example.com/v1", "GpuConfig"), Ok(expected));
        assert_eq!(parameters(&typed).api_version(), Some("gpu.example.com/v1"));
        assert_eq!(parameters(&typed).kind(), Some("GpuConfig"));
    }

    #[test]
    fn another_version_or_kind_is_refused_before_its_fields_are_read() {
        let cases = [
            (
                json!({"apiVersion": "gpu.example.com/v2", "kind": "GpuConfig", "new": 1}),
                "they are gpu.example.com/v2 GpuConfig",
            ),
            (json!({"apiVersion": "gpu.example.com/v1", "kind": "NicConfig"}), "they are gpu.example.com/v1 NicConfig"),
            (json!({"exclusive": true}), "they have no apiVersion"),
            (json!({"apiVersion": "gpu.example.com/v1"}), "they have no kind"),
            (json!(["exclusive"]), "they have no apiVersion"),
        ];
        for (value, expected) in cases {
            let error =
                parameters(&value).decode_as::<Config>("gpu.example.com/v1", "GpuConfig").unwrap_err().to_string();
            let whole = format!(
                "request gpu: parameters of the claim: {expected}: this driver reads gpu.example.com/v1 GpuConfig"
            );
            assert_eq!(error, whole);
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let value = json!({"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig", "limits": {"maxPower": "all"}});
        let error = parameters(&value).decode::<Config>().unwrap_err().to_string();
        assert!(error.starts_with("request gpu: parameters of the claim: limits.maxPower: invalid type"), "{error}");
        let value = json!({"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig", "exclusiv": true});
        let error = parameters(&value).decode::<Config>().unwrap_err().to_string();
        assert!(error.contains("unknown field `exclusiv`, expected `exclusive` or `limits`"), "{error}");
    }
}
