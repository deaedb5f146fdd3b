//! A document with a `VirtualMachineInstance` or a `VirtualMachine`.

use serde::de::{self, IgnoredAny};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use super::field_error::{FieldError, from_value, yaml_problem};
use super::{Domain, Network, ObjectMeta, ResourceClaimRef, VirtualMachineInstance, VmiSpec, null_as_default};

/// Why a document is neither a `VirtualMachineInstance` nor a `VirtualMachine`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The text is not JSON, a field has the wrong type, or the kind is another.
    #[error("virtual machine cannot be read from JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is not YAML, a field has the wrong type, or the kind is another.
    #[error("virtual machine cannot be read from YAML: {}", yaml_problem(.0))]
    Yaml(#[from] Box<serde_saphyr::Error>),
    /// A field has the wrong type, or the kind is another.
    #[error("virtual machine cannot be read: {0}")]
    Field(#[from] FieldError),
}

/// A `VirtualMachineInstance`, or a `VirtualMachine` with the template of one.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// A `VirtualMachineInstance`.
    Vmi(VirtualMachineInstance),
    /// A `VirtualMachine`.
    Vm(VirtualMachine),
}

/// A KubeVirt `VirtualMachine`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VirtualMachine {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// `spec.template`: the VMI that a start makes.
    pub template: VirtualMachineInstance,
    /// Whether the VM names an instance type (`spec.instancetype`), which can have GPUs and host devices of its own.
    pub has_instancetype: bool,
}

impl Workload {
    /// Reads a document in YAML. JSON is YAML too.
    ///
    /// # Errors
    ///
    /// The text is malformed, or the object has another kind.
    pub fn from_yaml(text: &str) -> Result<Self, WorkloadError> {
        serde_saphyr::from_str(text).map_err(|error| match serde_saphyr::from_str(text) {
            Ok(document) => field_of(&document).unwrap_or_else(|| WorkloadError::Yaml(Box::new(error))),
            Err(error) => WorkloadError::Yaml(Box::new(error)),
        })
    }

    /// Reads a document in JSON.
    ///
    /// # Errors
    ///
    /// The text is malformed, or the object has another kind.
    pub fn from_json(text: &str) -> Result<Self, WorkloadError> {
        serde_json::from_str(text).map_err(|error| {
            let document = serde_json::from_str(text).ok();
            document.and_then(|document| field_of(&document)).unwrap_or(WorkloadError::Json(error))
        })
    }

    /// Reads a document that was parsed already.
    ///
    /// # Errors
    ///
    /// A field has the wrong type, or the object has another kind.
    pub fn from_value(document: &serde_json::Value) -> Result<Self, WorkloadError> {
        Ok(from_value(document)?)
    }

    /// The VMI, or the VMI that the VM's template makes: it has the name and the namespace of the VM.
    #[must_use]
    pub fn vmi(&self) -> &VirtualMachineInstance {
        match self {
            Self::Vmi(vmi) => vmi,
            Self::Vm(vm) => &vm.template,
        }
    }

    /// The VMI, to be changed.
    pub fn vmi_mut(&mut self) -> &mut VirtualMachineInstance {
        match self {
            Self::Vmi(vmi) => vmi,
            Self::Vm(vm) => &mut vm.template,
        }
    }

    /// Whether devices can come from an instance type, so that the document does not have all of them.
    #[must_use]
    pub fn has_instancetype(&self) -> bool {
        matches!(self, Self::Vm(vm) if vm.has_instancetype)
    }

    /// The object's own metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Vmi(vmi) => &vmi.metadata,
            Self::Vm(vm) => &vm.metadata,
        }
    }

    /// The kind of the object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Vmi(_) => "VirtualMachineInstance",
            Self::Vm(_) => "VirtualMachine",
        }
    }

    /// Where the specification of the VMI is in the document: `spec` or `spec.template.spec`.
    #[must_use]
    pub fn field_prefix(&self) -> &'static str {
        match self {
            Self::Vmi(_) => "spec",
            Self::Vm(_) => "spec.template.spec",
        }
    }
}

/// The field for which a document cannot be read. Errors in the text itself have none.
fn field_of(document: &serde_json::Value) -> Option<WorkloadError> {
    Workload::from_value(document).err()
}

/// One pass over the document, whether or not `kind` comes before `spec`: the keys of both specifications differ, so one
/// type reads either.
impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Object::deserialize(deserializer)?;
        if !object.api_version.is_empty() && !object.api_version.starts_with("kubevirt.io/") {
            return Err(de::Error::custom(format_args!(
                "expected an object of the API group kubevirt.io, found apiVersion {:?}",
                object.api_version
            )));
        }
        match &*object.kind {
            "VirtualMachineInstance" => Ok(Self::Vmi(VirtualMachineInstance {
                metadata: object.metadata,
                spec: VmiSpec {
                    resource_claims: object.spec.resource_claims,
                    domain: object.spec.domain,
                    networks: object.spec.networks,
                    architecture: object.spec.architecture,
                },
            })),
            "VirtualMachine" => {
                let mut template = object.spec.template;
                template.metadata.name.clone_from(&object.metadata.name);
                template.metadata.namespace.clone_from(&object.metadata.namespace);
                let has_instancetype = object.spec.instancetype.is_some();
                Ok(Self::Vm(VirtualMachine { metadata: object.metadata, template, has_instancetype }))
            }
            other => Err(de::Error::custom(format_args!(
                "expected an object of kind VirtualMachineInstance or VirtualMachine, found kind {other:?}"
            ))),
        }
    }
}

/// The keys of both kinds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    #[serde(default, deserialize_with = "null_as_default")]
    api_version: String,
    #[serde(default, deserialize_with = "null_as_default")]
    kind: String,
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_as_default")]
    spec: Spec,
}

/// The keys of both specifications.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    template: VirtualMachineInstance,
    instancetype: Option<IgnoredAny>,
    #[serde(deserialize_with = "null_as_default")]
    resource_claims: Vec<ResourceClaimRef>,
    #[serde(deserialize_with = "null_as_default")]
    domain: Domain,
    #[serde(deserialize_with = "null_as_default")]
    networks: Vec<Network>,
    #[serde(deserialize_with = "null_as_default")]
    architecture: String,
}
