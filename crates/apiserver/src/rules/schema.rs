//! What the server does by the types of objects: it decodes them, completes them, and prints them in error messages.
//!
//! The types are those of [`drakkar_client::schema`]. Objects of the core group have no types here; only what error messages
//! print of them is described.

mod complete;
mod decode;
mod show;

use drakkar_client::schema::Presence::{Always, Pointer};
use drakkar_client::schema::{self, Kind, Type, field};

pub(crate) use complete::complete;
pub(crate) use decode::decode;
pub(super) use decode::seconds;
pub(super) use drakkar_client::schema::{
    ALLOCATED_DEVICE_STATUS, COUNTER_SET, DEVICE_ATTRIBUTE, DEVICE_COUNTER_CONSUMPTION, DEVICE_REQUEST,
    DEVICE_SUB_REQUEST, NODE_SELECTOR_TERM, OWNER_REFERENCE, RESOURCE_CLAIM_CONSUMER_REFERENCE,
    RESOURCE_CLAIM_TEMPLATE_SPEC,
};
pub(super) use show::{show, show_internal};

use super::super::resource::Resource;

/// A reference from a pod to a claim or a template.
pub(super) static POD_RESOURCE_CLAIM: Type = Type::new(
    "v1.PodResourceClaim",
    &[
        field(1, "name", Kind::Text, Always),
        field(3, "resourceClaimName", Kind::Text, Pointer),
        field(4, "resourceClaimTemplateName", Kind::Text, Pointer),
    ],
);

/// Returns the type of a resource; `None` for those of the core group.
pub(crate) fn type_of(resource: Resource) -> Option<&'static Type> {
    schema::of("resource.k8s.io/v1", resource.kind())
}
