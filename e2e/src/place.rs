//! Where a cluster has its files, and the names and addresses that follow from that.
//!
//! Everything that differs between two clusters on one machine is taken from the path of the directory, so that those
//! of two checkouts do not meet.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Doing, Error, Result};

/// The environment variables that say where cargo builds, and where the cluster is.
const TARGET: &str = "CARGO_TARGET_DIR";
const STATE: &str = "DRAKKAR_E2E_DIR";

/// What the directory of a cluster has, and no other directory: only such a one is ever removed.
const MARK: &str = ".drakkar-e2e";

/// The node has its own of these, below the cluster's directory; all else of the file system it shares with the
/// machine.
pub(crate) const OWN: [&str; 4] = ["etc", "run", "var/lib", "var/log"];

/// The service address of the API server, which every pod is told.
pub(crate) const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// The directories of a cluster.
#[derive(Clone, Debug)]
pub struct Place {
    state: PathBuf,
    cache: PathBuf,
    id: [u8; 4],
}

impl Place {
    /// The place of this checkout: `e2e/cluster` in cargo's target directory, or `$DRAKKAR_E2E_DIR`. What is built is in
    /// `e2e` in the target directory in both cases. Relative paths are from the top of the checkout, whoever asks.
    ///
    /// # Errors
    ///
    /// The directory is one that the node has its own of, so that it would not see the cluster's files, or one that
    /// holds what is built.
    pub fn of_checkout() -> Result<Self> {
        let cache = from_top(env::var_os(TARGET).unwrap_or_else(|| "target".into())).join("e2e");
        match env::var_os(STATE) {
            Some(state) => Self::at(&from_top(state), &cache),
            None => Self::at(&cache.join("cluster"), &cache),
        }
    }

    pub(crate) fn at(state: &Path, cache: &Path) -> Result<Self> {
        let state = std::path::absolute(state).doing(|| format!("find {}", state.display()))?;
        let refuse = |reason: &str| Err(Error::Directory { path: state.clone(), reason: reason.to_owned() });
        if state.components().any(|part| part == Component::ParentDir) {
            return refuse("it has `..` in its path");
        }
        if cache.starts_with(&state) {
            return refuse("it holds what is built, which would be removed with the cluster");
        }
        if OWN.iter().any(|own| state.starts_with(Path::new("/").join(own))) {
            return refuse("the node has its own /etc, /run, /var/lib and /var/log, and would not see it");
        }
        if state.to_str().is_none_or(|path| path.contains(['\'', '"', '\\', '\n', ':', ' '])) {
            return refuse("its path has characters that configuration files cannot hold");
        }
        let hash = Sha256::digest(state.as_os_str().as_encoded_bytes());
        Ok(Self { id: [hash[0], hash[1], hash[2], hash[3]], state, cache: cache.to_path_buf() })
    }

    /// The directory of the cluster, which `down` removes.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// What is built, which stays.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The programs.
    pub(crate) fn bin(&self) -> PathBuf {
        self.cache.join("bin")
    }

    /// Where a file of the node is for the machine.
    pub(crate) fn of_node(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").unwrap_or(path);
        match inside.strip_prefix("var/run") {
            Ok(rest) => self.state.join("root/run").join(rest),
            Err(_) if OWN.iter().any(|own| inside.starts_with(own)) => self.state.join("root").join(inside),
            Err(_) => path.to_path_buf(),
        }
    }

    pub(crate) fn certificates(&self) -> PathBuf {
        self.state.join("pki")
    }

    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.state.join(format!("{user}.kubeconfig"))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.state.join(format!("log/{name}.log"))
    }

    pub(crate) fn record(&self, name: &str) -> PathBuf {
        self.state.join(format!("process/{name}"))
    }

    pub(crate) fn command_line(&self, name: &str) -> PathBuf {
        self.state.join(format!("command/{name}"))
    }

    /// The machine's end of the link to the node.
    pub(crate) fn interface(&self) -> String {
        format!("dke2e-{}", self.id())
    }

    /// The cgroup that holds those of all pods, in every hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        format!("drakkar-e2e-{}", self.id())
    }

    /// The addresses of the link, the machine's first: two of 198.18.0.0/16, which no network uses but in laboratories.
    pub(crate) fn link(&self) -> (Ipv4Addr, Ipv4Addr) {
        let net = self.id[3] & !3;
        (Ipv4Addr::new(198, 18, self.id[2], net | 1), Ipv4Addr::new(198, 18, self.id[2], net | 2))
    }

    /// Makes the directory, which must not be there or be empty.
    pub(crate) fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.state).doing(|| format!("make {}", self.state.display()))?;
        let mut entries = fs::read_dir(&self.state).doing(|| format!("read {}", self.state.display()))?;
        if entries.next().is_some() {
            return Err(Error::Directory { path: self.state.clone(), reason: "it is not empty".to_owned() });
        }
        fs::write(self.state.join(MARK), "").doing(|| format!("write to {}", self.state.display()))?;
        let directories = ["command", "log", "pki", "process", "hold", "sysctl"].map(|name| self.state.join(name));
        for directory in directories.into_iter().chain(OWN.map(|own| self.state.join("root").join(own))) {
            fs::create_dir_all(&directory).doing(|| format!("make {}", directory.display()))?;
        }
        Ok(())
    }

    /// Whether there is a cluster's directory, of one that is up or of one that died. In the target directory nobody
    /// else has one of that name.
    pub(crate) fn exists(&self) -> bool {
        self.state.join(MARK).exists() || (self.state == self.cache.join("cluster") && self.state.exists())
    }

    /// Removes the directory if it is a cluster's.
    pub(crate) fn remove(&self) -> Result<()> {
        if !self.exists() {
            return Ok(());
        }
        // The mark goes last: what is left half removed can be removed again.
        for entry in fs::read_dir(&self.state).doing(|| format!("read {}", self.state.display()))? {
            let path = entry.doing(|| format!("read {}", self.state.display()))?.path();
            if path.ends_with(MARK) {
                continue;
            }
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
                .doing(|| format!("remove {}", path.display()))?;
        }
        fs::remove_dir_all(&self.state).doing(|| format!("remove {}", self.state.display()))
    }

    /// Eight hexadecimal digits that tell this cluster from others.
    pub(crate) fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The variables that name directories, with absolute paths: for programs that are started in another directory.
