//! What can go wrong when reading, and what kind of trouble it is.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::query::Query;
use super::{MAX_COST, MAX_FILE_SIZE, MAX_FILES, MAX_TOTAL_SIZE};
use crate::decode::DecodeError;
use crate::name::{NameError, RequestName};
use crate::show::{Printable, Quoted};

/// Why metadata could not be read. Every message names the file or what was looked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no file for a request.
    #[error("no metadata for {query}: looked in {}", list(.looked_in))]
    NotFound {
        /// What was asked for.
        query: Box<Query>,
        /// The directories that could have had it.
        looked_in: Vec<PathBuf>,
    },
    /// A name stands for a claim and for another claim's entry in the pod.
    #[error(
        "{query} is ambiguous: there is a claim and a pod claim of that name; say resourceclaims/{0}/{1} or \
         resourceclaimtemplates/{0}/{1}",
        .query.claim_text(), .query.request_text()
    )]
    Ambiguous {
        /// What was asked for.
        query: Box<Query>,
    },
    /// The file is there but empty: the driver has not written it yet.
    #[error("{}: not written yet", Printable::path(.path))]
    NotWritten {
        /// The file.
        path: PathBuf,
    },
    /// Time ran out.
    #[error("gave up after {}: {last}", seconds(.waited))]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// What was missing to the last.
        last: Box<ReadError>,
    },
    /// The metadata is there but not (yet) what was waited for.
    #[error("{query} does not have what was waited for")]
    NotReady {
        /// What was asked for.
        query: Box<Query>,
    },
    /// A file's content cannot be read as metadata.
    #[error("{}: {error}", Printable::path(.path))]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// A file or directory has a name that none can have.
    #[error("{}: {error}", Printable::path(.path))]
    Name {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with its name.
        error: NameError,
    },
    /// A file's name is not Unicode.
    #[error("{}: the name is not UTF-8", Printable::path(.path))]
    NameNotUnicode {
        /// The file or directory.
        path: PathBuf,
    },
    /// Something else is in the place of a file.
    #[error("{}: is {kind}, not a file", Printable::path(.path))]
    NotAFile {
        /// What is in its place.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file is about another request than the directory it is in.
    #[error("{}: is about {}, not about the request {request} whose directory it is in", Printable::path(.path), names(.found))]
    OtherRequest {
        /// The file.
        path: PathBuf,
        /// The request of the directory.
        request: RequestName,
        /// The requests of the file.
        found: Vec<String>,
    },
    /// There is more metadata than any container has.
    #[error("{}: not read: with it there are more than {MAX_FILES} metadata files or {} MiB here, which no container has", Printable::path(.path), MAX_TOTAL_SIZE / 1024 / 1024)]
    TooMuch {
        /// The first file that was not read.
        path: PathBuf,
    },
    /// There are more entries than one look takes.
    #[error("{}: not looked into: it has more entries than one look takes, {MAX_COST} for all directories", Printable::path(.path))]
    TooManyEntries {
        /// The directory or file that was not looked into.
        path: PathBuf,
    },
    /// The time for one look is over.
    #[error("{}: not looked at: the time was over before it was its turn", Printable::path(.path))]
    OutOfTime {
        /// The first directory or file that was not looked at.
        path: PathBuf,
    },
    /// There are more problems than anybody reads.
    #[error("and {count} more problems")]
    MoreProblems {
        /// How many.
        count: usize,
        /// The class of the worst.
        class: ErrorClass,
    },
    /// The file is larger than any metadata file.
    #[error("{}: larger than {} MiB, which no metadata file is", Printable::path(.path), MAX_FILE_SIZE / 1024 / 1024)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file changed with every look.
    #[error("{}: is being written all the time; no read of it could be trusted", Printable::path(.path))]
    Unsettled {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {error}", Printable::path(.path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Several files have problems, and none could be read.
    #[error("{}", several(.0))]
    Several(
        /// The problems, at least two.
        Vec<ReadError>,
    ),
}

/// What kind of trouble an error is, for whoever has to decide what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Nothing of that name is there; perhaps the claim or request is misspelt, or this container does not have it.
    NotFound,
    /// It is there and the driver has not written it yet: waiting helps.
    NotWritten,
    /// The system refused to read what is there.
    Unreadable,
    /// What is there is broken.
    Invalid,
    /// The question has two answers.
    Ambiguous,
}

impl ReadError {
    /// One error for many problems; the problem itself if there is only one.
    pub(super) fn all(mut problems: Vec<ReadError>) -> Self {
        match problems.pop() {
            Some(only) if problems.is_empty() => only,
            last => {
                problems.extend(last);
                Self::Several(problems)
            }
        }
    }

    /// What kind of trouble it is; of several, the worst.
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
            Self::Unsettled { .. } | Self::OutOfTime { .. } | Self::Io { .. } => ErrorClass::Unreadable,
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
