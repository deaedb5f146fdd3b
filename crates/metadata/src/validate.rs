//! Validates the values of a metadata document.
//!
//! Decoding and encoding do not validate, so that a reader can use an invalid document and also report its errors. The
//! rules, their limits and the field paths are those of the Go types. All errors are reported at once.

use std::collections::HashSet;
use std::fmt;

use crate::attribute::DeviceAttribute;
use crate::name::{self, NameProblem};
use crate::object_meta::ObjectMeta;
use crate::show::{Printable, Quoted};
use crate::types::{Device, Metadata, NetworkDeviceData};

/// The maximum number of attributes of a device.
pub const MAX_ATTRIBUTES: usize = 32;
/// The maximum length of an element of a `strings` list in bytes.
pub const MAX_LIST_STRING: usize = 64;
/// The maximum length of an interface name in bytes.
pub const MAX_INTERFACE_NAME: usize = 256;
/// The maximum number of addresses of a device.
pub const MAX_IPS: usize = 16;
/// The maximum length of a hardware address in bytes.
pub const MAX_HARDWARE_ADDRESS: usize = 128;

/// The maximum number of errors that are reported one by one.
pub const MAX_ERRORS: usize = 100;

/// A field whose value breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field, for example `requests[0].devices[1].attributes[model]`.
    pub field: String,
    /// The rule that it breaks.
    pub problem: FieldProblem,
}

/// The rule that a value breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    /// A required value is missing.
    #[error("required value is missing")]
    Required,
    /// A name is invalid.
    #[error("{} is not valid: {problem}", Quoted(.value))]
    Name {
        /// The name.
        value: String,
        /// The rule that it breaks.
        problem: NameProblem,
    },
    /// A value is too long.
    #[error("too long: {length} bytes, at most {limit} are allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// A list or map has too many entries.
    #[error("too many: {count}, at most {limit} are allowed")]
    TooMany {
        /// The number of entries.
        count: usize,
        /// The maximum number of entries.
        limit: usize,
    },
    /// A list of unique values has a value twice.
    #[error("{} is a duplicate", Quoted(.0))]
    Duplicate(String),
    /// A number is negative.
    #[error("{0} is not valid: must not be negative")]
    Negative(i64),
    /// A value is not one of the allowed values.
    #[error("{} is not valid: must be one of {}", Quoted(.value), .allowed.join(", "))]
    NotSupported {
        /// The value.
        value: String,
        /// The allowed values.
        allowed: &'static [&'static str],
    },
    /// An attribute has no value.
    #[error("has no value: exactly one of int, bool, string, version, ints, bools, strings, versions must be set")]
    NoValue,
    /// An attribute has several values.
    #[error("has {} values ({}): exactly one must be set", .0.len(), .0.join(", "))]
    SeveralValues(Vec<&'static str>),
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// The errors of a document; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError {
    errors: Vec<FieldError>,
    omitted: usize,
}

impl ValidationError {
    /// Returns the first [`MAX_ERRORS`] errors, in the order of the document.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// Returns the number of further errors.
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        if self.omitted > 0 {
            write!(f, "; and {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl std::error::Error for ValidationError {}

/// Validates metadata against every rule of the schema and returns all errors.
///
/// ```
/// use drakkar_metadata::{Metadata, Request, validate};
///
/// let metadata = Metadata {
///     pod_claim_name: Some("GPU".into()),
///     requests: vec![Request::default()],
///     ..Metadata::default()
/// };
/// let error = validate(&metadata).unwrap_err();
/// assert_eq!(error.errors().len(), 2);
/// assert_eq!(error.errors()[0].field, "podClaimName");
/// assert_eq!(error.errors()[1].to_string(), "requests[0].name: required value is missing");
/// ```
pub fn validate(metadata: &Metadata) -> Result<(), ValidationError> {
    let mut errors = Errors::default();
    object_meta(&metadata.metadata, &mut errors);
    if let Some(name) = &metadata.pod_claim_name {
        errors.name("podClaimName", name, name::check_label);
    }
    for (index, request) in metadata.requests.iter().enumerate() {
        let path = format_args!("requests[{index}]");
        errors.required(format_args!("{path}.name"), &request.name);
        for (index, one) in request.devices.iter().enumerate() {
            device(format_args!("{path}.devices[{index}]"), one, &mut errors);
        }
    }
    let Errors { errors, omitted } = errors;
    if errors.is_empty() { Ok(()) } else { Err(ValidationError { errors, omitted }) }
}

/// The errors found so far. Paths are formatted only for errors, because most documents are valid.
#[derive(Default)]
struct Errors {
    errors: Vec<FieldError>,
    omitted: usize,
}

impl Errors {
    fn push(&mut self, field: impl fmt::Display, problem: FieldProblem) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError { field: field.to_string(), problem });
        } else {
            self.omitted += 1;
        }
    }

