//! What a check found.

use serde::Serialize;

use super::kind::Kind;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Ok,
    Skipped,
    Warning,
    Error,
}

/// What a check found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) status: Status,
    /// The kind of problem; only of warnings and errors.
    pub(crate) kind: Option<Kind>,
    /// What was found. It can contain text from files and servers.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(crate) fn ok(message: impl Into<String>) -> Self {
        Self { status: Status::Ok, kind: None, message: message.into(), remedy: None }
    }

    /// A check that could not be made, and why.
    pub(crate) fn skipped(message: impl Into<String>) -> Self {
        Self { status: Status::Skipped, kind: None, message: message.into(), remedy: None }
    }

    pub(crate) fn problem(kind: Kind, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: kind.status(), kind: Some(kind), message: message.into(), remedy: Some(remedy.into()) }
    }
}

/// Returns the problems or, if there are none, that all is well.
pub(crate) fn or_ok(problems: Vec<Finding>, message: impl FnOnce() -> String) -> Vec<Finding> {
    if problems.is_empty() { vec![Finding::ok(message())] } else { problems }
}

/// Returns a number with its noun: `1 claim`, `2 claims`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
