//! Validated CDI names: vendor, class and device, and the qualified name of all three.
//!
//! `new` has the rules of the runtimes, which check patterns but no lengths. `strict` also has those of the CDI
//! specification's text, for names of your own making. No name can be empty, `.` or `..`, or contain a `/`, a space or a
//! control character.
//!
//! | name | first | between | last | strict |
//! |---|---|---|---|---|
//! | [`Vendor`] | letter | letters, digits, `_`, `-`, `.` | letter or digit | a DNS subdomain in lower case, at most 253 bytes |
//! | [`Class`] | letter | letters, digits, `_`, `-`, `.` | letter or digit | at most 63 bytes |
//! | [`DeviceName`] | letter or digit | letters, digits, `_`, `-`, `.`, `:` | letter or digit | the same |

use std::fmt;
use std::str::FromStr;

use drakkar_metadata::name::{DriverName, syntax};
use drakkar_metadata::name_type;

/// An invalid CDI name: its kind, for example `CDI vendor`, the text given and the rule it breaks.
pub type NameError = drakkar_metadata::name::NameError<NameProblem>;

/// The rule that a CDI name breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameProblem {
    /// The name has no characters.
    #[error("must not be empty")]
    Empty,
    /// A vendor or class that starts with a digit, as a Kubernetes driver name may.
    #[error(
        "must start with a letter: Kubernetes lets a driver name start with a digit, but no CDI vendor or class may; choose a name that starts with a letter"
    )]
    FirstDigit,
    /// A vendor or class that starts with neither a letter nor a digit.
    #[error("must start with a letter")]
    FirstLetter,
    /// A device name that starts with neither a letter nor a digit.
    #[error("must start with a letter or digit")]
    First,
    /// The last character is neither a letter nor a digit.
    #[error("must end with a letter or digit")]
    Last,
    /// A character that is not allowed in names.
    #[error("must not have {character:?}: only letters, digits and {allowed}")]
    Character {
        /// The first invalid character.
        character: char,
        /// The allowed characters besides letters and digits.
        allowed: &'static str,
    },
    /// The name has more bytes than the specification allows; runtimes do not check.
    #[error("must be no more than {limit} bytes, has {length}")]
    TooLong {
        /// The maximum length in bytes.
        limit: usize,
        /// The length of the text in bytes.
        length: usize,
    },
    /// A vendor that is not a DNS subdomain in lower case; runtimes do not check.
    #[error(
        "must be lower-case letters, digits, '-' and '.', every part between dots starting and ending with a letter or digit"
    )]
    Subdomain,
    /// Not of the form `vendor/class`.
    #[error("must have the form vendor/class")]
    Kind,
    /// Not of the form `vendor/class=device`.
    #[error("must have the form vendor/class=device")]
    Qualified,
}

type Check = Result<(), NameProblem>;

pub(crate) fn check_vendor(text: &str) -> Check {
    check_qualifier(text)
}

pub(crate) fn check_vendor_strictly(text: &str) -> Check {
    check_vendor(text)?;
    check_length(text, syntax::MAX_DNS_SUBDOMAIN)?;
    if syntax::is_dns_subdomain(text) { Ok(()) } else { Err(NameProblem::Subdomain) }
}

pub(crate) fn check_class(text: &str) -> Check {
    check_qualifier(text)
}

pub(crate) fn check_class_strictly(text: &str) -> Check {
    check_class(text)?;
    check_length(text, 63)
}

pub(crate) fn check_device(text: &str) -> Check {
    let first = text.chars().next().ok_or(NameProblem::Empty)?;
    if !first.is_ascii_alphanumeric() {
        return Err(NameProblem::First);
    }
    check_rest(text, "-_.:", "'-', '_', '.', ':'")
}

fn check_qualifier(text: &str) -> Check {
    match text.chars().next().ok_or(NameProblem::Empty)? {
        first if first.is_ascii_digit() => return Err(NameProblem::FirstDigit),
        first if !first.is_ascii_alphabetic() => return Err(NameProblem::FirstLetter),
        _ => {}
    }
    check_rest(text, "-_.", "'-', '_', '.'")
}

