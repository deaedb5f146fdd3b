//! Field paths and field errors, worded as Kubernetes words them.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::rc::Rc;

/// An error of one field: a cause of a 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    /// The kind of error, for example `FieldValueInvalid`.
    pub(crate) reason: &'static str,
    /// The field, for example `spec.devices[0].name`.
    pub(crate) field: String,
    /// The message, for example `Invalid value: "x": must …`.
    pub(crate) message: String,
}

/// The path of a field. Its text is only put together for an error: most paths are never shown.
#[derive(Clone, Debug)]
pub(super) struct Path(Rc<Step>);

/// The last step of a path, and what precedes it.
#[derive(Debug)]
struct Step {
    parent: Option<Path>,
    segment: Segment,
}

#[derive(Debug)]
enum Segment {
    Field(Cow<'static, str>),
    Index(usize),
    Key(String),
}

impl Path {
    pub(super) fn root(name: &'static str) -> Self {
        Self(Rc::new(Step { parent: None, segment: Segment::Field(name.into()) }))
    }

    pub(super) fn child(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.step(Segment::Field(name.into()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.step(Segment::Index(index))
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.step(Segment::Key(key.to_owned()))
    }

    fn step(&self, segment: Segment) -> Self {
        Self(Rc::new(Step { parent: Some(self.clone()), segment }))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = &self.0.parent {
            parent.fmt(f)?;
        }
        match &self.0.segment {
            Segment::Field(name) if self.0.parent.is_some() => write!(f, ".{name}"),
            Segment::Field(name) => f.write_str(name),
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// The invalid value in an error.
pub(super) enum Bad<'a> {
    Text(&'a str),
    Number(i64),
    Bool(bool),
    /// A value that is encoded as JSON already.
    Json(String),
}

impl Bad<'_> {
    pub(super) fn null() -> Self {
        Self::Json("null".to_owned())
    }
}

impl<'a> From<&'a str> for Bad<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Bad<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Bad<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Bad<'_> {
    fn from(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Bad<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl fmt::Display for Bad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(value) => write!(f, "{value}"),
            // As Go does by default, for HTML.
            Self::Json(json) => {
                f.write_str(&json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
            }
        }
    }
}

/// A list of field errors.
#[derive(Debug, Default)]
pub(super) struct Errors(Vec<FieldError>);

impl Errors {
    pub(super) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn add(&mut self, reason: &'static str, path: &Path, mut message: String, detail: &str) {
        if !detail.is_empty() {
            message.push_str(": ");
            message.push_str(detail);
        }
        self.0.push(FieldError { reason, field: path.to_string(), message });
    }

    pub(super) fn invalid<'a>(&mut self, path: &Path, bad: impl Into<Bad<'a>>, detail: &str) {
        self.add("FieldValueInvalid", path, format!("Invalid value: {}", bad.into()), detail);
    }

    /// Adds one error for each problem of a value.
    pub(super) fn invalid_each(&mut self, path: &Path, bad: &str, problems: impl IntoIterator<Item = String>) {
        for problem in problems {
            self.invalid(path, bad, &problem);
        }
    }

    pub(super) fn required(&mut self, path: &Path, detail: &str) {
        self.add("FieldValueRequired", path, "Required value".to_owned(), detail);
    }

    pub(super) fn forbidden(&mut self, path: &Path, detail: &str) {
        self.add("FieldValueForbidden", path, "Forbidden".to_owned(), detail);
    }

    pub(super) fn duplicate<'a>(&mut self, path: &Path, bad: impl Into<Bad<'a>>) {
        self.add("FieldValueDuplicate", path, format!("Duplicate value: {}", bad.into()), "");
    }

    pub(super) fn not_found(&mut self, path: &Path, bad: &str, detail: &str) {
        self.add("FieldValueNotFound", path, format!("Not found: {}", quoted(bad)), detail);
    }

    pub(super) fn not_supported(&mut self, path: &Path, bad: &str, supported: &[&str]) {
        let supported: Vec<_> = supported.iter().map(|value| quoted(value)).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        self.add("FieldValueNotSupported", path, format!("Unsupported value: {}", quoted(bad)), &detail);
    }

    pub(super) fn too_long(&mut self, path: &Path, bytes: usize) {
        self.add("FieldValueTooLong", path, "Too long".to_owned(), &format!("may not be more than {bytes} bytes"));
    }

    pub(super) fn too_long_characters(&mut self, path: &Path, characters: usize) {
        let detail = format!("may not be more than {characters} characters");
        self.add("FieldValueTooLong", path, "Too long".to_owned(), &detail);
    }

    /// Adds an error and returns true if a list or map is too long. The caller then skips its items.
    pub(super) fn too_many(&mut self, path: &Path, length: usize, limit: usize) -> bool {
        if length > limit {
            let detail = format!("must have at most {limit} items");
            self.add("FieldValueTooMany", path, format!("Too many: {length}"), &detail);
        }
        length > limit
    }
}

/// Quotes a string with Go's escapes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a string cannot fail.
            c if c.is_ascii_control() => _ = write!(out, "\\x{:02x}", u32::from(c)),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
