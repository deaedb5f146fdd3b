//! Validates CDI specs and reports all errors at once, each with its field.
//!
//! There are two levels. [`Level::Runtime`] has the rules that containerd and CRI-O enforce when they load a file: they
//! ignore a file that breaks one, with all its devices. They are those of the newest release of the Go library that both
//! use. [`Level::Strict`] has rules for files of your own, for values that runtimes accept but that fail later: a mount
//! without `bind`, a relative path, a version higher than the content needs.
//!
//! Nothing on disk is checked: that a mount's source exists, that no other file defines the same device, that the runtime
//! may read the file.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use drakkar_metadata::name::syntax;
use drakkar_metadata::show::Quoted;

use crate::name::{self, NameProblem};
use crate::path::{self, PathProblem};
use crate::spec::{ContainerEdits, Spec};
use crate::version::{CdiVersion, VersionError};

mod edits;

pub use edits::HOOK_NAMES;

/// The maximum size of the keys and values of a set of annotations in bytes.
pub const MAX_ANNOTATIONS: usize = 256 * 1024;
/// The maximum length of a class of service in bytes.
pub const MAX_CLOS_ID: usize = 4095;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Container runtimes refuse the whole file.
    Runtime,
    /// Runtimes accept it, but a file of your own should not have it.
    Strict,
}

/// A field whose value breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The path of the field, for example `devices[0].containerEdits.mounts[1].hostPath`.
    pub field: String,
    /// The severity.
    pub level: Level,
    /// The rule that it breaks.
    pub problem: Problem,
}

/// The rule that a value breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The version is unknown.
    #[error("{0}")]
    UnknownVersion(VersionError),
    /// The version is lower than the content needs.
    #[error("version {declared} is too low: the content needs {minimum}")]
    VersionTooLow {
        /// The declared version.
        declared: CdiVersion,
        /// The minimum version.
        minimum: CdiVersion,
    },
    /// The version is higher than the content needs, so that older runtimes refuse the file.
    #[error("version {declared} is higher than needed: {minimum} suffices, and older runtimes know it")]
    VersionTooHigh {
        /// The declared version.
        declared: CdiVersion,
        /// The minimum version.
        minimum: CdiVersion,
    },
    /// The version has a leading `v`.
    #[error("version must be written without the leading 'v'")]
    VersionPrefix,
    /// A name is invalid.
    #[error("{} is not valid: {problem}", Quoted(.value))]
    Name {
        /// The name.
        value: String,
        /// The rule that it breaks.
        problem: NameProblem,
    },
    /// There are no devices.
    #[error("at least one device is required")]
    NoDevices,
    /// A device has no edits.
    #[error("a device must have at least one edit")]
    NoEdits,
    /// A required value is missing.
    #[error("required value is missing")]
    Required,
    /// A value that must be unique is repeated.
    #[error("{} is a duplicate", Quoted(.0))]
    Duplicate(String),
    /// A text is not an environment variable.
    #[error("{} is not valid: must have the form NAME=value", Quoted(.0))]
    Env(String),
    /// A value is not one of the allowed values.
    #[error("{} is not valid: must be one of {}", Quoted(.value), .allowed.join(", "))]
    NotSupported {
        /// The value.
        value: String,
        /// The allowed values.
        allowed: &'static [&'static str],
    },
    /// Permissions other than `r`, `w` and `m`.
    #[error("{} is not valid: must be made of 'r', 'w' and 'm'", Quoted(.0))]
    Permissions(String),
    /// The permissions are `none`, which runtimes with a CDI library before 1.1.1 refuse.
    #[error("\"none\" is refused by runtimes with a CDI library before 1.1.1")]
    NoPermissions,
    /// A text is not a class of service.
    #[error("{} is not valid: must be a file name of at most {MAX_CLOS_ID} bytes, or \"/\"", Quoted(.0))]
    ClosId(String),
    /// A field that CDI 1.1.0 removed.
    #[error("removed in CDI 1.1.0: newer runtimes refuse a file that has it; use enableMonitoring")]
    Removed,
    /// A character for which runtimes refuse the file, because they parse JSON as YAML.
    #[error("must not have {0:?}: runtimes cannot parse a file with it")]
    Unreadable(char),
    /// A character that runtimes parse as a space, because they parse JSON as YAML.
    #[error("must not have {0:?}: runtimes parse it as a space")]
    Folded(char),
    /// A path that runtimes resolve differently.
    #[error("{} is not valid: {problem}", Quoted(.value))]
    Path {
        /// The path.
        value: String,
        /// The rule that it breaks.
        problem: PathProblem,
    },
    /// A mount has neither `bind` nor `rbind`, so that the runtime would mount a new file system.
    #[error("must have \"bind\" or \"rbind\": runtimes do not add it, and without it the mount fails")]
    NoBind,
    /// A timeout is not positive.
    #[error("{0} is not valid: must be greater than zero")]
    Timeout(i64),
    /// A key is not valid for a Kubernetes annotation.
    #[error(
        "{} is not valid: must be a name of letters, digits, '-', '_' and '.', at most 63, with or without a DNS subdomain and '/' before it",
        Quoted(.0)
    )]
    AnnotationKey(String),
    /// Annotations are too large in total.
    #[error("too long: {0} bytes in total, at most {MAX_ANNOTATIONS} are allowed")]
    Annotations(usize),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// The findings of a validation; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError(Vec<Finding>);