fn check_rest(text: &str, extra: &str, allowed: &'static str) -> Check {
    let is_invalid = |c: &char| !c.is_ascii_alphanumeric() && !extra.contains(*c);
    match text.chars().find(is_invalid) {
        Some(character) => Err(NameProblem::Character { character, allowed }),
        None if text.ends_with(|last: char| last.is_ascii_alphanumeric()) => Ok(()),
        None => Err(NameProblem::Last),
    }
}

fn check_length(text: &str, limit: usize) -> Check {
    if text.len() > limit { Err(NameProblem::TooLong { limit, length: text.len() }) } else { Ok(()) }
}

/// Splits a kind into vendor and class at the first slash, as the runtimes do. Neither may be empty; they are not
/// validated.
pub(crate) fn split_kind(kind: &str) -> Result<(&str, &str), NameProblem> {
    kind.split_once('/').filter(|(vendor, class)| !vendor.is_empty() && !class.is_empty()).ok_or(NameProblem::Kind)
}

name_type! {
    /// The vendor of devices, for example `example.com`; for a DRA driver its own name.
    Vendor, "CDI vendor", NameError, check_vendor
}
name_type! {
    /// The class of devices, for example `gpu`. A dot needs CDI 0.6.0.
    Class, "CDI class", NameError, check_class
}
name_type! {
    /// The name of a device among those of its vendor and class. A leading digit needs CDI 0.5.0.
    DeviceName, "CDI device name", NameError, check_device
}

impl Vendor {
    /// Creates a name that also follows the text of the CDI specification.
    pub fn strict(name: impl AsRef<str>) -> Result<Self, NameError> {
        Self::checked(name.as_ref(), check_vendor_strictly)
    }
}

impl Class {
    /// Creates a name that also follows the text of the CDI specification.
    pub fn strict(name: impl AsRef<str>) -> Result<Self, NameError> {
        Self::checked(name.as_ref(), check_class_strictly)
    }
}

impl DeviceName {
    /// Creates a name that also follows the text of the CDI specification, which has no further rule for devices.
    pub fn strict(name: impl AsRef<str>) -> Result<Self, NameError> {
        Self::new(name)
    }
}

/// Converts a DRA driver's name to a vendor.
///
/// It fails only for a name that starts with a digit. Check that when the driver starts: Kubernetes accepts the name, but
/// every container would fail.
impl TryFrom<&DriverName> for Vendor {
    type Error = NameError;

    fn try_from(driver: &DriverName) -> Result<Self, NameError> {
        Self::new(driver.as_str())
    }
}

/// The qualified name of a device, `vendor/class=device`, as a kubelet passes it to the runtime.
///
/// ```
/// use drakkar_cdi::QualifiedName;
///
/// let gpu: QualifiedName = "example.com/gpu=0".parse()?;
/// assert_eq!((gpu.vendor.as_str(), gpu.class.as_str(), gpu.device.as_str()), ("example.com", "gpu", "0"));
/// assert_eq!(gpu.to_string(), "example.com/gpu=0");
/// # Ok::<(), drakkar_cdi::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    /// The vendor of the device.
    pub vendor: Vendor,
    /// The class of the device.
    pub class: Class,
    /// The name of the device.
    pub device: DeviceName,
}

impl QualifiedName {
    /// Returns `vendor/class`, the `kind` of the device's spec file.
    pub fn kind(&self) -> String {
        [self.vendor.as_str(), "/", self.class.as_str()].concat()
    }
}

impl FromStr for QualifiedName {
    type Err = NameError;

    /// Splits the text at the first `=`, and the part before it at the first `/`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let parts = text.split_once('=').and_then(|(kind, device)| Some((split_kind(kind).ok()?, device)));
        let Some(((vendor, class), device)) = parts else {
            return Err(NameError::new("CDI device", text, NameProblem::Qualified));
        };
        Ok(Self { vendor: vendor.parse()?, class: class.parse()?, device: device.parse()? })
    }
}

impl From<&QualifiedName> for String {
    /// As `to_string`, with one allocation.
    fn from(QualifiedName { vendor, class, device }: &QualifiedName) -> Self {
        [vendor.as_str(), "/", class.as_str(), "=", device.as_str()].concat()
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}={}", self.vendor, self.class, self.device)
    }
}
