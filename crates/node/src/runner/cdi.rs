//! What CDI devices do to a container, found out as containerd and CRI-O do.
//!
//! [`scan`] reads the spec directories; [`Specs::inject`] turns names of devices into edits of a container, or refuses all
//! of them when one is not there. A [`Cache`] does so with what the runtimes know of the directories.

mod cache;
mod edits;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub use cache::Cache;
pub use edits::{Edits, InjectError, Node};
pub use scan::{Specs, scan};

/// Something wrong in a spec directory; the devices of other files are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecProblem {
    /// The file, or the directory that cannot be read.
    pub path: PathBuf,
    /// What is wrong, for humans.
    pub problem: String,
}

impl fmt::Display for SpecProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

impl Specs {
    /// Applies the devices to a container's edits: for each its file's own edits, once per file, then the device's.
    ///
    /// A name that is there twice counts once. When a device cannot be found nothing is applied, and all such devices are
    /// in the error.
    pub fn inject(&self, devices: &[String], edits: &mut Edits) -> Result<(), InjectError> {
        let mut seen = HashSet::new();
        let mut files: Vec<*const scan::File> = Vec::new();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in devices.iter().filter(|name| seen.insert(name.as_str())) {
            let Some((file, device)) = self.device(name) else {
                missing.push(name.clone());
                continue;
            };
            let identity = Arc::as_ptr(file);
            if !files.contains(&identity) {
                files.push(identity);
                found.push(&file.spec.container_edits);
            }
            found.push(&device.container_edits);
        }
        if !missing.is_empty() {
            return Err(InjectError::Unresolvable { devices: missing, problems: self.problems().to_vec() });
        }
        edits.apply(&found)
    }
}
