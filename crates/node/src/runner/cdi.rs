//! CDI devices: resolved to edits of a container as containerd and CRI-O do it.
//!
//! [`scan`] reads the spec directories; [`Specs::inject`] resolves device names to edits of a container, or refuses them all
//! if one is missing. A [`Cache`] does so with the specs that a runtime would know.

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

/// A problem in a spec directory; the devices of other files are not affected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecProblem {
    /// The file, or the directory that cannot be read.
    pub path: PathBuf,
    /// The problem.
    pub problem: String,
}

impl fmt::Display for SpecProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

impl Specs {
    /// Applies the edits of devices to a container: for each device the edits of its file, once per file, then its own.
    ///
    /// A name that occurs twice is applied once. If devices are missing, nothing is applied, and the error names them all.
    pub fn inject(&self, devices: &[String], edits: &mut Edits) -> Result<(), InjectError> {
        let mut seen = HashSet::new();
        let mut files: Vec<*const scan::File> = Vec::new();
        let mut found = Vec::new();
        let mut missing = Vec::new();
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
