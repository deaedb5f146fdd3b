//! The node's temporary directory.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest temporary directory, in bytes, below which the paths of drivers' sockets stay within the limit of `sun_path`.
const MAX_TEMP_DIR_LENGTH: usize = 36;
/// The number of attempts to remove the directory, and the delay between them.
const REMOVE_ATTEMPTS: usize = 100;
const REMOVE_RETRY_DELAY: Duration = Duration::from_millis(5);

/// A temporary directory that is removed on drop.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> io::Result<Self> {
        let configured = std::env::temp_dir();
        // Unix socket paths are limited to 108 bytes, so a long TMPDIR is not used.
        let parent =
            if configured.as_os_str().len() > MAX_TEMP_DIR_LENGTH { PathBuf::from("/tmp") } else { configured };
        let mut builder = tempfile::Builder::new();
        // The directory holds credentials.
        builder.prefix("dk-").permissions(Permissions::from_mode(0o700));
        Ok(Self(builder.tempdir_in(parent)?.keep()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the directory with its content. Retries, because a task that is just being aborted may still create a file.
    pub(super) fn remove(&self) -> io::Result<()> {
        let mut attempts = 0..REMOVE_ATTEMPTS;
        loop {
            match std::fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if attempts.next().is_none() => return Err(error),
                Err(_) => std::thread::sleep(REMOVE_RETRY_DELAY),
                // Checks once more that nothing has created it again.
                Ok(()) => {}
            }
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(path = %self.0.display(), %error, "removing the node's directory failed");
        }
    }
}
