//! Validated names: one type for each kind of name that has a format or becomes part of a path.
//!
//! A value of one of these types follows the Kubernetes API's rule for its kind. In particular none of them
//! can be empty, `.` or `..`, or contain a NUL or a `/` (except [`PoolName`], which never becomes part of a path), so a
//! path built from them ([`crate::path`]) stays inside its directory whatever an API object or an annotation contains.
//!
//! [`syntax`] has the rules themselves, for texts that need no type.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use crate::show::Quoted;

pub mod syntax;

/// An invalid name: its kind, the text given and the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value}: {problem}", value = Quoted(.value))]
pub struct NameError {
    kind: &'static str,
    value: String,
    problem: NameProblem,
}

impl NameError {
    /// Returns the kind of name, for example `driver name`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the invalid text.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the rule that the text breaks.
    pub fn problem(&self) -> NameProblem {
        self.problem
    }
}

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

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Creates a name from a text that follows the rule of its kind.
            pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
                let value = name.into();
                match $check(&value) {
                    Ok(()) => Ok(Self(value)),
                    Err(problem) => Err(NameError { kind: $kind, value, problem }),
                }
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(name: String) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }
    };
}

name_type! {
    /// The name of a DRA driver, for example `gpu.example.com`: a DNS subdomain of at most 63 bytes.
    ///
    /// Upper case is allowed, as in the API.
    DriverName, "driver name", check_driver
}
name_type! {
    /// The name of a resource pool: one or more DNS subdomains joined with slashes, at most 253 bytes.
    PoolName, "pool name", check_pool
}
name_type! {
    /// The name of a device in its pool: a DNS label.
    DeviceName, "device name", check_label
}
name_type! {
    /// A Kubernetes namespace: a DNS label.
    Namespace, "namespace", check_label
}
name_type! {
    /// The name of a `ResourceClaim` object: a DNS subdomain.
    ClaimName, "claim name", check_subdomain
}
name_type! {
    /// The name of an entry of `pod.spec.resourceClaims`: a DNS label.
    PodClaimName, "pod claim name", check_label
}
name_type! {
    /// The name of a request in a claim, without a subrequest: a DNS label.
    RequestName, "request name", check_label
}
name_type! {
    /// The UID of a `ResourceClaim` object, with only characters that are safe in file names and CDI device names.
    ClaimUid, "claim UID", check_uid
}
