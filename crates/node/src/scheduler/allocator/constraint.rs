//! Constraints of claims: attributes whose values devices must share (match), or must not share (distinct).
//!
//! An attribute can have several values: devices match while they have one value in common, and are distinct while they
//! have none.

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::inventory::Candidate;

/// A constraint of a claim.
#[derive(Debug)]
pub(super) struct Constraint<'a> {
    kind: Kind,
    attribute: &'a str,
    /// The requests or subrequests that it applies to; all if empty.
    requests: &'a [String],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Match,
    Distinct,
}

/// A single value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    String(String),
    Version(String),
}

/// The state of a constraint during the search: after each chosen device, the values that all devices have (match) or that
/// any device has (distinct).
#[derive(Debug, Default)]
pub(super) struct Progress(Vec<Vec<Scalar>>);

impl<'a> Constraint<'a> {
    pub(super) fn new(constraint: &'a DeviceConstraint) -> Result<Self, String> {
        let (kind, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (Kind::Match, attribute),
            (None, Some(attribute)) => (Kind::Distinct, attribute),
            (None, None) => return Err("a constraint is of an unsupported kind".to_owned()),
        };
        Ok(Self { kind, attribute, requests: constraint.requests.as_deref().unwrap_or_default() })
    }

    /// Reports whether the constraint applies to a request, or to `request/subrequest`.
    pub(super) fn applies_to(&self, request: &str, alternative: &str) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || name == alternative)
    }

    /// Adds a device, if the constraint allows it.
    pub(super) fn push(&self, progress: &mut Progress, candidate: &Candidate) -> bool {
        let values = values(candidate, self.attribute);
        let next = match (self.kind, progress.0.last()) {
            (_, None) => values,
            (Kind::Match, Some(common)) => values.into_iter().filter(|value| common.contains(value)).collect(),
            (Kind::Distinct, Some(seen)) if values.iter().any(|value| seen.contains(value)) => Vec::new(),
            (Kind::Distinct, Some(seen)) if !values.is_empty() => seen.iter().cloned().chain(values).collect(),
            (Kind::Distinct, Some(_)) => values,
        };
        let allowed = !next.is_empty();
        if allowed {
            progress.0.push(next);
        }
        allowed
    }

    /// Describes the constraint, for messages.
    pub(super) fn text(&self) -> String {
        let attribute = self.attribute;
        match self.kind {
            Kind::Match => format!("the same {attribute}"),
            Kind::Distinct => format!("a different {attribute} each"),
        }
    }
}

impl Progress {
    /// Removes the last device.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }
}

/// Returns the values of an attribute; none if the device does not have it.
fn values(candidate: &Candidate, attribute: &str) -> Vec<Scalar> {
    let attributes = candidate.device.attributes.as_ref();
    let own = attribute.split_once('/').filter(|(domain, _)| *domain == candidate.id.driver());
    let found = attributes
        .and_then(|attributes| attributes.get(attribute).or_else(|| own.and_then(|(_, name)| attributes.get(name))));
    match found {
        Some(DeviceAttribute { string: Some(value), .. }) => vec![Scalar::String(value.clone())],
        Some(DeviceAttribute { int: Some(value), .. }) => vec![Scalar::Int(*value)],
        Some(DeviceAttribute { bool: Some(value), .. }) => vec![Scalar::Bool(*value)],
        Some(DeviceAttribute { version: Some(value), .. }) => vec![Scalar::Version(value.clone())],
        Some(DeviceAttribute { strings: Some(values), .. }) => values.iter().cloned().map(Scalar::String).collect(),
        Some(DeviceAttribute { ints: Some(values), .. }) => values.iter().copied().map(Scalar::Int).collect(),
        Some(DeviceAttribute { bools: Some(values), .. }) => values.iter().copied().map(Scalar::Bool).collect(),
        Some(DeviceAttribute { versions: Some(values), .. }) => values.iter().cloned().map(Scalar::Version).collect(),
        Some(_) | None => Vec::new(),
    }
}
