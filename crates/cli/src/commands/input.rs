//! Reads the files that are named on the command line.

use std::io::Read;
use std::path::Path;

use drakkar_metadata::Reader;
use drakkar_metadata::read::{MAX_FILE_SIZE, ReadError};

use crate::exit::{Code, Failure};

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

    /// Reads a file, or standard input for `-`. An empty file is an error.
    pub(crate) fn read(&self, file: &Path) -> Result<Vec<u8>, Failure> {
        let bytes = if file == Path::new("-") {
            read_standard_input()?
        } else if file.is_absolute() {
            self.root.read_bytes(file).map_err(failure)?
        } else {
            Reader::new().read_bytes(file).map_err(failure)?
        };
        if bytes.is_empty() {
            let error = ReadError::NotWritten { path: file.to_owned() };
            return Err(Failure::new(Code::NotWritten, error.to_string()));
        }
        Ok(bytes)
    }
}

fn failure(error: ReadError) -> Failure {
    match error {
        // `drakkar validate <(command)`, for example.
        ReadError::NotAFile { .. } => Failure::from(error).hint("use - as the file name to read standard input"),
        error => error.into(),
    }
}

fn read_standard_input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let system = |error| Failure::new(Code::System, format!("standard input: {error}"));
    std::io::stdin().lock().take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(system)?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        let limit = MAX_FILE_SIZE / 1024 / 1024;
        let message = format!("standard input: more than {limit} MiB, which no metadata file has");
        return Err(Failure::new(Code::Invalid, message));
    }
    Ok(bytes)
}
