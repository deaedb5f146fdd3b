//! What a driver has left on a node.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::{Node, NodeError};
use crate::runner::State;

/// What stays for as long as a driver is installed: locks, and the generations that it has published.
const OF_DRIVER: [&str; 3] = ["serialize.lock", "publish.lock", "slice-generations.json"];

impl Node {
    /// All that there is of claims: the driver's files, the CDI specs, claims that the kubelet knows while it runs,
    /// containers. Sockets of drivers that run are not among it. Empty when the last claim has been unprepared.
    pub async fn leftovers(&self, driver: &str) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        walk(&self.kubelet_root().join("plugins").join(driver), self.directory(), &mut found)?;
        walk(&self.cdi_directory(), self.directory(), &mut found)?;
        let running = self.runner.all().into_iter().filter(|one| matches!(one.state, State::Running { .. }));
        found.extend(running.map(|one| format!("container {} of pod {}/{}", one.name, one.namespace, one.pod_name)));
        found.extend(self.kubelet_claims().await.into_iter().map(|claim| format!("kubelet: claim {claim:?}")));
        found.sort();
        Ok(found)
    }

    /// The sockets in the kubelet's registry and of all drivers.
    pub fn sockets(&self) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        sockets(&self.kubelet_root(), self.directory(), &mut found)?;
        found.sort();
        Ok(found)
    }
}

fn walk(directory: &Path, root: &Path, found: &mut Vec<String>) -> Result<(), NodeError> {
    each(directory, &mut |entry, kind| {
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, root, found)?;
        }
        // The directory for all claims is not the claims'.
        let is_of_all = kind.is_dir() && entry.file_name() == "dra-device-metadata";
        if !kind.is_socket() && !is_of_all && !OF_DRIVER.iter().any(|name| entry.file_name() == *name) {
            found.push(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
        Ok(())
    })
}

fn sockets(directory: &Path, root: &Path, found: &mut Vec<String>) -> Result<(), NodeError> {
    each(directory, &mut |entry, kind| {
        let path = entry.path();
        if kind.is_dir() {
            sockets(&path, root, found)?;
        } else if kind.is_socket() {
            found.push(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
        Ok(())
    })
}

/// Everything in a directory; nothing if there is no directory, or while it is just being removed.
fn each(
    directory: &Path,
    look: &mut dyn FnMut(&std::fs::DirEntry, std::fs::FileType) -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    let is_gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries.map_err(NodeError::Directory)?,
    };
    for entry in entries {
        let entry = entry.map_err(NodeError::Directory)?;
        match entry.file_type() {
            Err(error) if is_gone(&error) => {}
            kind => look(&entry, kind.map_err(NodeError::Directory)?)?,
        }
    }
    Ok(())
}
