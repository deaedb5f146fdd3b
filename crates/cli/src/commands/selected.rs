//! The metadata of the claims and requests that are named on the command line, or of all.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use drakkar_metadata::Reader;
use drakkar_metadata::read::{ErrorClass, MetadataFile, ReadError, Selection};

use crate::args::Readiness;
use crate::exit::Failure;

/// Reads the files of the selections, or of all requests if there are none. Every file has content.
pub(crate) fn read(
    reader: &Reader,
    selections: &[Selection],
    readiness: &Readiness,
) -> Result<Vec<MetadataFile>, Failure> {
    let all = [Selection::All];
    let selections = if selections.is_empty() { &all } else { selections };
    let start = Instant::now();
    let mut files = Vec::new();
    for selection in selections {
        // All of them together have the time of the wait.
        let left = readiness.wait.map(|timeout| timeout.saturating_sub(start.elapsed()));
        files.extend(read_one(reader, selection, left, readiness.optional)?);
    }
    Ok(files)
}

/// The files that could be read, and what is wrong with the others.
#[derive(Default)]
struct Found {
    files: Vec<MetadataFile>,
    problems: Vec<ReadError>,
}

impl Found {
    fn new(outcome: Result<drakkar_metadata::read::Discovery, ReadError>) -> Self {
        let discovery = match outcome {
            Ok(discovery) => discovery,
            Err(error) => return Self { files: Vec::new(), problems: vec![error] },
        };
        let mut found = Self { files: Vec::new(), problems: discovery.problems };
        for file in discovery.files {
            match file.content {
                Ok(_) => found.files.push(file),
                Err(error) => found.problems.push(error),
            }
        }
        found
    }

    /// Reports whether all problems are of one of these classes.
    fn has_only(&self, classes: &[ErrorClass]) -> bool {
        self.problems.iter().all(|problem| classes.contains(&problem.class()))
    }
}

fn read_one(
    reader: &Reader,
    selection: &Selection,
    wait: Option<Duration>,
    optional: bool,
) -> Result<Vec<MetadataFile>, Failure> {
    let mut last = Found::default();
    // Files are mounted before a container starts: what is not there then does not come later.
    let is_over: &[ErrorClass] = if optional { &[ErrorClass::NotFound] } else { &[] };
    let outcome = reader.watch(selection, wait.unwrap_or_default(), |outcome| {
        let found = Found::new(outcome);
        // Waiting does not resolve an ambiguity.
        let is_ambiguous = found.problems.iter().any(|problem| problem.class() == ErrorClass::Ambiguous);
        let ends = is_ambiguous || found.has_only(is_over);
        last = found;
        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let missing = [ErrorClass::NotFound, ErrorClass::NotWritten];
    if last.problems.is_empty() || (optional && last.has_only(&missing)) {
        return Ok(last.files);
    }
    match (outcome, wait) {
        (Err(waited), Some(_)) => {
            Err(ReadError::TimedOut { waited, last: Box::new(ReadError::all(last.problems)) }.into())
        }
        _ => Err(ReadError::all(last.problems).into()),
    }
}
