//! Control files, by which tests change the driver's behaviour while it runs.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the driver polls its control files.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

pub(crate) struct Control {
    directory: PathBuf,
}

impl Control {
    pub(crate) fn new(directory: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// The revision to put into metadata; 0 if the file does not exist.
    pub(crate) fn revision(&self) -> i64 {
        self.read("revision").trim().parse().unwrap_or_default()
    }

    /// Whether deferred metadata may be delivered.
    pub(crate) fn may_deliver(&self) -> bool {
        !self.read("deliver").is_empty()
    }

    /// The names of the devices to report as unhealthy.
    pub(crate) fn unhealthy(&self) -> BTreeSet<String> {
        self.read("unhealthy").split_whitespace().map(str::to_owned).collect()
    }

    fn read(&self, name: &str) -> String {
        match std::fs::read_to_string(self.directory.join(name)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => {
                tracing::error!(name, %error, "reading a control file failed");
                String::new()
            }
        }
    }
}