impl ValidationError {
    /// Returns the findings: version and kind first, then in the order of the file.
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ValidationError {}

/// Validates a spec by the rules of container runtimes: whether they would load the file.
///
/// ```
/// use drakkar_cdi::{Device, Spec, validate};
///
/// let spec = Spec {
///     cdi_version: "0.3.0".into(),
///     kind: "example.com/gpu".into(),
///     devices: vec![Device { name: "0".into(), ..Device::default() }],
///     ..Spec::default()
/// };
/// let error = validate(&spec).unwrap_err();
/// assert_eq!(error.findings().len(), 2);
/// assert_eq!(error.findings()[0].to_string(), "cdiVersion: version 0.3.0 is too low: the content needs 0.5.0");
/// assert_eq!(error.findings()[1].field, "devices[0].containerEdits");
/// ```
pub fn validate(spec: &Spec) -> Result<(), ValidationError> {
    result(findings(spec).into_iter().filter(|finding| finding.level == Level::Runtime).collect())
}

/// Validates a spec by the rules of container runtimes and the strict rules for files of your own.
pub fn validate_strict(spec: &Spec) -> Result<(), ValidationError> {
    result(findings(spec))
}

/// Validates the edits of one device by the rules of container runtimes and the strict rules. Fields have paths like
/// `containerEdits.mounts[0].hostPath`. Edits that are empty are valid.
pub fn validate_edits(edits: &ContainerEdits) -> Result<(), ValidationError> {
    let mut findings = Findings::default();
    edits::check("containerEdits", edits, &mut findings);
    result(findings.0)
}

fn result(findings: Vec<Finding>) -> Result<(), ValidationError> {
    if findings.is_empty() { Ok(()) } else { Err(ValidationError(findings)) }
}

fn findings(spec: &Spec) -> Vec<Finding> {
    let mut findings = Findings::default();
    version(spec, &mut findings);
    kind(&spec.kind, &mut findings);
    annotations("annotations", &spec.annotations, &mut findings);
    devices(spec, &mut findings);
    edits::check("containerEdits", &spec.container_edits, &mut findings);
    findings.0
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn runtime(&mut self, field: impl Into<String>, problem: Problem) {
        self.0.push(Finding { field: field.into(), level: Level::Runtime, problem });
    }

    fn strict(&mut self, field: impl Into<String>, problem: Problem) {
        self.0.push(Finding { field: field.into(), level: Level::Strict, problem });
    }

    fn name(&mut self, field: &str, value: &str, check: NameCheck, strictly: NameCheck) {
        let named = |problem| Problem::Name { value: value.to_owned(), problem };
        match (check(value), strictly(value)) {
            (Err(problem), _) => self.runtime(field, named(problem)),
            (Ok(()), Err(problem)) => self.strict(field, named(problem)),
            (Ok(()), Ok(())) => {}
        }
    }

    /// Checks a text that is required.
    fn required(&mut self, field: &str, value: &str) {
        if value.is_empty() {
            self.runtime(field, Problem::Required);
        }
        self.text(field, value);
    }

    /// Checks a path that is required, and strictly also its form.
    fn path(&mut self, field: &str, value: &str, check: fn(&str) -> Result<(), PathProblem>) {
        self.required(field, value);
        if !value.is_empty()
            && let Err(problem) = check(value)
        {
            self.strict(field, Problem::Path { value: value.to_owned(), problem });
        }
    }

    /// Checks a text for characters that a runtime's parser refuses or changes.
    fn text(&mut self, field: &str, value: &str) {
        if let Some(c) = value.chars().find(|c| path::is_unreadable(*c)) {
            self.runtime(field, Problem::Unreadable(c));
        }
        if value.contains('\u{85}') {
            self.strict(field, Problem::Folded('\u{85}'));
        }
    }

    fn texts(&mut self, field: &str, values: &[String]) {
        for (index, value) in values.iter().enumerate() {
            self.text(&format!("{field}[{index}]"), value);
        }
    }

    fn unique<'a>(&mut self, field: &str, level: Level, value: &'a str, seen: &mut HashSet<&'a str>) {
        if !seen.insert(value) {
            self.0.push(Finding { field: field.to_owned(), level, problem: Problem::Duplicate(value.to_owned()) });
        }
    }
}

