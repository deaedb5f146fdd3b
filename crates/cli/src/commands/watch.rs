//! `drakkar watch`: prints the metadata files, and each change of them.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use drakkar_metadata::Reader;
use drakkar_metadata::read::{Discovery, ErrorClass, MetadataFile, ReadError, Selection};
use serde::Serialize;

use super::list::{Document, rows_of};
use crate::args::LineOutput;
use crate::exit::{Code, Failure};
use crate::output::table::{Sink, Table};
use crate::output::{is_closed, plain, styled};

pub(crate) fn run(reader: &Reader, selection: Option<Selection>, output: LineOutput) -> Result<(), Failure> {
    let selection = selection.unwrap_or(Selection::All);
    let mut watched = Watched::default();
    let mut printer = Printer { output, widths: None };
    let mut reported = HashSet::new();
    let outcome = reader.watch(&selection, Duration::MAX, |outcome| {
        if is_closed() {
            return ControlFlow::Break(Ok(()));
        }
        let discovery = match outcome {
            // There may be files later.
            Err(error) if error.class() == ErrorClass::NotFound => {
                warn_once(&mut reported, &error);
                Discovery::default()
            }
            Err(error) => return ControlFlow::Break(Err(error.into())),
            Ok(discovery) => discovery,
        };
        discovery.problems.iter().for_each(|problem| warn_once(&mut reported, problem));
        match printer.print(&watched.update(discovery.files)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(Err(error.into())),
        }
    });
    outcome.unwrap_or_else(|waited| Err(Failure::new(Code::System, format!("the watch ended after {waited:?}"))))
}

/// Prints a problem, which does not end the watch, to standard error.
fn warn_once(reported: &mut HashSet<String>, problem: &ReadError) {
    if reported.insert(problem.to_string()) {
        Failure::new(problem.class().into(), problem.to_string()).report();
    }
}

/// What happened to a file, as in a watch of the Kubernetes API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
}

/// A change of a file.
struct Change {
    kind: Kind,
    file: Rc<MetadataFile>,
}

/// The files as they were last printed, by path, with a hash of everything that is printed of them.
#[derive(Default)]
struct Watched(BTreeMap<PathBuf, (u64, Rc<MetadataFile>)>);

impl Watched {
    /// Takes the files as they are now, and returns the changes.
    fn update(&mut self, files: Vec<MetadataFile>) -> Vec<Change> {
        let mut before = std::mem::take(&mut self.0);
        let mut changes = Vec::new();
        for file in files {
            let hash = hash(&file);
            let file = Rc::new(file);
            let kind = match before.remove(&file.path) {
                None => Some(Kind::Added),
                Some((known, _)) => (known != hash).then_some(Kind::Modified),
            };
            changes.extend(kind.map(|kind| Change { kind, file: Rc::clone(&file) }));
            self.0.insert(file.path.clone(), (hash, file));
        }
        changes.extend(before.into_values().map(|(_, file)| Change { kind: Kind::Deleted, file }));
        changes
    }
}

/// Hashes a file as JSON prints it.
fn hash(file: &MetadataFile) -> u64 {
    struct Hashing(DefaultHasher);
    impl Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hashing = Hashing(DefaultHasher::new());
    if let Err(error) = serde_json::to_writer(&mut hashing, &Document::of(file)) {
        error.to_string().hash(&mut hashing.0);
    }
    hashing.0.finish()
}

/// Prints changes.
struct Printer {
    output: LineOutput,
    /// The widths of the table's columns, once it has begun.
    widths: Option<[usize; 7]>,
}

/// A change as JSON, as `kubectl get --output-watch-events -o json` prints it.
#[derive(Serialize)]
struct Event<'a> {
    r#type: Kind,
    object: Document<'a>,
}

impl Printer {
    fn print(&mut self, changes: &[Change]) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        match self.output {
            LineOutput::Json => plain(|output| {
                changes.iter().try_for_each(|Change { kind, file }| {
                    serde_json::to_writer(&mut *output, &Event { r#type: *kind, object: Document::of(file) })?;
                    output.write_all(b"\n")
                })
            }),
            LineOutput::Text => {
                let table = Table::new(["EVENT", "CLAIM", "REQUEST", "DRIVER", "GEN", "DEVICE", "DETAILS"]);
                let mut widths = self.widths;
                styled(|output| {
                    let all = |sink: &mut Sink<'_, 7>| changes.iter().try_for_each(|change| rows(change, sink));
                    widths = Some(table.write_after(output, widths, all)?);
                    Ok(())
                })?;
                self.widths = widths;
                Ok(())
            }
        }
    }
}

/// Writes the rows of a file, which are those of `drakkar list`.
fn rows(change: &Change, sink: &mut Sink<'_, 7>) -> io::Result<()> {
    let kind = match change.kind {
        Kind::Added => "ADDED",
        Kind::Modified => "MODIFIED",
        Kind::Deleted => "DELETED",
    };
    let content = change.file.content.as_ref();
    let generation = content.map_or("-".to_owned(), |decoded| decoded.metadata.metadata.generation.to_string());
    rows_of(&change.file, &HashSet::new(), &mut |[claim, request, driver, device, details]| {
        sink([kind.into(), claim, request, driver, generation.as_str().into(), device, details])
    })
}
