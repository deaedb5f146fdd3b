//! Admission: the rules of KubeVirt's webhook about claims, and the devices and networks that use them.
//!
//! [`validate`] runs all rules on one object and returns every violation, in KubeVirt's order: networks, claims, GPUs,
//! host devices, request used by two kinds of devices, missing claims, frame buffers, the `HostDevices` gate. The type
//! and the field of a cause are KubeVirt's. [`warnings`] has what KubeVirt accepts and what fails later, when the pod or
//! the domain is made. [`validate_without_gates`] is for a cluster whose gates are not known. [`as_remarshalled`] gives the object that KubeVirt's validator sees in a cluster.

mod claims;
mod devices;
mod live;
mod name;
mod neighbours;
mod networks;
mod warnings;

use std::fmt;

use serde::Serialize;

use crate::behaviour::Behaviour;
use crate::gates::{FeatureGates, Gate};
use crate::vmi::Workload;

pub use live::{as_remarshalled, schema_violations};
pub use warnings::{Warning, warnings};

/// A violation of a rule: a `StatusCause` of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The type of the violation.
    #[serde(skip_serializing_if = "CauseType::is_untyped")]
    pub reason: CauseType,
    /// A text for the user.
    pub message: String,
    /// The path of the field, such as `spec.resourceClaims[0].name`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// The type of a [`Cause`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum CauseType {
    /// The value breaks a rule.
    #[serde(rename = "FieldValueInvalid")]
    Invalid,
    /// The value is missing.
    #[serde(rename = "FieldValueRequired")]
    Required,
    /// The value is a repetition.
    #[serde(rename = "FieldValueDuplicate")]
    Duplicate,
    /// The value refers to something that is not there.
    #[serde(rename = "FieldValueNotFound")]
    NotFound,
    /// No type: KubeVirt checks the schema of an object before its rules, and gives a message only.
    #[serde(rename = "")]
    Untyped,
}

impl CauseType {
    /// The type as Kubernetes writes it, empty for [`CauseType::Untyped`].
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::Untyped => "",
        }
    }

    // A reference, because serde calls it.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_untyped(&self) -> bool {
        *self == Self::Untyped
    }
}

impl fmt::Display for CauseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.field, self.reason) {
            ("", CauseType::Untyped) => f.write_str(&self.message),
            (field, reason) => write!(f, "{field}: {reason}: {}", self.message),
        }
    }
}

/// Checks an object by KubeVirt's rules and returns all violations.
///
/// [`Behaviour::Extended`] refuses what [`Behaviour::Strict`] refuses, with the same types and fields; its messages name
/// more, such as the claim that is missing. It also counts a frame buffer whose `enabled` is unset, which KubeVirt
/// sees only after its defaults were applied.
///
/// The object is taken as it is. See [`as_remarshalled`] for what a cluster would answer.
#[must_use]
pub fn validate(workload: &Workload, gates: &FeatureGates, behaviour: Behaviour) -> Vec<Cause> {
    Report::of(workload, gates, behaviour).causes
}

/// Checks an object for a cluster whose feature gates are not known.
///
/// The causes are those that hold whatever the gates are. What KubeVirt refuses only if a gate is off is a warning,
/// for the gates that are off by default.
#[must_use]
pub fn validate_without_gates(workload: &Workload, behaviour: Behaviour) -> (Vec<Cause>, Vec<Warning>) {
    // With its gate on, a device is checked by more rules. With the gate off it is refused too.
    let all = Gate::ALL.into_iter().fold(FeatureGates::default(), |gates, gate| gates.with(gate, true));
    let causes = validate(workload, &all, behaviour);
    let by_default = Report::of(workload, &FeatureGates::default(), behaviour);
    let warnings = by_default.gated.into_iter().map(|(gate, field)| Warning::FeatureGate { field, gate });
    (causes, warnings.collect())
}

/// The causes found so far.
struct Report {
    causes: Vec<Cause>,
    /// The gates that are off and must be on, each with the field that needs it. Every one has its cause too.
    gated: Vec<(Gate, String)>,
    /// The path of the VMI's specification.
    prefix: &'static str,
    behaviour: Behaviour,
}

impl Report {
    /// Runs all rules.
    fn of(workload: &Workload, gates: &FeatureGates, behaviour: Behaviour) -> Self {
        let mut report = Self { causes: Vec::new(), gated: Vec::new(), prefix: workload.field_prefix(), behaviour };
        let spec = &workload.vmi().spec;
        networks::validate(spec, gates, &mut report);
        claims::validate(&spec.resource_claims, &mut report);
        devices::validate(spec, gates, &mut report);
        neighbours::validate(spec, gates, &mut report);
        report
    }

    /// Adds a cause about a gate that is off.
    fn add_gate(&mut self, gate: Gate, field: impl fmt::Display, message: impl Into<String>) {
        self.gated.push((gate, self.field(&field)));
        self.add(CauseType::Invalid, field, message);
    }

    /// Adds a cause about a field below the specification.
    fn add(&mut self, reason: CauseType, field: impl fmt::Display, message: impl Into<String>) {
        self.causes.push(Cause { reason, field: self.field(field), message: message.into() });
    }

    /// The full path of a field.
    fn field(&self, field: impl fmt::Display) -> String {
        format!("{}.{field}", self.prefix)
    }
}

#[cfg(test)]
mod tests;
