//! One instance of a driver at a time: what a start recovers must not be what another process is working on.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The lock of an instance. It is held until this is dropped or the process ends.
#[derive(Debug)]
pub struct InstanceLock {
    file: File,
}

/// A lock that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another instance of the driver runs on the node.
    #[error(
        "another instance of the driver runs on this node: it has locked {}. Two cannot: update the DaemonSet with maxSurge: 0",
        .path.display()
    )]
    Held {
        /// The lock file.
        path: PathBuf,
    },
    /// The lock file cannot be used.
    #[error("lock {}: {source}", .path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
}

impl InstanceLock {
    /// Locks a driver's state on this node. The lock file is beside the state directory, with the extension `lock`.
    pub fn acquire(state_directory: &Path) -> Result<Self, LockError> {
        let path = state_directory.with_extension("lock");
        let open = || {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory)?;
            }
            File::options().create(true).truncate(false).write(true).open(&path)
        };
        let file = open().map_err(|source| LockError::File { path: path.clone(), source })?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held { path }),
            Err(TryLockError::Error(source)) => Err(LockError::File { path, source }),
        }
    }
}

/// Closing the file is not enough: a child process that was forked and has not replaced its program yet has the file open too.
impl Drop for InstanceLock {
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "unlocking the driver's state failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_instance_is_refused_until_the_first_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("plugin/devices");
        let first = InstanceLock::acquire(&state).unwrap();
        let error = InstanceLock::acquire(&state).unwrap_err();
        assert!(matches!(&error, LockError::Held { path } if path.ends_with("plugin/devices.lock")), "{error}");
        drop(first);
        InstanceLock::acquire(&state).unwrap();
    }

    #[test]
    fn a_copy_of_the_file_in_another_process_does_not_keep_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("devices");
        let first = InstanceLock::acquire(&state).unwrap();
        // As a child has between fork and exec.
        let copy = first.file.try_clone().unwrap();
        drop(first);
        InstanceLock::acquire(&state).unwrap();
        drop(copy);
    }
}
