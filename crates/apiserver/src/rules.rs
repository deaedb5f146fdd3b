//! Validation, defaulting, dropped fields and authorization: pure functions over JSON objects of version v1.
//!
//! A write passes [`authorize`] (403), then [`decode`] (wrong types: 400), [`default_fields`], [`drop_disabled`],
//! [`validate_create`] or [`validate_update`] together with [`admin_access`] and, for the status of a claim,
//! [`authorize_claim_status`] (all their errors in one response: 422), and [`complete`].
//!
//! Messages and field paths are those of Kubernetes 1.37. The tests replay recorded responses of a real server.

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

#[cfg(test)]
use authorize::authorize_slice;
pub(crate) use authorize::{authorize, authorize_object, authorize_selection, is_allowed};
pub(crate) use claim_access::{admin_access, authorize_claim_status};
pub(crate) use field::FieldError;
pub use gates::{GateError, Gates};
pub use policy::{Policy, Rule, Subject};
pub(crate) use schema::{complete, decode, type_of};

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// The attributes of a request that authorization depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRequest<'a> {
    pub(crate) verb: &'a str,
    pub(crate) resource: Resource,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

/// Applies defaults, and brings quantities into their canonical form.
pub(crate) fn default_fields(resource: Resource, object: &mut Value) {
    defaults::apply(resource, object);
}

/// Removes fields of disabled features that the stored object does not use, the status of a new claim, and the device status
/// of devices that are no longer allocated. The part that the endpoint does not change (spec or status) must be as stored.
pub(crate) fn drop_disabled(resource: Resource, new: &mut Value, old: Option<&Value>, gates: &Gates) {
    dropped::drop_fields(resource, new, old, gates);
}

/// Validates a new object. Its name must be generated already.
pub(crate) fn validate_create(resource: Resource, object: &Value, gates: &Gates) -> Vec<FieldError> {
    let mut errors = Errors::default();
    meta::create(resource, object, &mut errors);
    validate(resource, object, None, gates, &mut errors);
    errors.into_vec()
}

/// Validates an update of an object or of its status.
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
        Resource::Namespace | Resource::ConfigMap | Resource::Service | Resource::Lease => {}
    }
}

/// Returns the warnings about an accepted write, for `Warning` headers with code 299.
pub(crate) fn warnings(resource: Resource, object: &Value) -> Vec<String> {
    let driver = value::at(object, &["spec", "driver"]).and_then(Value::as_str).unwrap_or_default();
    if resource != Resource::ResourceSlice || driver == driver.to_lowercase() {
        return Vec::new();
    }
    let driver = field::quoted(driver);
    vec![format!("spec.driver: driver names should be lowercase; {driver} contains uppercase characters")]
}
