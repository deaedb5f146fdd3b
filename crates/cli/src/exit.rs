//! How the command ends: the exit codes, which are part of its interface, and the messages that go with them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use drakkar_metadata::read::{ErrorClass, ReadError};
use drakkar_metadata::show::Printable;

use crate::output::style;

/// What `drakkar help` says about exit codes. [`Code`] is the same in numbers.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  the system refused: no permission, an I/O error
  2  the command line is wrong, or a name in it is ambiguous
  3  not found: no such claim, request, device or attribute here
  4  not written yet: the driver has still to deliver; `drakkar wait` helps
  5  invalid: what is there is broken";

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Refused = 1,
    Usage = 2,
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
            ErrorClass::Ambiguous => Self::Usage,
            // What a later version of the library tells apart is at least not right.
            _ => Self::Invalid,
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

    /// Several failures as one, with the code of the worst.
    pub(crate) fn join(failures: Vec<Self>) -> Option<Self> {
        // From harmless to bad: nothing there, still to come, refused, broken.
        let severity = |code: &u8| [3, 4, 1, 5].iter().position(|known| known == code);
        let code = failures.iter().map(|failure| failure.code).max_by_key(severity)?;
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
            let _ = writeln!(text, "{error}drakkar:{error:#} {}", Printable::whole(message));
        }
        if let Some(what_to_do) = &self.hint {
            let _ = writeln!(text, "{hint}hint:{hint:#} {}", Printable::whole(what_to_do));
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
        ReadError::NotFound { .. } => Some("`drakkar list` shows what this container has"),
        ReadError::NotWritten { .. } => Some("`drakkar wait CLAIM/REQUEST` waits until the driver has written it"),
        // Whoever has waited need not be told to wait.
        ReadError::TimedOut { last, .. } if !matches!(**last, ReadError::NotWritten { .. }) => what_to_do(last),
        _ => None,
    }
}

/// What to say where there is nothing at all.
pub(crate) const WHERE_METADATA_COMES_FROM: &str =
    "a container has some if its pod spec names a claim in resources.claims and the driver delivers it";

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::Refused, error.to_string())
    }
}