pub fn directories() -> impl Iterator<Item = (&'static str, PathBuf)> {
    [TARGET, STATE].into_iter().filter_map(|name| Some((name, from_top(env::var_os(name)?))))
}

/// A path that may be relative to the top of the repository.
fn from_top(path: impl AsRef<Path>) -> PathBuf {
    // Joining leaves an absolute path as it is; its components in turn have no `.` between them.
    repository().join(path).components().collect()
}

/// The top of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(state: &str) -> Result<Place> {
        Place::at(Path::new(state), Path::new("/cache"))
    }

    #[test]
    fn two_directories_share_no_names_and_no_addresses() {
        let (one, other) = (place("/a/e2e").unwrap(), place("/b/e2e").unwrap());
        assert_ne!(one.interface(), other.interface());
        assert_ne!(one.cgroup(), other.cgroup());
        assert_ne!(one.link(), other.link());
        assert!(one.interface().len() <= 15, "the kernel takes no longer names");
    }

    #[test]
    fn directories_that_the_node_hides_are_refused() {
        for path in ["/run/e2e", "/etc/e2e", "/var/lib/e2e", "/var/log", "/a/../run", "/with space", "/with'quote"] {
            assert!(matches!(place(path), Err(Error::Directory { .. })), "{path}");
        }
        assert!(place("/var/tmp/e2e").is_ok());
    }

    #[test]
    fn directories_with_what_is_built_are_refused() {
        for path in ["/cache", "/"] {
            assert!(matches!(place(path), Err(Error::Directory { .. })), "{path}");
        }
        assert!(place("/cache/cluster").is_ok());
    }

    #[test]
    fn relative_paths_are_from_the_top() {
        assert_eq!(from_top("target/./e2e"), repository().join("target/e2e"));
        assert_eq!(from_top("/a/b"), Path::new("/a/b"));
    }

    #[test]
    fn the_files_of_the_node_are_found_from_outside() {
        let place = place("/s").unwrap();
        for (inside, outside) in [
            ("/var/lib/kubelet/plugins", "/s/root/var/lib/kubelet/plugins"),
            ("/var/run/cdi", "/s/root/run/cdi"),
            ("/run/nri/nri.sock", "/s/root/run/nri/nri.sock"),
            ("/usr/bin/env", "/usr/bin/env"),
        ] {
            assert_eq!(place.of_node(Path::new(inside)), Path::new(outside));
        }
    }

    #[test]
    fn what_is_left_in_the_target_directory_is_removed() {
        let target = tempfile::tempdir().unwrap();
        let place = Place::at(&target.path().join("cluster"), target.path()).unwrap();
        fs::create_dir_all(place.state().join("root/var")).unwrap();
        place.remove().unwrap();
        assert!(!place.state().exists() && target.path().exists());

        let programs = Place::at(&target.path().join("bin"), target.path()).unwrap();
        fs::create_dir(programs.state()).unwrap();
        programs.remove().unwrap();
        assert!(programs.state().exists(), "it is no cluster's");
    }

    #[test]
    fn only_a_clusters_directory_is_removed_or_taken() {
        let directory = tempfile::tempdir().unwrap();
        let theirs = directory.path().join("theirs");
        fs::write(&theirs, "").unwrap();
        let place = Place::at(directory.path(), Path::new("/cache")).unwrap();
        place.remove().unwrap();
        assert!(theirs.exists());
        assert!(matches!(place.create(), Err(Error::Directory { .. })));

        fs::remove_file(&theirs).unwrap();
        place.create().unwrap();
        assert!(place.exists());
        place.remove().unwrap();
        assert!(!directory.path().exists());
    }
}