type NameCheck = fn(&str) -> Result<(), NameProblem>;

fn version(spec: &Spec, findings: &mut Findings) {
    const FIELD: &str = "cdiVersion";
    let minimum = spec.minimum_version();
    match spec.version() {
        Err(error) => findings.runtime(FIELD, Problem::UnknownVersion(error)),
        Ok(declared) if declared < minimum => findings.runtime(FIELD, Problem::VersionTooLow { declared, minimum }),
        Ok(declared) if declared > minimum => findings.strict(FIELD, Problem::VersionTooHigh { declared, minimum }),
        Ok(_) => {}
    }
    if spec.cdi_version.starts_with('v') {
        findings.strict(FIELD, Problem::VersionPrefix);
    }
}

fn kind(kind: &str, findings: &mut Findings) {
    match name::split_kind(kind) {
        Err(problem) => findings.runtime("kind", Problem::Name { value: kind.to_owned(), problem }),
        Ok((vendor, class)) => {
            findings.name("kind", vendor, name::check_vendor, name::check_vendor_strictly);
            findings.name("kind", class, name::check_class, name::check_class_strictly);
        }
    }
}

fn devices(spec: &Spec, findings: &mut Findings) {
    if spec.devices.is_empty() {
        findings.runtime("devices", Problem::NoDevices);
    }
    let mut seen = HashSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        let path = format!("devices[{index}]");
        let name = format!("{path}.name");
        findings.name(&name, &device.name, name::check_device, name::check_device);
        findings.unique(&name, Level::Runtime, &device.name, &mut seen);
        annotations(&format!("{path}.annotations"), &device.annotations, findings);
        let path = format!("{path}.containerEdits");
        if device.container_edits.is_empty() {
            findings.runtime(path, Problem::NoEdits);
        } else {
            edits::check(&path, &device.container_edits, findings);
        }
    }
}

/// Checks annotations by Kubernetes' rules, which the CDI library has but in effect does not apply.
fn annotations(path: &str, annotations: &BTreeMap<String, String>, findings: &mut Findings) {
    for (key, value) in annotations {
        let field = format!("{path}[{key}]");
        if !is_annotation_key(key) {
            findings.strict(&field, Problem::AnnotationKey(key.clone()));
        }
        findings.text(&field, key);
        findings.text(&field, value);
    }
    let size = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        findings.strict(path, Problem::Annotations(size));
    }
}

fn is_annotation_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_prefix =
        |text: &str| text.len() <= syntax::MAX_DNS_SUBDOMAIN && syntax::is_dns_subdomain_ignoring_case(text);
    prefix.is_none_or(is_prefix) && name.len() <= syntax::MAX_LABEL_VALUE && syntax::is_label_name(name)
}
