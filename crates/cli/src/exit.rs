//! How the command ends: the exit codes, which are part of its interface, and the messages that go with them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use drakkar_metadata::read::{ErrorClass, ReadError};

use crate::output::{printable, style};

/// What `drakkar help` says about exit codes. [`Code`] is the same in numbers.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  the system refused: no permission, an I/O error
  2  the command line is wrong
  3  not found: no such claim, request, device or attribute here
  4  not written yet: the driver has still to deliver; `drakkar wait` helps
  5  invalid: what is there is broken";

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Refused = 1,
    NotFound = 3,
    NotWritten = 4,
    Invalid = 5,
}

impl From<ErrorClass> for Code {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::NotFound => Self::NotFound,
            ErrorClass::NotWritten => Self::NotWritten,
            ErrorClass::Unreadable => Self::Refused,
            ErrorClass::Invalid => Self::Invalid,
        }
    }
}

/// Why the command did not do what it was asked to do, or not all of it.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    messages: Vec<String>,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as u8, messages: vec![message.into()], hint: None }
    }

    /// Several things went wrong; the code is that of the worst.
    pub(crate) fn all(problems: &[ReadError]) -> Option<Self> {
        let code = Code::from(problems.iter().map(ReadError::class).max()?);
        Some(Self { code: code as u8, messages: problems.iter().map(ToString::to_string).collect(), hint: None })
    }

    /// Several failures as one, with the highest code.
    pub(crate) fn join(failures: Vec<Self>) -> Option<Self> {
        let code = failures.iter().map(|failure| failure.code).max()?;
        let hint = failures.iter().find_map(|failure| failure.hint.clone());
        Some(Self { code, messages: failures.into_iter().flat_map(|failure| failure.messages).collect(), hint })
    }

    /// A code that is not ours to choose.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// What to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what went wrong on standard error, and ends the command.
    pub(crate) fn report(&self) -> ExitCode {
        let mut text = String::new();
        let (error, hint) = (style::ERROR, style::HINT);
        for message in &self.messages {
            // Messages carry names and text from files that others wrote.
            let _ = writeln!(text, "{error}drakkar:{error:#} {}", printable(message));
        }
        if let Some(what_to_do) = &self.hint {
            let _ = writeln!(text, "{hint}hint:{hint:#} {}", printable(what_to_do));
        }
        // Where standard error is gone there is nobody left to tell.
        let _ = anstream::stderr().write_all(text.as_bytes());
        ExitCode::from(self.code)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let failure = Self::new(error.class().into(), error.to_string());
        match what_to_do(&error) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn what_to_do(error: &ReadError) -> Option<&'static str> {
    match error {
        ReadError::NotFound { .. } | ReadError::Ambiguous { .. } => {
            Some("`drakkar list` shows what this container has")
        }
        ReadError::NotWritten { .. } => Some("`drakkar wait CLAIM/REQUEST` waits until the driver has written it"),
        // Whoever has waited need not be told to wait.
        ReadError::TimedOut { last, .. } if !matches!(**last, ReadError::NotWritten { .. }) => what_to_do(last),
        _ => None,
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::Refused, error.to_string())
    }
}
