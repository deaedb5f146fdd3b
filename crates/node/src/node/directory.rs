//! The directory of a node, which goes with it.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest directory for temporary files, in bytes, that leaves room for the sockets of drivers.
const LONGEST: usize = 36;
/// How often its removal is tried, and the pause between.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// A temporary directory.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> io::Result<Self> {
        let wanted = std::env::temp_dir();
        // The paths of sockets are short: a long TMPDIR is no place for them.
        let place = if wanted.as_os_str().len() > LONGEST { PathBuf::from("/tmp") } else { wanted };
        let mut builder = tempfile::Builder::new();
        // Credentials are in it.
        builder.prefix("dk-").permissions(Permissions::from_mode(0o700));
        Ok(Self(builder.tempdir_in(place)?.keep()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes it with all that is in it. A task that was just ended may still be at a file, which is then there again:
    /// so it is tried until nobody is.
    pub(super) fn remove(&self) -> io::Result<()> {
        let mut tries = 0..TRIES;
        loop {
            match std::fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if tries.next().is_none() => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
                // Looks once more whether somebody has made it again.
                Ok(()) => {}
            }
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(path = %self.0.display(), %error, "the node's directory is left");
        }
    }
}
