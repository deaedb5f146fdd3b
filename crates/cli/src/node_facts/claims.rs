//! The claims that drivers have prepared: state records, metadata files, and what is around them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use drakkar_metadata::path::{HOST_FILE, HOST_SUBDIR};
use drakkar_metadata::read::ReadError;
use drakkar_metadata::{Metadata, Reader, decode, validate};
use drakkar_plugin::node_files::{ClaimRecord, RECORD_FILE, is_temporary};
use rustix::fs::FileType;

use super::host::{Directory, Entry, Status};

/// The largest record that is read; real ones have a few kilobytes.
const MAX_RECORD: u64 = 8 * 1024 * 1024;

/// What a driver's directory contains.
#[derive(Debug, Default)]
pub(crate) struct DriverFiles {
    pub(crate) claims: Vec<ClaimDirectory>,
    /// Everything below the directory that is ours, for checks of permissions.
    pub(crate) seen: Vec<(PathBuf, Status)>,
    /// Files of writes that are in progress or were interrupted.
    pub(crate) temporary: Vec<(PathBuf, SystemTime)>,
    /// Entries that are no directory where only directories belong.
    pub(crate) misplaced: Vec<(PathBuf, &'static str)>,
    /// Directories that could not be read.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
}

/// The directory of a claim.
#[derive(Debug)]
pub(crate) struct ClaimDirectory {
    pub(crate) path: PathBuf,
    pub(crate) record: Result<ClaimRecord, RecordProblem>,
    /// When the claim was prepared: the birth of its directory.
    pub(crate) since: Option<SystemTime>,
    /// The directories of requests.
    pub(crate) requests: Vec<RequestDirectory>,
}

/// Why there is no record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordProblem {
    Missing,
    Unreadable(String),
}

/// The directory of a request.
#[derive(Debug)]
pub(crate) struct RequestDirectory {
    pub(crate) name: String,
    /// The path of the metadata file.
    pub(crate) file: PathBuf,
    pub(crate) content: FileContent,
}

/// The content of a metadata file.
#[derive(Debug)]
pub(crate) enum FileContent {
    Missing,
    /// A placeholder: the driver writes it later.
    NotWritten,
    /// It cannot be read, decoded or breaks a rule.
    Invalid(String),
    Valid(Box<Metadata>),
}

impl DriverFiles {
    /// Whether all claims are known: what is missing then is missing indeed, and not just unreadable.
    pub(crate) fn is_complete(&self) -> bool {
        self.misplaced.is_empty() && self.unreadable.is_empty() && self.claims.iter().all(|claim| claim.record.is_ok())
    }
}

/// Reads all that a driver has written for claims below its directory.
pub(crate) fn read(plugin: &Directory) -> DriverFiles {
    let mut files = DriverFiles::default();
    if let Ok(status) = plugin.status() {
        files.seen.push((plugin.path().to_owned(), status));
    }
    let path = plugin.path().join(HOST_SUBDIR);
    match plugin.status_of(HOST_SUBDIR) {
        Ok(status) if status.kind == FileType::Directory => files.seen.push((path.clone(), status)),
        Ok(status) => {
            files.misplaced.push((path, status.kind_name()));
            return files;
        }
        // No claim has ever been prepared with metadata.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return files,
        Err(error) => {
            files.unreadable.push((path, error.to_string()));
            return files;
        }
    }
    let opened = plugin.open(HOST_SUBDIR).and_then(|root| Ok((root.entries()?, root)));
    match opened {
        Ok((entries, root)) => {
            for entry in entries {
                read_claim(&root, entry, &mut files);
            }
        }
        Err(error) => files.unreadable.push((path, error.to_string())),
    }
    files
}

fn read_claim(root: &Directory, entry: Entry, files: &mut DriverFiles) {
    let path = root.path().join(&entry.name);
    if entry.status.kind != FileType::Directory {
        files.misplaced.push((path, entry.status.kind_name()));
        return;
    }
    let opened = root.open(&entry.name).and_then(|directory| Ok((directory.entries()?, directory)));
    let (entries, directory) = match opened {
        Ok(opened) => opened,
        // Unprepared in the meantime.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return files.unreadable.push((path, error.to_string())),
    };
    let record = match directory.read(RECORD_FILE, MAX_RECORD) {
        Ok(bytes) => {
            ClaimRecord::decode(&bytes, &entry.name).map_err(|error| RecordProblem::Unreadable(error.to_string()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(RecordProblem::Missing),
        Err(error) => Err(RecordProblem::Unreadable(error.to_string())),
    };
    let mut since = entry.status.created;
    let mut requests = Vec::new();
    files.seen.push((path.clone(), entry.status));
    for Entry { name, status } in entries {
        let path = path.join(&name);
        if name == RECORD_FILE {
            since = since.or(Some(status.modified));
            files.seen.push((path, status));
        } else if is_temporary(&name) {
            files.temporary.push((path, status.modified));
        } else if status.kind == FileType::Directory {
            files.seen.push((path, status));
            requests.extend(read_request(&directory, name, files));
        } else {
            files.misplaced.push((path, status.kind_name()));
        }
    }
    files.claims.push(ClaimDirectory { path, record, since, requests });
}

fn read_request(claim: &Directory, name: String, files: &mut DriverFiles) -> Option<RequestDirectory> {
    let path = claim.path().join(&name);
    let opened = claim.open(&name).and_then(|directory| Ok((directory.entries()?, directory)));
    let (entries, directory) = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            files.unreadable.push((path, error.to_string()));
            return None;
        }
    };
    let mut content = FileContent::Missing;
    for entry in entries {
        let path = path.join(&entry.name);
        if is_temporary(&entry.name) {
            files.temporary.push((path, entry.status.modified));
        } else if entry.name == HOST_FILE && entry.status.kind == FileType::RegularFile {
            files.seen.push((path, entry.status));
            content = read_metadata(&directory);
        } else if entry.name == HOST_FILE {
            content = FileContent::Invalid(format!("it is {}", entry.status.kind_name()));
        }
    }
    Some(RequestDirectory { name, file: path.join(HOST_FILE), content })
}

/// Reads a metadata file consistently even while the driver updates it.
fn read_metadata(directory: &Directory) -> FileContent {
    let read =
        Reader::with_root(directory.through()).and_then(|reader| reader.read_bytes(&Path::new("/").join(HOST_FILE)));
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(ReadError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => return FileContent::Missing,
        Err(ReadError::Io { error, .. }) => return FileContent::Invalid(error.to_string()),
        Err(error) => return FileContent::Invalid(error.to_string()),
    };
    if bytes.iter().all(|byte| *byte == b'\n') {
        return FileContent::NotWritten;
    }
    let metadata = match decode(&bytes) {
        Ok(decoded) => decoded.metadata,
        Err(error) => return FileContent::Invalid(error.to_string()),
    };
    match validate(&metadata) {
        Ok(()) => FileContent::Valid(Box::new(metadata)),
        Err(error) => FileContent::Invalid(error.to_string()),
    }
}