    fn required(&mut self, field: impl fmt::Display, value: &str) {
        if value.is_empty() {
            self.push(field, FieldProblem::Required);
        }
    }

    fn name(&mut self, field: impl fmt::Display, value: &str, check: fn(&str) -> Result<(), NameProblem>) {
        if let Err(problem) = check(value) {
            self.push(field, FieldProblem::Name { value: value.to_owned(), problem });
        }
    }

    fn required_name(&mut self, field: impl fmt::Display, value: &str, check: fn(&str) -> Result<(), NameProblem>) {
        if value.is_empty() {
            self.push(field, FieldProblem::Required);
        } else {
            self.name(field, value, check);
        }
    }

    fn length(&mut self, field: impl fmt::Display, value: &str, limit: usize) {
        if value.len() > limit {
            self.push(field, FieldProblem::TooLong { length: value.len(), limit });
        }
    }
}

fn object_meta(meta: &ObjectMeta, errors: &mut Errors) {
    if meta.generation < 0 {
        errors.push("metadata.generation", FieldProblem::Negative(meta.generation));
    }
    for (index, owner) in meta.owner_references.iter().enumerate() {
        let path = format_args!("metadata.ownerReferences[{index}]");
        errors.required(format_args!("{path}.apiVersion"), &owner.api_version);
        errors.required(format_args!("{path}.kind"), &owner.kind);
        errors.required(format_args!("{path}.name"), &owner.name);
        errors.required(format_args!("{path}.uid"), &owner.uid);
    }
    const OPERATIONS: &[&str] = &["Apply", "Update"];
    for (index, entry) in meta.managed_fields.iter().enumerate() {
        let field = format_args!("metadata.managedFields[{index}].operation");
        if entry.operation.is_empty() {
            errors.push(field, FieldProblem::Required);
        } else if !OPERATIONS.contains(&entry.operation.as_str()) {
            errors.push(field, FieldProblem::NotSupported { value: entry.operation.clone(), allowed: OPERATIONS });
        }
    }
}

fn device(path: fmt::Arguments<'_>, device: &Device, errors: &mut Errors) {
    errors.required_name(format_args!("{path}.driver"), &device.driver, name::check_driver);
    errors.required_name(format_args!("{path}.pool"), &device.pool, name::check_pool);
    errors.required_name(format_args!("{path}.name"), &device.name, name::check_label);
    let attributes = format_args!("{path}.attributes");
    if device.attributes.len() > MAX_ATTRIBUTES {
        let count = device.attributes.len();
        errors.push(attributes, FieldProblem::TooMany { count, limit: MAX_ATTRIBUTES });
    } else {
        for (name, value) in &device.attributes {
            attribute(format_args!("{attributes}[{}]", Printable::cut(name)), value, errors);
        }
    }
    if let Some(data) = &device.network_data {
        network_data(format_args!("{path}.networkData"), data, errors);
    }
}

fn attribute(path: fmt::Arguments<'_>, attribute: &DeviceAttribute, errors: &mut Errors) {
    match attribute.set_values().count() {
        0 => errors.push(path, FieldProblem::NoValue),
        1 => {}
        _ => {
            let kinds = attribute.set_values().map(|value| value.kind()).collect();
            errors.push(path, FieldProblem::SeveralValues(kinds));
        }
    }
    for (index, text) in attribute.strings.iter().enumerate() {
        errors.length(format_args!("{path}.strings[{index}]"), text, MAX_LIST_STRING);
    }
}

fn network_data(path: fmt::Arguments<'_>, data: &NetworkDeviceData, errors: &mut Errors) {
    errors.length(format_args!("{path}.interfaceName"), &data.interface_name, MAX_INTERFACE_NAME);
    if data.ips.len() > MAX_IPS {
        errors.push(format_args!("{path}.ips"), FieldProblem::TooMany { count: data.ips.len(), limit: MAX_IPS });
    } else {
        let mut seen = HashSet::new();
        for (index, ip) in data.ips.iter().enumerate() {
            if !seen.insert(ip) {
                errors.push(format_args!("{path}.ips[{index}]"), FieldProblem::Duplicate(ip.clone()));
            }
        }
    }
    errors.length(format_args!("{path}.hardwareAddress"), &data.hardware_address, MAX_HARDWARE_ADDRESS);
}
