//! Exit codes, which are part of the command's interface, and error messages.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::process::ExitCode;

use drakkar_metadata::read::{ErrorClass, ReadError, Selection};
use drakkar_metadata::show::Printable;

use crate::output::style;

/// The exit codes in `drakkar help`, the same as in [`Code`].
pub(crate) const HELP: &str = "\
Exit codes:
  0  success
  1  system error: permission denied, I/O error
  2  usage error, or an ambiguous name
  3  not found: no such file, claim, request, device or attribute
  4  not written yet by the driver; use `drakkar wait` or --wait
  5  invalid: broken metadata or document, or a refused VM";

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    System = 1,
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
            ErrorClass::Unreadable => Self::System,
            ErrorClass::Ambiguous => Self::Usage,
            // A class that a later version of the library adds.
            _ => Self::Invalid,
        }
    }
}

/// The error that ends the command, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    messages: Vec<String>,
    hint: Option<String>,
    /// A title and lines, such as the end of a log.
    excerpt: Option<(String, Vec<String>)>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as u8, messages: vec![message.into()], hint: None, excerpt: None }
    }

    /// Ends the command with this exit code and without a message.
    #[cfg(any(feature = "demo", feature = "operate"))]
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, messages: Vec::new(), hint: None, excerpt: None }
    }

    /// Combines read errors, with the exit code of the most severe one; `None` if there are none.
    pub(crate) fn all(problems: &[ReadError]) -> Option<Self> {
        let code = Code::from(problems.iter().map(ReadError::class).max()?);
        let messages = problems.iter().map(ToString::to_string).collect();
        Some(Self { code: code as u8, messages, hint: None, excerpt: None })
    }

    /// Combines failures, with the exit code of the most severe one; `None` if there are none.
    pub(crate) fn join(failures: Vec<Self>) -> Option<Self> {
        // From least to most severe: not found, not written, system error, invalid.
        let severity = |code: &u8| [3, 4, 1, 5].iter().position(|known| known == code);
        let code = failures.iter().map(|failure| failure.code).max_by_key(severity)?;
        let hint = failures.iter().find_map(|failure| failure.hint.clone());
        let messages = failures.into_iter().flat_map(|failure| failure.messages).collect();
        Some(Self { code, messages, hint, excerpt: None })
    }

    /// Sets an exit code that is not in [`Code`].
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Adds a hint about the remedy.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint unless there is one.
    #[cfg(feature = "demo")]
    pub(crate) fn or_hint(mut self, hint: &str) -> Self {
        self.hint.get_or_insert_with(|| hint.to_owned());
        self
    }

    /// Adds lines that are printed below a title, such as the end of a log.
    #[cfg(feature = "demo")]
    pub(crate) fn excerpt(mut self, title: impl Into<String>, lines: Vec<String>) -> Self {
        self.excerpt = Some((title.into(), lines));
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Prints the messages to standard error and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let mut text = String::new();
        let error = style::ERROR;
        let hint = style::HINT;
        for message in &self.messages {
            // Messages contain names and text from untrusted files.
            let _ = writeln!(text, "{error}drakkar:{error:#} {}", Printable::whole(message));
        }
        if let Some(remedy) = &self.hint {
            let _ = writeln!(text, "{hint}hint:{hint:#} {}", Printable::whole(remedy));
        }
        if let Some((title, lines)) = &self.excerpt {
            let _ = writeln!(text, "{}", Printable::whole(title));
            for line in lines {
                let _ = writeln!(text, "  {}", Printable::whole(line));
            }
        }
        // Without standard error there is no way to report the failure.
        let _ = anstream::stderr().write_all(text.as_bytes());
        ExitCode::from(self.code)
    }
}

/// The messages, for a log.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("; "))
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let failure = Self::new(error.class().into(), error.to_string());
        match remedy_for(&error) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn remedy_for(error: &ReadError) -> Option<&'static str> {
    match error {
        ReadError::NotFound { selection, .. } if **selection == Selection::All => Some(NO_METADATA_HINT),
        ReadError::NotFound { .. } => Some("`drakkar list` shows the requests of this container"),
        ReadError::NotWritten { .. } => Some("`drakkar wait CLAIM/REQUEST` waits until the driver has written it"),
        ReadError::Io { path, error } if error.kind() == std::io::ErrorKind::NotFound && path.is_symlink() => {
            Some("the link's target does not exist below the root; a driver removes it when the claim is unprepared")
        }
        // No hint to wait after a wait.
        ReadError::TimedOut { last, .. } if !matches!(**last, ReadError::NotWritten { .. }) => remedy_for(last),
        _ => None,
    }
}

/// The hint for a container without any metadata.
pub(crate) const NO_METADATA_HINT: &str =
    "a container has metadata if its resources.claims in the pod spec names a claim and the driver writes metadata";

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::System, error.to_string())
    }
}
