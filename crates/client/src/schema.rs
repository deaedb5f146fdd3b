//! The types of `resource.k8s.io/v1` field by field, as in Kubernetes 1.37, with the metadata that all objects share.
//!
//! One table serves all that needs to know the types: the [protobuf](crate::protobuf) codec takes field numbers from it,
//! an API server decodes, completes and prints objects by it, and server-side apply merges by it. Each [`Type`] is a Go
//! struct of `k8s.io/api` and each [`Field`] one line:
//!
//! ```
//! use drakkar_client::schema::{self, Kind, ListType, Presence};
//!
//! let claim = schema::of("resource.k8s.io/v1", "ResourceClaim").unwrap();
//! let devices = claim.at("status.devices").unwrap();
//! assert_eq!(devices.number, 4);
//! assert_eq!(devices.presence, Presence::OmitEmpty);
//! assert_eq!(devices.list_type, ListType::Map(&["driver", "device", "pool", "shareID"]));
//! assert!(matches!(devices.kind, Kind::List(Kind::Object(device)) if device.name == "v1.AllocatedDeviceStatus"));
//! ```
//!
//! v1beta2 has the same types. v1beta1 has another form, see [`crate::to_v1`].

mod claim;
mod class;
mod meta;
mod node_selector;
mod slice;
#[cfg(test)]
mod tests;

pub use claim::*;
pub use class::*;
pub use meta::*;
pub use node_selector::*;
pub use slice::*;

/// A Go struct of the Kubernetes API.
#[derive(Debug)]
#[non_exhaustive]
pub struct Type {
    /// The name in Go, with the package: `v1.Device`.
    pub name: &'static str,
    /// The fields in the order of the Go struct, which is the order of Go's JSON.
    pub fields: &'static [Field],
    /// Whether server-side apply replaces such an object as a whole (`+structType=atomic`).
    pub atomic: bool,
}

/// A field of a [`Type`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Field {
    /// The number in protobuf.
    pub number: u32,
    /// The number of the message that contains the field in protobuf, where Go embeds a struct whose fields JSON has
    /// beside the others.
    pub embedded_in: Option<u32>,
    /// The name in JSON.
    pub name: &'static str,
    /// The name in Go, where it is not the name in JSON with a capital letter.
    pub go_name: Option<&'static str>,
    /// The kind of value.
    pub kind: Kind,
    /// When the field is written.
    pub presence: Presence,
    /// How server-side apply merges a list.
    pub list_type: ListType,
    /// Whether a strategic merge patch merges the list (`patchStrategy:"merge"`) instead of replacing it. It does so by
    /// the first key of [`list_type`](Self::list_type).
    pub patch_merge: bool,
}

/// The kind of value of a field.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A string.
    Text,
    /// A string with a Go type of its own.
    Named(&'static str),
    /// An integer.
    Int,
    /// A boolean.
    Bool,
    /// A [`Quantity`](crate::Quantity).
    Quantity,
    /// A time in whole seconds.
    Time,
    /// Any JSON: `runtime.RawExtension` or `v1.FieldsV1`.
    Raw,
    /// An object.
    Object(&'static Type),
    /// A list of values of one kind.
    List(&'static Kind),
    /// A map: the Go type of its keys, which are strings, and the kind of its values.
    Map(&'static str, &'static Kind),
}

/// When Go writes a field.
///
/// In JSON it depends on all four; in protobuf only on whether the field is a pointer: values are always written, pointers
/// only when they are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A value without `omitempty`: always written. Structs are, with `omitempty` or without it.
    Always,
    /// A value with `omitempty`: written when it is not empty.
    OmitEmpty,
    /// A pointer with `omitempty`: written when it is set, even to an empty value.
    Pointer,
    /// A pointer without `omitempty`: always written, as `null` when it is not set.
    Nullable,
}

/// How server-side apply merges a list (`+listType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType {
    /// The list is replaced as a whole.
    Atomic,
    /// The list is merged; items are identified by their value.
    Set,
    /// The list is merged; items are identified by these fields (`+listMapKey`).
    Map(&'static [&'static str]),
}

impl Type {
    /// Describes a type.
    pub const fn new(name: &'static str, fields: &'static [Field]) -> Self {
        Self { name, fields, atomic: false }
    }

    /// Describes a type whose objects server-side apply replaces as a whole.
    pub const fn atomic(name: &'static str, fields: &'static [Field]) -> Self {
        Self { name, fields, atomic: true }
    }

    /// Returns the field with this name in JSON.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns the field at a path, with dots between the names. The path leads through the items of lists:
    /// `status.devices.conditions`.
    pub fn at(&self, path: &str) -> Option<&'static Field> {
        match path.split_once('.') {
            None => self.field(path),
            Some((name, rest)) => self.field(name)?.kind.item().object()?.at(rest),
        }
    }
}

