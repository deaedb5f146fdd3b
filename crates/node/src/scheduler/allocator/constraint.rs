//! Constraints of claims: attributes that devices must share, or must not.
//!
//! An attribute with several values stands for all of them: devices match while they have one value in common, and are
//! distinct while they have none.

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::inventory::Candidate;

/// One constraint of a claim.
#[derive(Debug)]
pub(super) struct Constraint<'a> {
    kind: Kind,
    attribute: &'a str,
    /// Requests, or subrequests, that it is about; all if there are none.
    requests: &'a [String],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Match,
    Distinct,
}

/// A value that attributes can have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    String(String),
    Version(String),
}

/// What the devices chosen so far leave a constraint: after each of them the values that all have (match) or that any has
/// (distinct).
#[derive(Debug, Default)]
pub(super) struct Progress(Vec<Vec<Scalar>>);

impl<'a> Constraint<'a> {
    pub(super) fn new(constraint: &'a DeviceConstraint) -> Result<Self, String> {
        let (kind, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (Kind::Match, attribute),
            (None, Some(attribute)) => (Kind::Distinct, attribute),
            (None, None) => return Err("a constraint is of a kind that is not known here".to_owned()),
        };
        Ok(Self { kind, attribute, requests: constraint.requests.as_deref().unwrap_or_default() })
    }

    /// Whether it is about a request, or about `request/subrequest`.
    pub(super) fn is_about(&self, request: &str, want: &str) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || name == want)
    }

    /// Takes one more device, if the constraint allows it.
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

    /// What it asks, in words.
    pub(super) fn text(&self) -> String {
        let attribute = self.attribute;
        match self.kind {
            Kind::Match => format!("the same {attribute}"),
            Kind::Distinct => format!("each another {attribute}"),
        }
    }
}

impl Progress {
    /// Gives the last device back.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }
}

/// The values of an attribute; none if the device does not have it.
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
