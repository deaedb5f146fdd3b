//! The types of `resource.k8s.io/v1`, as the server's own code has them: what decoding refuses, and in which form objects
//! are shown in messages and given back.
//!
//! Of the core group only the metadata are described here.

mod complete;
mod decode;
mod show;
mod tables;

pub(crate) use complete::complete;
pub(crate) use decode::decode;
pub(super) use decode::seconds;
pub(super) use show::{show, show_internal};
pub(super) use tables::{
    ALLOCATED_DEVICE_STATUS, CLAIM_TEMPLATE_SPEC, CONSUMER_REFERENCE, COUNTER_CONSUMPTION, COUNTER_SET,
    DEVICE_ATTRIBUTE, DEVICE_REQUEST, DEVICE_SUB_REQUEST, NODE_SELECTOR_TERM, OWNER_REFERENCE, POD_RESOURCE_CLAIM,
};

use super::super::resource::Resource;

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Text,
    /// A text that has a type of its own in the server.
    Named(&'static str),
    Int,
    Bool,
    Quantity,
    Time,
    /// Any JSON.
    Raw,
    Object(&'static Type),
    List(&'static Kind),
    /// A map, and the type of its keys.
    Map(&'static str, &'static Kind),
}

/// When a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// When it is not empty.
    Filled,
    /// When it is there: a pointer.
    Present,
    /// Always.
    Always,
    /// Always, as `null` where it is not there.
    OrNull,
}

/// A field of a type.
#[derive(Debug)]
pub(super) struct Field {
    name: &'static str,
    /// The name in the server's code, where it is not the other with a capital letter.
    internal: Option<&'static str>,
    kind: Kind,
    written: Written,
}

/// A type of objects.
#[derive(Debug)]
pub(super) struct Type {
    name: &'static str,
    fields: &'static [Field],
}

/// The type of a resource, if all of it is known.
fn of(resource: Resource) -> Option<&'static Type> {
    match resource {
        Resource::ResourceClaim => Some(&tables::RESOURCE_CLAIM),
        Resource::ResourceClaimTemplate => Some(&tables::RESOURCE_CLAIM_TEMPLATE),
        Resource::ResourceSlice => Some(&tables::RESOURCE_SLICE),
        Resource::DeviceClass => Some(&tables::DEVICE_CLASS),
        Resource::Node | Resource::Pod | Resource::Namespace | Resource::Event => None,
    }
}
