//! What the API server refuses, drops and fills in: pure functions over JSON objects of version v1.
//!
//! A write goes through them in this order: [`decode`] (wrong types: 400), [`default_fields`], [`drop_disabled`],
//! [`validate_create`] or [`validate_update`] together with [`admin_access`] and, for a claim's status,
//! [`authorize_claim_status`] (all their errors in one answer: 422), and [`complete`]. Before any of it comes [`authorize`]
//! (403).
//!
//! The words and the field paths are those of Kubernetes 1.37, against which they are tested.

mod address;
mod authorize;
mod cel;
mod claim;
mod claim_access;
mod class;
mod defaults;
mod dropped;
mod field;
mod formats;
mod gates;
mod meta;
mod names;
mod node;
mod node_selector;
mod pod;
mod policy;
mod quantity;
mod schema;
mod slice;
mod template;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;

use serde_json::Value;

use super::resource::Resource;
use field::Errors;

pub(crate) use field::FieldError;
pub use gates::{GateError, Gates};
pub use policy::{Policy, Rule, Subject};
pub(crate) use schema::{complete, decode, type_of};

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// What a request wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) verb: &'a str,
    pub(crate) resource: Resource,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

/// Fills in what a client left out, and brings quantities into the form in which they are kept.
pub(crate) fn default_fields(resource: Resource, object: &mut Value) {
    defaults::fill_in(resource, object);
}

/// Takes out fields of features that are off and that the stored object does not have; of a new claim, its status; and of
/// the status of a claim what is said about devices that it has no more. What an endpoint does not change (spec or status)
/// must be as it is stored.
pub(crate) fn drop_disabled(resource: Resource, new: &mut Value, old: Option<&Value>, gates: &Gates) {
    dropped::drop_fields(resource, new, old, gates);
}

/// What is wrong with a new object, which has its name already.
pub(crate) fn validate_create(resource: Resource, object: &Value, gates: &Gates) -> Vec<FieldError> {
    let mut errors = Errors::default();
    meta::create(resource, object, &mut errors);
    validate(resource, object, None, gates, &mut errors);
    errors.into_vec()
}

/// What is wrong with a change of an object, or of its status.
pub(crate) fn validate_update(
    resource: Resource,
    status: bool,
    new: &Value,
    old: &Value,
    gates: &Gates,
) -> Vec<FieldError> {
    let mut errors = Errors::default();
    meta::update(new, old, &mut errors);
    match (resource, status) {
        (Resource::ResourceClaim, true) => claim::validate_status(new, old, &mut errors),
        (Resource::ResourceClaim, false) => claim::update(new, old, &mut errors),
        (Resource::Pod, true) => pod::validate_status(new, &mut errors),
        _ => validate(resource, new, Some(old), gates, &mut errors),
    }
    errors.into_vec()
}

fn validate(resource: Resource, new: &Value, old: Option<&Value>, gates: &Gates, errors: &mut Errors) {
    match resource {
        Resource::ResourceSlice => slice::validate(new, old, gates, errors),
        Resource::ResourceClaim => claim::create(new, gates, errors),
        Resource::ResourceClaimTemplate => {
            template::validate(new, gates, errors);
            if let Some(old) = old {
                template::update(new, old, errors);
            }
        }
        Resource::DeviceClass => class::validate(new, errors),
        Resource::Pod => {
            pod::validate(new, errors);
            if let Some(old) = old {
                pod::update(new, old, errors);
            }
        }
        Resource::Node => node::validate(new, errors),
        Resource::Event => node::validate_event(new, errors),
        Resource::Namespace => {}
    }
}

/// Whether a user may do something; else the message of the answer 403.
pub(crate) fn authorize(user: &User, attempt: &Attempt<'_>, policy: &Policy) -> Result<(), String> {
    authorize::authorize(user, attempt, policy)
}

/// Whether a user may list, watch or delete the objects that a field selector for `spec.nodeName` leaves; else the message
/// of the answer 403. To be asked after [`authorize`].
pub(crate) fn authorize_selection(
    user: &User,
    attempt: &Attempt<'_>,
    node_name: Option<&str>,
    policy: &Policy,
) -> Result<(), String> {
    authorize::authorize_selection(user, attempt, node_name, policy)
}

/// Whether a user may change what is changed of a claim's status: the allocation and who uses it, and what is said about the
/// devices of each driver. The verb is that of the request, `update` or `patch`.
pub(crate) fn authorize_claim_status(
    user: &User,
    verb: &str,
    new: &Value,
    old: &Value,
    policy: &Policy,
    gates: &Gates,
) -> Vec<FieldError> {
    let mut errors = Errors::default();
    claim_access::authorize_status(user, verb, new, old, policy, gates, &mut errors);
    errors.into_vec()
}

/// Whether a user may have to do with a slice: nodes only with their own. The object is the new one for `create`, and else
/// the stored one.
#[cfg(test)]
pub(crate) fn authorize_slice(user: &User, verb: &str, object: &Value) -> Result<(), String> {
    authorize::authorize_slice(user, verb, object)
}

/// Whether a user may have to do with an object: nodes only with themselves, their slices and their pods. The object is the
/// new one for `create`, and else the stored one.
pub(crate) fn authorize_object(
    user: &User,
    resource: Resource,
    subresource: Option<&str>,
    verb: &str,
    object: &Value,
) -> Result<(), String> {
    authorize::authorize_object(user, resource, subresource, verb, object)
}

/// What the server says about a write that it accepts: a `Warning` header of code 299 for each.
pub(crate) fn warnings(resource: Resource, object: &Value) -> Vec<String> {
    let driver = value::at(object, &["spec", "driver"]).and_then(Value::as_str).unwrap_or_default();
    if resource != Resource::ResourceSlice || driver == driver.to_lowercase() {
        return Vec::new();
    }
    let driver = field::quoted(driver);
    vec![format!("spec.driver: driver names should be lowercase; {driver} contains uppercase characters")]
}

/// Whether a claim (when it is created, or its status changed) or a template (when it is created) may have the admin access
/// that it asks for in its namespace.
pub(crate) fn admin_access(resource: Resource, new: &Value, old: Option<&Value>, namespace: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    claim_access::admin_access(resource, new, old, namespace, &mut errors);
    errors.into_vec()
}