/// Describes a field by its number in protobuf, its name in JSON, its kind of value and when it is written.
pub const fn field(number: u32, name: &'static str, kind: Kind, presence: Presence) -> Field {
    Field {
        number,
        embedded_in: None,
        name,
        go_name: None,
        kind,
        presence,
        list_type: ListType::Atomic,
        patch_merge: false,
    }
}

impl Field {
    /// Sets the name in Go.
    #[must_use]
    pub const fn go(self, name: &'static str) -> Self {
        Self { go_name: Some(name), ..self }
    }

    /// Sets the number of the message that contains the field in protobuf.
    #[must_use]
    pub const fn embedded_in(self, number: u32) -> Self {
        Self { embedded_in: Some(number), ..self }
    }

    /// Makes server-side apply merge the list by the values of its items.
    #[must_use]
    pub const fn set(self) -> Self {
        Self { list_type: ListType::Set, ..self }
    }

    /// Makes server-side apply merge the list by these fields of its items.
    #[must_use]
    pub const fn keyed(self, keys: &'static [&'static str]) -> Self {
        Self { list_type: ListType::Map(keys), ..self }
    }

    /// Makes a strategic merge patch merge the list.
    #[must_use]
    pub const fn patch_merged(self) -> Self {
        Self { patch_merge: true, ..self }
    }
}

impl Kind {
    /// Returns the type of an object.
    pub const fn object(self) -> Option<&'static Type> {
        match self {
            Self::Object(of) => Some(of),
            _ => None,
        }
    }

    /// Returns the kind of the items of a list or map, and any other kind as it is.
    pub const fn item(self) -> Self {
        match self {
            Self::List(item) | Self::Map(_, item) => *item,
            kind => kind,
        }
    }
}

/// Returns the type of objects of this `apiVersion` and `kind`: those of `resource.k8s.io/v1` and `v1beta2` and lists of
/// them, `Status` and `DeleteOptions`.
pub fn of(api_version: &str, kind: &str) -> Option<&'static Type> {
    match api_version {
        "resource.k8s.io/v1" | "resource.k8s.io/v1beta2" => match kind {
            "ResourceSlice" => Some(&RESOURCE_SLICE),
            "ResourceSliceList" => Some(&RESOURCE_SLICE_LIST),
            "ResourceClaim" => Some(&RESOURCE_CLAIM),
            "ResourceClaimList" => Some(&RESOURCE_CLAIM_LIST),
            "ResourceClaimTemplate" => Some(&RESOURCE_CLAIM_TEMPLATE),
            "ResourceClaimTemplateList" => Some(&RESOURCE_CLAIM_TEMPLATE_LIST),
            "DeviceClass" => Some(&DEVICE_CLASS),
            "DeviceClassList" => Some(&DEVICE_CLASS_LIST),
            "DeleteOptions" => Some(&DELETE_OPTIONS),
            _ => None,
        },
        "v1" if kind == "Status" => Some(&STATUS),
        // Every group has this kind.
        _ if kind == "DeleteOptions" => Some(&DELETE_OPTIONS),
        _ => None,
    }
}

/// Returns all types: those of the kinds that [`of`] knows, and of the objects in them. Each is there once.
pub fn types() -> Vec<&'static Type> {
    fn visit(of: &'static Type, found: &mut Vec<&'static Type>) {
        if !found.iter().any(|other| std::ptr::eq(*other, of)) {
            found.push(of);
            of.fields.iter().filter_map(|field| field.kind.item().object()).for_each(|of| visit(of, found));
        }
    }
    let mut found = Vec::new();
    for of in [
        &RESOURCE_SLICE_LIST,
        &RESOURCE_CLAIM_LIST,
        &RESOURCE_CLAIM_TEMPLATE_LIST,
        &DEVICE_CLASS_LIST,
        &STATUS,
        &DELETE_OPTIONS,
    ] {
        visit(of, &mut found);
    }
    found
}

/// A map of strings to strings.
const TEXTS: Kind = Kind::Map("string", &Kind::Text);
/// A map of capacities to quantities.
const QUANTITIES: Kind = Kind::Map("v1.QualifiedName", &Kind::Quantity);
/// A list of strings.
const TEXT_LIST: Kind = Kind::List(&Kind::Text);
/// The metadata of an object.
const METADATA: Field = field(1, "metadata", Kind::Object(&OBJECT_META), Presence::Always);
/// The metadata of a list.
const LIST_METADATA: Field = field(1, "metadata", Kind::Object(&LIST_META), Presence::Always);
