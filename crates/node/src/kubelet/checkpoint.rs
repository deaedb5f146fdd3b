//! State files of a kubelet: JSON with a checksum, replaced as a whole, and never written after the kubelet was killed.
//!
//! Files are written where the state changes, on the runtime's thread: they are small, and a write on another thread could
//! land after the next kubelet on the same directory has started.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// Why a state file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// An operation on the file failed.
    #[error("{action} {}: {source}", .path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content is not what was written.
    #[error("{}: {reason}: remove the file if the node's pods are gone", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not match.
        reason: String,
    },
    /// The kubelet was killed.
    #[error("{}: this kubelet has been killed", .path.display())]
    Dead {
        /// The file.
        path: PathBuf,
    },
}

/// Controls whether a kubelet may still write its state files. Clones share the state.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteGate(Arc<Mutex<Gate>>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Closed,
}

impl WriteGate {
    /// Closes the gate: once this returns, no write is in progress, and none will follow.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Gate::Closed;
    }
}

/// A state file.
#[derive(Debug, Clone)]
pub(super) struct StateFile {
    path: PathBuf,
    gate: WriteGate,
}

#[derive(Deserialize, Serialize)]
struct Envelope<T> {
    data: T,
    checksum: String,
}

impl StateFile {
    pub(super) fn new(path: PathBuf, gate: WriteGate) -> Self {
        Self { path, gate }
    }

    /// Reads what was written last, if anything.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<Option<T>, CheckpointError> {
        let Some(bytes) = self.read_bytes()? else { return Ok(None) };
        let corrupt = |reason: String| self.corrupt(reason);
        let envelope: Envelope<Box<RawValue>> =
            serde_json::from_slice(&bytes).map_err(|error| corrupt(format!("not a state file: {error}")))?;
        if checksum(envelope.data.get()) != envelope.checksum {
            return Err(corrupt("the checksum does not match".to_owned()));
        }
        let data = serde_json::from_str(envelope.data.get());
        data.map(Some).map_err(|error| corrupt(format!("not the state of this kubelet: {error}")))
    }

    /// Replaces the file.
    pub(super) fn write<T: Serialize>(&self, state: &T) -> Result<(), CheckpointError> {
        let encode = |error: serde_json::Error| self.failed("encode")(error.into());
        let data = serde_json::value::to_raw_value(state).map_err(encode)?;
        let checksum = checksum(data.get());
        let bytes = serde_json::to_vec(&Envelope { data, checksum }).map_err(encode)?;
        self.write_bytes(&bytes)
    }

    /// Reads the content of a file with a format of its own.
    pub(super) fn read_bytes(&self) -> Result<Option<Vec<u8>>, CheckpointError> {
        match std::fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("read")(source)),
        }
    }

    /// Returns the error for content that is not what was written.
    pub(super) fn corrupt(&self, reason: String) -> CheckpointError {
        CheckpointError::Corrupt { path: self.path.clone(), reason }
    }

    /// Returns what makes an error of a failed operation.
    pub(super) fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> CheckpointError + use<> {
        let path = self.path.clone();
        move |source| CheckpointError::Io { action, path, source }
    }

    /// Replaces the content of a file with a format of its own.
    pub(super) fn write_bytes(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let gate = self.gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *gate == Gate::Closed {
            return Err(CheckpointError::Dead { path: self.path.clone() });
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".").tempfile_in(directory).map_err(self.failed("write"))?;
        file.write_all(bytes).map_err(self.failed("write"))?;
        file.persist(&self.path).map_err(|error| self.failed("replace")(error.error))?;
        Ok(())
    }
}

fn checksum(data: &str) -> String {
    let digest = Sha256::digest(data.as_bytes());
    digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: &Path) -> StateFile {
        StateFile::new(directory.join("state"), WriteGate::default())
    }

    #[test]
    fn state_is_read_back_and_a_missing_file_is_no_state() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        assert_eq!(file.read::<Vec<u32>>().unwrap(), None);
        file.write(&vec![1, 2]).unwrap();
        file.write(&vec![3]).unwrap();
        assert_eq!(file.read::<Vec<u32>>().unwrap(), Some(vec![3]));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_changed_or_torn_file_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        file.write(&vec![1, 2]).unwrap();
        let text = std::fs::read_to_string(directory.path().join("state")).unwrap();
        for wrong in [text.replace("[1,2]", "[1,3]"), text[..20].to_owned(), String::new()] {
            std::fs::write(directory.path().join("state"), wrong).unwrap();
            let error = file.read::<Vec<u32>>().unwrap_err();
            assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}");
        }
    }

    #[test]
    fn a_killed_kubelet_does_not_write() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(directory.path());
        file.write(&1).unwrap();
        file.gate.close();
        assert!(matches!(file.write(&2), Err(CheckpointError::Dead { .. })));
        assert_eq!(file.read::<u32>().unwrap(), Some(1));
    }
}
