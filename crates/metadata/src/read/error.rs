//! Errors of reading metadata files, and their classes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::query::Query;
use super::selection::Selection;
use super::{MAX_COST, MAX_FILE_SIZE, MAX_FILES, MAX_TOTAL_SIZE};
use crate::decode::DecodeError;
use crate::name::{NameError, RequestName};
use crate::show::{Printable, Quoted};

/// An error in reading metadata. Every message names the file or the query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A container, claim or request has no file.
    #[error("no metadata for {selection}: looked in {}", list(.looked_in))]
    NotFound {
        /// What was selected.
        selection: Box<Selection>,
        /// The directories that were searched.
        looked_in: Vec<PathBuf>,
    },
    /// A name is that of a claim and of the pod's entry for another claim.
    #[error(
        "{selection} is ambiguous: there is a claim and a pod claim of that name; use resourceclaims/{0} or \
         resourceclaimtemplates/{0}",
        .selection.names()
    )]
    Ambiguous {
        /// What was selected.
        selection: Box<Selection>,
    },
    /// The file is empty: the driver has not written it yet.
    #[error("{}: not written yet", Printable::path(.path))]
    NotWritten {
        /// The file.
        path: PathBuf,
    },
    /// The timeout of a wait expired.
    #[error("timed out after {}: {last}", seconds(.waited))]
    TimedOut {
        /// The time spent waiting.
        waited: Duration,
        /// The last error before the timeout.
        last: Box<ReadError>,
    },
    /// The metadata exists but does not meet the condition of a wait.
    #[error("{query} does not meet the condition")]
    NotReady {
        /// The query.
        query: Box<Query>,
    },
    /// A file's content cannot be read as metadata.
    #[error("{}: {error}", Printable::path(.path))]
    Decode {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        error: DecodeError,
    },
    /// A file or directory has an invalid name.
    #[error("{}: {error}", Printable::path(.path))]
    Name {
        /// The file or directory.
        path: PathBuf,
        /// The error in the name.
        error: NameError,
    },
    /// A file's name is not UTF-8.
    #[error("{}: the name is not UTF-8", Printable::path(.path))]
    NameNotUnicode {
        /// The file or directory.
        path: PathBuf,
    },
    /// A path is not a regular file.
    #[error("{}: is {kind}, not a file", Printable::path(.path))]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The type of the file.
        kind: &'static str,
    },
    /// The file describes another request than that of its directory.
    #[error("{}: describes {}, not request {request} as its directory says", Printable::path(.path), names(.found))]
    OtherRequest {
        /// The file.
        path: PathBuf,
        /// The request of the directory.
        request: RequestName,
        /// The requests of the file.
        found: Vec<String>,
    },
    /// There are more files or bytes than a search reads.
    #[error("{}: not read: there are more than {MAX_FILES} metadata files or {} MiB, which no container has", Printable::path(.path), MAX_TOTAL_SIZE / 1024 / 1024)]
    TooMuch {
        /// The first file that was not read.
        path: PathBuf,
    },
    /// There are more directory entries than a search reads.
    #[error("{}: not searched: too many entries, a search reads at most {MAX_COST} in all directories", Printable::path(.path))]
    TooManyEntries {
        /// The directory or file that was not searched.
        path: PathBuf,
    },
    /// The deadline of a search has passed.
    #[error("{}: not searched: the search timed out", Printable::path(.path))]
    OutOfTime {
        /// The first directory or file that was not searched.
        path: PathBuf,
    },
    /// There are more problems than are listed one by one.
    #[error("and {count} more problems")]
    MoreProblems {
        /// The number of further problems.
        count: usize,
        /// The most severe class among them.
        class: ErrorClass,
    },
    /// The file is larger than [`MAX_FILE_SIZE`].
    #[error("{}: larger than {} MiB, which no metadata file is", Printable::path(.path), MAX_FILE_SIZE / 1024 / 1024)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file changed during every read.
    #[error("{}: keeps changing, so that no consistent read was possible", Printable::path(.path))]
    Changing {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {error}", Printable::path(.path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Several files have errors, and none could be read.
    #[error("{}", several(.0))]
    Several(
        /// The errors, at least two.
        Vec<ReadError>,
    ),
}

/// The class of an error, by which a program decides what to do. Later classes are more severe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// There is no such claim or request; perhaps it is misspelt, or this container does not use it.
    NotFound,
    /// The driver has not written the metadata yet: a retry helps.
    NotWritten,
    /// A file exists but cannot be read.
    Unreadable,
    /// A file is broken.
    Invalid,
    /// The query matches two claims.
    Ambiguous,
}

impl ReadError {
    /// Combines problems into one error; a single problem is returned as it is.
    pub fn all(mut problems: Vec<ReadError>) -> Self {
        match problems.pop() {
            Some(only) if problems.is_empty() => only,
            last => {
                problems.extend(last);
                Self::Several(problems)
            }
        }
    }

    /// Returns the class of the error; of several errors, the most severe one.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound { .. } => ErrorClass::NotFound,
            Self::Ambiguous { .. } => ErrorClass::Ambiguous,
            Self::NotWritten { .. } | Self::NotReady { .. } => ErrorClass::NotWritten,
            Self::TimedOut { last, .. } => last.class(),
            Self::Decode { .. }
            | Self::Name { .. }
            | Self::NameNotUnicode { .. }
            | Self::NotAFile { .. }
            | Self::OtherRequest { .. }
            | Self::TooLarge { .. }
            | Self::TooManyEntries { .. }
            | Self::TooMuch { .. } => ErrorClass::Invalid,
            Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound => ErrorClass::NotFound,
            Self::MoreProblems { class, .. } => *class,
            Self::Changing { .. } | Self::OutOfTime { .. } | Self::Io { .. } => ErrorClass::Unreadable,
            Self::Several(problems) => problems.iter().map(Self::class).max().unwrap_or(ErrorClass::Invalid),
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let texts: Vec<String> = paths.iter().map(|path| Printable::path(path).to_string()).collect();
    texts.join(", ")
}

fn names(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(8).map(|name| Quoted(name).to_string()).collect();
    shown.join(", ")
}

fn several(problems: &[ReadError]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

fn seconds(duration: &Duration) -> String {
    format!("{}.{} s", duration.as_secs(), duration.subsec_millis() / 100)
}
