//! What there is on a node when claims are gone, and whose it is.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use drakkar_client::ClaimRef;

use super::{Node, NodeError};
use crate::runner::State;

/// What stays for as long as a driver is installed: locks, and the generations that it has published.
const OF_DRIVER: [&str; 3] = ["serialize.lock", "publish.lock", "slice-generations.json"];
/// The directory of KEP-5304 in a plugin's own: all in it is of claims.
const METADATA: &str = "dra-device-metadata";
/// A file that is larger is not searched for claims.
const MAX_SEARCHED: u64 = 1 << 20;

/// What there is on a node when claims are gone, by whose it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// What belongs to the claims: metadata, files and CDI specs that name a claim or that a claim is named in, containers,
    /// and claims that the kubelet knows.
    pub of_claims: Vec<String>,
    /// What the driver keeps for itself: a checkpoint without these claims, a CDI spec for all claims and the like.
    pub of_driver: Vec<String>,
}

impl Node {
    /// All that there is of claims: the driver's files, the CDI specs, claims that the kubelet knows while it runs,
    /// containers. Sockets of drivers that run are not among it. Empty when the last claim has been unprepared, unless a
    /// driver keeps files for itself, which [`leftovers_of`](Self::leftovers_of) tells apart.
    pub async fn leftovers(&self, driver: &str) -> Result<Vec<String>, NodeError> {
        let mut found = self.files(driver)?;
        found.extend(self.in_use().await);
        found.sort();
        Ok(found)
    }

    /// What is left of these claims, and what the driver keeps that is not theirs. A file is a claim's if its path or its
    /// content has the claim's UID, or namespace and name as KEP-5304 has them in paths.
    pub async fn leftovers_of(&self, driver: &str, claims: &[ClaimRef]) -> Result<Leftovers, NodeError> {
        let claims: Vec<Names> = claims.iter().map(Names::new).collect();
        let mut left = Leftovers { of_claims: self.in_use().await, ..Leftovers::default() };
        for file in self.files(driver)? {
            let is_metadata = Path::new(&file).components().any(|part| part.as_os_str() == METADATA);
            let is_of = |claim: &Names| claim.is_in_path(&file) || claim.is_in_file(&self.directory().join(&file));
            let of = if is_metadata || claims.iter().any(is_of) { &mut left.of_claims } else { &mut left.of_driver };
            of.push(file);
        }
        left.of_claims.sort();
        left.of_driver.sort();
        Ok(left)
    }

    /// The sockets in the kubelet's registry and of all drivers.
    pub fn sockets(&self) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        sockets(&self.kubelet_root(), self.directory(), &mut found)?;
        found.sort();
        Ok(found)
    }

    /// Files of a driver and CDI specs, relative to the node's directory.
    fn files(&self, driver: &str) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        walk(&self.kubelet_root().join("plugins").join(driver), self.directory(), &mut found)?;
        walk(&self.cdi_directory(), self.directory(), &mut found)?;
        Ok(found)
    }

    /// Containers that run, and claims that the kubelet knows.
    async fn in_use(&self) -> Vec<String> {
        let running = self.runner.all().into_iter().filter(|one| matches!(one.state, State::Running { .. }));
        let containers = running.map(|one| format!("container {} of pod {}/{}", one.name, one.namespace, one.pod_name));
        let claims = self.kubelet_claims().await.into_iter().map(|claim| format!("kubelet: claim {claim:?}"));
        containers.chain(claims).collect()
    }
}

/// What a claim is known by in files.
struct Names {
    uid: String,
    /// As in the KEP's path on the host.
    path: String,
    /// As Kubernetes writes it, and as in paths in containers.
    texts: [String; 3],
}

impl Names {
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

    /// Logs are no state: whatever they say, nothing is left of it.
    fn is_in_file(&self, path: &Path) -> bool {
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let is_searched = fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_SEARCHED);
        if is_log || !is_searched {
            return false;
        }
        // It may be gone by now.
        let content = fs::read(path).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        self.is_in_path(&content) || self.texts.iter().any(|text| has_word(&content, text))
    }
}

/// Whether the text has this word, and not only as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |next: char| next.is_ascii_alphanumeric() || next == '-';
    text.match_indices(word).any(|(start, _)| {
        let before = text.get(..start).and_then(|before| before.chars().next_back());
        let after = text.get(start + word.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(is_name) && (word.ends_with('/') || !after.is_some_and(is_name))
    })
}

fn walk(directory: &Path, root: &Path, found: &mut Vec<String>) -> Result<(), NodeError> {
    each(directory, &mut |entry, kind| {
        let path = entry.path();
        if kind.is_dir() {
            walk(&path, root, found)?;
        }
        // The directory for all claims is not the claims'.
        let is_of_all = kind.is_dir() && entry.file_name() == METADATA;
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
    look: &mut dyn FnMut(&fs::DirEntry, fs::FileType) -> Result<(), NodeError>,
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
            kind => look(&entry, kind.map_err(NodeError::Directory)?)?,
        }
    }
    Ok(())
}
