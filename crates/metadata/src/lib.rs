#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod attribute;
mod decode;
mod encode;
mod lenient;
mod location;
mod merge;
pub mod name;
mod object_meta;
mod older;
pub mod path;
mod pci;
pub mod read;
pub mod schema;
pub mod show;
mod time;
mod types;
pub mod validate;
mod version;
pub mod well_known;

pub use attribute::{AttributeValue, DeviceAttribute};
pub use decode::{DecodeError, Decoded, Decoder, Format, MAX_DEPTH, MAX_VALUES, Position, decode, decode_as};
pub use encode::{encode, to_go_json};
pub use merge::merge;
pub use object_meta::{FieldsV1, ManagedFieldsEntry, ObjectMeta, OwnerReference};
pub use pci::{PciAddress, PciAddressError};
pub use read::{Query, Reader};
pub use time::{Time, TimeError};
pub use types::{Device, Metadata, NetworkDeviceData, Request};
pub use validate::{FieldError, FieldProblem, ValidationError, validate};
pub use version::{Document, GROUP, KIND, SchemaVersion, Version, VersionError, Versions, v1alpha1, v1beta1};
