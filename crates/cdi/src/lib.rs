#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod claim_spec;
mod edits;
mod metadata_spec;
pub mod name;
mod path;
pub mod spec;
pub mod validate;
mod version;

pub use claim_spec::{ClaimDevices, DEVICE_CLASS};
pub use metadata_spec::{METADATA_CLASS, MetadataDevice, MetadataSpecError};
pub use name::{Class, DeviceName, NameError, NameProblem, QualifiedName, Vendor};
pub use path::PathProblem;
pub use spec::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, ParseError, Spec};
pub use validate::{Finding, Level, Problem, ValidationError, validate, validate_edits, validate_strict};
pub use version::{CdiVersion, VersionError};
