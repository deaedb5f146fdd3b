//! Validation: what is wrong with a spec, all of it at once, each with its place.
//!
//! There are two levels. [`Level::Runtime`] is what containerd and CRI-O enforce when they load a file: one finding
//! and none of the file's devices exist. The measure is the newest release of the Go library that they share.
//! [`Level::Strict`] is what we demand of files that we write ourselves, because runtimes let it pass and something
//! fails later, or somewhere else: a mount without `bind`, a relative path, a version higher than the content needs.
//!
//! Whatever needs a look at the disk is left to whoever writes there: that a mount's source exists, that no other
//! file defines the same device, that the runtime may read the file.

mod edits;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use drakkar_metadata::name::syntax;
use drakkar_metadata::show::Quoted;

use crate::name::{self, NameProblem};
use crate::path::{self, PathProblem};
use crate::spec::Spec;
use crate::version::{CdiVersion, VersionError};

pub use edits::HOOK_NAMES;

/// How many bytes the keys and values of a set of annotations may have.
pub const MAX_ANNOTATIONS: usize = 256 * 1024;
/// How many bytes a class of service may have at most.
pub const MAX_CLOS_ID: usize = 4095;

/// Who objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Container runtimes refuse the whole file.
    Runtime,
    /// Runtimes let it pass; a file of our own must not have it.
    Strict,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where: `devices[0].containerEdits.mounts[1].hostPath`.
    pub field: String,
    /// Who objects.
    pub level: Level,
    /// To what.
    pub problem: Problem,
}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A version that CDI has not had.
    #[error("{0}")]
    UnknownVersion(VersionError),
    /// A version lower than the content needs.
    #[error("version {declared} is too low: the content needs {minimum}")]
    VersionTooLow {
        /// What the file declares.
        declared: CdiVersion,
        /// What it has to declare.
        minimum: CdiVersion,
    },
    /// A version higher than the content needs, which keeps older runtimes from reading the file.
    #[error("version {declared} is higher than needed: {minimum} does, and older runtimes know it")]
    VersionTooHigh {
        /// What the file declares.
        declared: CdiVersion,
        /// What is enough.
        minimum: CdiVersion,
    },
    /// A version with a `v` in front.
    #[error("version must be written without the leading 'v'")]
    VersionPrefix,
    /// A name that does not follow its rule.
    #[error("{} is not valid: {problem}", Quoted(.value))]
    Name {
        /// The name.
        value: String,
        /// Its rule.
        problem: NameProblem,
    },
    /// No devices.
    #[error("at least one device is required")]
    NoDevices,
    /// A device that changes nothing.
    #[error("a device must have at least one edit")]
    NoEdits,
    /// Nothing is there, but something must be.
    #[error("required value is missing")]
    Required,
    /// The same value twice where all must differ.
    #[error("{} is there already", Quoted(.0))]
    Duplicate(String),
    /// Not an environment variable.
    #[error("{} is not valid: must have the form NAME=value", Quoted(.0))]
    Env(String),
    /// A value that is not one of those allowed.
    #[error("{} is not valid: must be one of {}", Quoted(.value), .allowed.join(", "))]
    NotSupported {
        /// The value.
        value: String,
        /// What is allowed.
        allowed: &'static [&'static str],
    },
    /// Permissions other than reading, writing and making nodes.
    #[error("{} is not valid: must be made of 'r', 'w' and 'm'", Quoted(.0))]
    Permissions(String),
    /// The word `none`, which runtimes before CDI library 1.1.1 refuse.
    #[error("\"none\" is refused by runtimes with a CDI library before 1.1.1")]
    NoPermissions,
    /// Not a class of service.
    #[error("{} is not valid: must be a file name of at most {MAX_CLOS_ID} bytes, or \"/\"", Quoted(.0))]
    ClosId(String),
    /// A field that CDI 1.1.0 dropped.
    #[error("dropped in CDI 1.1.0: newer runtimes refuse a file that has it; use enableMonitoring")]
    Dropped,
    /// A character for which runtimes refuse the file, because they read JSON as YAML.
    #[error("must not have {0:?}: runtimes cannot read a file with it")]
    Unreadable(char),
    /// A character that runtimes read as a space, because they read JSON as YAML.
    #[error("must not have {0:?}: runtimes read it as a space")]
    Folded(char),
    /// A path that means different things to different readers.
    #[error("{} is not valid: {problem}", Quoted(.value))]
    Path {
        /// The path.
        value: String,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// A mount without `bind` or `rbind`, which the runtime would take for a file system of its own.
    #[error("must have \"bind\" or \"rbind\": nothing adds it, and without it the mount fails")]
    NoBind,
    /// A timeout that is not positive.
    #[error("{0} is not valid: must be greater than zero")]
    Timeout(i64),
    /// A key that no Kubernetes annotation may have.
    #[error(
        "{} is not valid: must be a name of letters, digits, '-', '_' and '.', at most 63, with or without a DNS subdomain and '/' in front",
        Quoted(.0)
    )]
    AnnotationKey(String),
    /// Annotations with too many bytes in all.
    #[error("too long: {0} bytes in all, at most {MAX_ANNOTATIONS} are allowed")]
    Annotations(usize),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// Everything that is wrong with a spec; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError(Vec<Finding>);

impl ValidationError {
    /// The findings: version and kind first, then in the order of the file.
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

/// Checks what container runtimes enforce: whether they would load the file.
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

/// Checks what runtimes enforce and what we demand of our own files besides.
pub fn validate_strict(spec: &Spec) -> Result<(), ValidationError> {
    result(findings(spec))
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

    /// Text that must be there.
    fn required(&mut self, field: &str, value: &str) {
        if value.is_empty() {
            self.runtime(field, Problem::Required);
        }
        self.text(field, value);
    }

    /// A path that must be there, and that we want to mean the same to everybody.
    fn path(&mut self, field: &str, value: &str, check: fn(&str) -> Result<(), PathProblem>) {
        self.required(field, value);
        if !value.is_empty()
            && let Err(problem) = check(value)
        {
            self.strict(field, Problem::Path { value: value.to_owned(), problem });
        }
    }

    /// Any text: what a runtime's parser makes of it.
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

/// Kubernetes' rules for annotations, which the CDI library has but in effect does not apply.
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
