//! Reads the files that are named on the command line.

use std::io::Read;
use std::path::Path;

use drakkar_metadata::Reader;
use drakkar_metadata::read::{MAX_FILE_SIZE, ReadError};

use crate::exit::{Code, Failure};

/// The largest document. `kubectl get vm -A -o yaml` prints a few KiB for each virtual machine.
#[cfg(feature = "kubevirt")]
const MAX_DOCUMENT_SIZE: u64 = 64 * 1024 * 1024;

/// Reads files below a root directory.
#[derive(Debug)]
pub(crate) struct Input {
    /// Reads absolute paths.
    root: Reader,
}

impl Input {
    pub(crate) fn below(root: &Path) -> Result<Self, Failure> {
        Ok(Self { root: Reader::with_root(root)? })
    }

    /// Reads a metadata file, or standard input for `-`. An empty file is an error.
    pub(crate) fn read(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        let bytes = self.read_bytes(file)?;
        if bytes.is_empty() {
            let error = ReadError::NotWritten { path: file.to_owned() };
            return Err(Failure::new(Code::NotWritten, error.to_string()));
        }
        Ok(bytes)
    }

    /// Reads a file of the size of metadata, or standard input for `-`.
    pub(crate) fn read_bytes(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        if file == Path::new("-") { read_standard_input(MAX_FILE_SIZE) } else { self.load(file).map_err(failure) }
    }

    /// Reads a file of this host with Kubernetes objects or a domain, or standard input for `-`.
    #[cfg(feature = "kubevirt")]
    pub(crate) fn read_document(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        if file == Path::new("-") {
            return read_standard_input(MAX_DOCUMENT_SIZE);
        }
        match self.load(file) {
            // The reader has seen that it is a regular file.
            Err(ReadError::TooLarge { path }) => {
                let large = std::fs::File::open(&path).map_err(|error| ReadError::Io { path, error })?;
                read_at_most(large, MAX_DOCUMENT_SIZE, &file.display().to_string())
            }
            read => read.map_err(failure),
        }
    }

    fn load(&self, file: &Path) -> Result<Vec<u8>, ReadError> {
        if file.is_absolute() { self.root.read_bytes(file) } else { Reader::new().read_bytes(file) }
    }
}

fn failure(error: ReadError) -> Failure {
    match error {
        ReadError::NotAFile { kind: "a directory", .. } => {
            Failure::from(error).hint("name the files in it, for example DIRECTORY/*-metadata.json")
        }
        // `drakkar validate <(command)`, for example.
        ReadError::NotAFile { .. } => Failure::from(error).hint("use - as the file name to read standard input"),
        error => error.into(),
    }
}

fn read_standard_input(limit: u64) -> Result<Vec<u8>, Failure> {
    read_at_most(std::io::stdin().lock(), limit, "standard input")
}

fn read_at_most(source: impl Read, limit: u64, name: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let system = |error| Failure::new(Code::System, format!("{name}: {error}"));
    source.take(limit + 1).read_to_end(&mut bytes).map_err(system)?;
    if bytes.len() as u64 > limit {
        let message = format!("{name}: more than {} MiB", limit / 1024 / 1024);
        return Err(Failure::new(Code::Invalid, message));
    }
    Ok(bytes)
}
