//! Validated names: one type for each kind of name that has a format or becomes part of a path.
//!
//! A value of one of these types follows the Kubernetes API's rule for its kind. In particular none of them
//! can be empty, `.` or `..`, or contain a NUL or a `/` (except [`PoolName`], which never becomes part of a path), so a
//! path built from them ([`crate::path`]) stays inside its directory whatever an API object or an annotation contains.
//!
//! [`syntax`] has the rules themselves, for texts that need no type. [`name_type!`] makes types for names with other rules.

mod name_type;
pub mod syntax;

use crate::name_type;

pub use name_type::NameError;

/// The rule that a name breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameProblem {
    /// The name has no characters.
    #[error("must not be empty")]
    Empty,
    /// The name has more bytes than its kind allows.
    #[error("must be no more than {limit} bytes, has {length}")]
    TooLong {
        /// The maximum length in bytes.
        limit: usize,
        /// The length of the text in bytes.
        length: usize,
    },
    /// Not a DNS label (RFC 1123).
    #[error("must be lower-case letters, digits and '-', starting and ending with a letter or digit")]
    Label,
    /// Not a DNS subdomain (RFC 1123).
    #[error(
        "must be lower-case letters, digits, '-' and '.', every part between dots starting and ending with a letter or digit"
    )]
    Subdomain,
    /// Not a DNS subdomain, even with upper case allowed.
    #[error("must be letters, digits, '-' and '.', every part between dots starting and ending with a letter or digit")]
    SubdomainCaseless,
    /// One of the slash-separated parts of a pool name is not a DNS subdomain.
    #[error(
        "part {part} between slashes must be lower-case letters, digits, '-' and '.', starting and ending with a letter or digit"
    )]
    PoolPart {
        /// The index of the first invalid part, counted from 0.
        part: usize,
    },
    /// Not an object UID.
    #[error("must be letters, digits, '-', '_', '.' and ':', starting and ending with a letter or digit")]
    Uid,
}

/// Checks a DNS label of at most 63 bytes.
pub(crate) fn check_label(text: &str) -> Result<(), NameProblem> {
    check_length(text, syntax::MAX_DNS_LABEL)?;
    if syntax::is_dns_label(text) { Ok(()) } else { Err(NameProblem::Label) }
}

/// Checks a DNS subdomain of at most 253 bytes.
pub(crate) fn check_subdomain(text: &str) -> Result<(), NameProblem> {
    check_length(text, syntax::MAX_DNS_SUBDOMAIN)?;
    if syntax::is_dns_subdomain(text) { Ok(()) } else { Err(NameProblem::Subdomain) }
}

/// Checks a driver name: a DNS subdomain of at most 63 bytes, in which the API allows upper case.
pub(crate) fn check_driver(text: &str) -> Result<(), NameProblem> {
    check_length(text, syntax::MAX_DRIVER_NAME)?;
    if syntax::is_dns_subdomain_ignoring_case(text) { Ok(()) } else { Err(NameProblem::SubdomainCaseless) }
}

/// Checks a pool name: DNS subdomains joined with slashes, at most 253 bytes in all.
pub(crate) fn check_pool(text: &str) -> Result<(), NameProblem> {
    check_length(text, syntax::MAX_DNS_SUBDOMAIN)?;
    match text.split('/').position(|part| !syntax::is_dns_subdomain(part)) {
        None => Ok(()),
        Some(part) => Err(NameProblem::PoolPart { part }),
    }
}

/// Checks an object's UID. The API server makes UUIDs; other UIDs pass if they are safe in a CDI device name.
fn check_uid(text: &str) -> Result<(), NameProblem> {
    check_length(text, 128)?;
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    if ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner) { Ok(()) } else { Err(NameProblem::Uid) }
}

fn check_length(text: &str, limit: usize) -> Result<(), NameProblem> {
    match text.len() {
        0 => Err(NameProblem::Empty),
        length if length > limit => Err(NameProblem::TooLong { limit, length }),
        _ => Ok(()),
    }
}

name_type! {
    /// The name of a DRA driver, for example `gpu.example.com`: a DNS subdomain of at most 63 bytes.
    ///
    /// Upper case is allowed, as in the API.
    DriverName, "driver name", NameError, check_driver
}
name_type! {
    /// The name of a resource pool: one or more DNS subdomains joined with slashes, at most 253 bytes.
    PoolName, "pool name", NameError, check_pool
}
name_type! {
    /// The name of a device in its pool: a DNS label.
    DeviceName, "device name", NameError, check_label
}
name_type! {
    /// A Kubernetes namespace: a DNS label.
    Namespace, "namespace", NameError, check_label
}
name_type! {
    /// The name of a `ResourceClaim` object: a DNS subdomain.
    ClaimName, "claim name", NameError, check_subdomain
}
name_type! {
    /// The name of an entry of `pod.spec.resourceClaims`: a DNS label.
    PodClaimName, "pod claim name", NameError, check_label
}
name_type! {
    /// The name of a request in a claim, without a subrequest: a DNS label.
    RequestName, "request name", NameError, check_label
}
name_type! {
    /// The UID of a `ResourceClaim` object, with only characters that are safe in file names and CDI device names.
    ClaimUid, "claim UID", NameError, check_uid
}
