//! Leftovers: the files, containers and claims on a node that remain when claims are gone.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use drakkar_client::ClaimRef;

use super::{Node, NodeError};
use crate::runner::State;

/// Files that stay for as long as a driver is installed: locks, and the generations of its published slices.
const DRIVER_FILES: [&str; 3] = ["serialize.lock", "publish.lock", "slice-generations.json"];
/// The directory of KEP-5304 in a plugin's directory: everything in it belongs to claims.
const METADATA: &str = "dra-device-metadata";
/// The size above which a file is not searched for claims.
const MAX_SEARCHED: u64 = 1 << 20;

/// What remains on a node when claims are gone, by owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// What belongs to the claims: metadata, files and CDI specs whose path or content names a claim, running containers, and
    /// claims in the kubelet's cache.
    pub of_claims: Vec<String>,
    /// What the driver keeps for itself, such as a checkpoint without these claims, or a CDI spec for all claims.
    pub of_driver: Vec<String>,
}

impl Node {
    /// Returns everything that belongs to claims: the driver's files, CDI specs, claims in the cache of a running kubelet, and
    /// running containers; not the sockets of drivers. Empty after the last claim is unprepared, unless the driver keeps
    /// files of its own, which [`leftovers_of`](Self::leftovers_of) tells apart.
    pub async fn leftovers(&self, driver: &str) -> Result<Vec<String>, NodeError> {
        let mut found = self.files(driver)?;
        found.extend(self.in_use().await);
        found.sort();
        Ok(found)
    }

    /// Returns what remains of these claims, and what the driver keeps for itself. A file belongs to a claim if its path or
    /// its content has the claim's UID, or namespace and name in the form of KEP-5304's paths.
    pub async fn leftovers_of(&self, driver: &str, claims: &[ClaimRef]) -> Result<Leftovers, NodeError> {
        let claims: Vec<ClaimNames> = claims.iter().map(ClaimNames::new).collect();
        let mut leftovers = Leftovers { of_claims: self.in_use().await, ..Leftovers::default() };
        for file in self.files(driver)? {
            let is_metadata = Path::new(&file).components().any(|part| part.as_os_str() == METADATA);
            let names = |claim: &ClaimNames| claim.is_in_path(&file) || claim.is_in_file(&self.directory().join(&file));
            let owner = if is_metadata || claims.iter().any(names) {
                &mut leftovers.of_claims
            } else {
                &mut leftovers.of_driver
            };
            owner.push(file);
        }
        leftovers.of_claims.sort();
        leftovers.of_driver.sort();
        Ok(leftovers)
    }

    /// Returns the sockets in the kubelet's registry and of all drivers.
    pub fn sockets(&self) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        sockets(&self.kubelet_root(), self.directory(), &mut found)?;
        found.sort();
        Ok(found)
    }

    /// Returns a driver's files and the CDI specs, relative to the node's directory.
    fn files(&self, driver: &str) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        walk(&self.kubelet_root().join("plugins").join(driver), self.directory(), &mut found)?;
        walk(&self.cdi_directory(), self.directory(), &mut found)?;
        Ok(found)
    }

    /// Returns the running containers and the claims in the kubelet's cache.
    async fn in_use(&self) -> Vec<String> {
        let running = self.runner.all().into_iter().filter(|info| matches!(info.state, State::Running { .. }));
        let containers =
            running.map(|info| format!("container {} of pod {}/{}", info.name, info.namespace, info.pod_name));
        let claims = self.kubelet_claims().await.into_iter().map(|claim| format!("kubelet: claim {claim:?}"));
        containers.chain(claims).collect()
    }
}

/// The texts that identify a claim in paths and files.
struct ClaimNames {
    uid: String,
    /// The claim's directory in the KEP's path on the host.
    path: String,
    /// The claim as Kubernetes writes it, and in paths inside containers.
    texts: [String; 3],
}

impl ClaimNames {
    fn new(claim: &ClaimRef) -> Self {
        let ClaimRef { namespace, name, uid } = claim;
        Self {
            uid: uid.to_string(),
            path: format!("{namespace}_{name}"),
            texts: [
                format!("{namespace}/{name}"),
                format!("dra-device-attributes/{name}/"),
                format!("resourceclaims/{name}/"),
            ],
        }
    }

    fn is_in_path(&self, path: &str) -> bool {
        path.contains(&self.uid) || has_word(path, &self.path)
    }

    /// Reports whether a file names the claim. Logs are not state: what they mention is no leftover.
    fn is_in_file(&self, path: &Path) -> bool {
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let is_searched = fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_SEARCHED);
        if is_log || !is_searched {
            return false;
        }
        // The file may have been removed since it was listed.
        let content = fs::read(path).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        self.is_in_path(&content) || self.texts.iter().any(|text| has_word(&content, text))
    }
}

/// Reports whether the text has this word, and not only as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |next: char| next.is_ascii_alphanumeric() || next == '-';
    text.match_indices(word).any(|(start, _)| {
        let before = text.get(..start).and_then(|before| before.chars().next_back());
        let after = text.get(start + word.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(is_name) && (word.ends_with('/') || !after.is_some_and(is_name))
    })
}

fn walk(directory: &Path, root: &Path, found: &mut Vec<String>) -> Result<(), NodeError> {
    for_each_entry(directory, &mut |entry, kind| {
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, root, found)?;
        }
        // The directory that holds the claims' directories belongs to no claim.
        let is_metadata_root = kind.is_dir() && entry.file_name() == METADATA;
        if !kind.is_socket() && !is_metadata_root && !DRIVER_FILES.iter().any(|name| entry.file_name() == *name) {
            found.push(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
        Ok(())
    })
}

fn sockets(directory: &Path, root: &Path, found: &mut Vec<String>) -> Result<(), NodeError> {
    for_each_entry(directory, &mut |entry, kind| {
        let path = entry.path();
        if kind.is_dir() {
            sockets(&path, root, found)?;
        } else if kind.is_socket() {
            found.push(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
        Ok(())
    })
}

/// Visits the entries of a directory; none if the directory does not exist, or is just being removed.
fn for_each_entry(
    directory: &Path,
    visit: &mut dyn FnMut(&fs::DirEntry, fs::FileType) -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    let is_gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries.map_err(NodeError::Directory)?,
    };
    for entry in entries {
        let entry = entry.map_err(NodeError::Directory)?;
        match entry.file_type() {
            Err(error) if is_gone(&error) => {}
            kind => visit(&entry, kind.map_err(NodeError::Directory)?)?,
        }
    }
    Ok(())
}
