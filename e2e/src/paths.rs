//! The directories of a cluster, and the names and addresses derived from them.
//!
//! Everything that must differ between two clusters on one host is derived from the path of the state directory, so that
//! the clusters of two checkouts do not collide.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, IoContext, Result};

/// The environment variable that sets cargo's target directory.
const TARGET: &str = "CARGO_TARGET_DIR";

/// The environment variable that sets the cluster's state directory.
const STATE: &str = "DRAKKAR_E2E_DIR";

/// The file that marks a directory as a cluster's. Directories without it are never removed.
const MARKER: &str = ".drakkar-e2e";

/// The directories of which the node has its own copy, below the state directory. It shares the rest of the file system
/// with the host.
pub(crate) const NODE_DIRECTORIES: [&str; 4] = ["etc", "run", "var/lib", "var/log"];

/// The cluster IP of the service `kubernetes`, which every pod finds in its environment.
pub(crate) const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// The directories of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterPaths {
    state: PathBuf,
    cache: PathBuf,
    id: [u8; 4],
}

impl ClusterPaths {
    /// Returns the paths of this checkout's cluster. The state directory is `e2e/cluster` in cargo's target directory, or
    /// `$DRAKKAR_E2E_DIR`; build output is in `e2e` in the target directory in both cases. Relative paths are relative to
    /// the top of the checkout, whatever the current directory is.
    ///
    /// # Errors
    ///
    /// The state directory is unusable: inside a directory that the node replaces with its own, so that the node would not
    /// see it, or a parent of the build output.
    pub fn of_checkout() -> Result<Self> {
        let cache = from_repository(env::var_os(TARGET).unwrap_or_else(|| "target".into())).join("e2e");
        match env::var_os(STATE) {
            Some(state) => Self::at(&from_repository(state), &cache),
            None => Self::at(&cache.join("cluster"), &cache),
        }
    }

    pub(crate) fn at(state: &Path, cache: &Path) -> Result<Self> {
        let state = std::path::absolute(state).with_context(|| format!("find {}", state.display()))?;
        let refuse = |reason: &str| Err(Error::Directory { path: state.clone(), reason: reason.to_owned() });
        if state.components().any(|part| part == Component::ParentDir) {
            return refuse("its path contains `..`");
        }
        if cache.starts_with(&state) {
            return refuse("it contains the build output, which would be removed with the cluster");
        }
        if NODE_DIRECTORIES.iter().any(|own| state.starts_with(Path::new("/").join(own))) {
            return refuse("the node has its own /etc, /run, /var/lib and /var/log and would not see it");
        }
        if state.to_str().is_none_or(|path| path.contains(['\'', '"', '\\', '\n', ':', ' '])) {
            return refuse("its path contains characters that the components' configuration files do not allow");
        }
        let hash = Sha256::digest(state.as_os_str().as_encoded_bytes());
        Ok(Self { id: [hash[0], hash[1], hash[2], hash[3]], state, cache: cache.to_path_buf() })
    }

    /// The state directory, which `down` removes.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The directory of the build output, which `down` keeps.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The directory of the node's programs.
    pub(crate) fn bin(&self) -> PathBuf {
        self.cache.join("bin")
    }

    /// Returns the path on the host of a path in the node.
    pub(crate) fn host_path(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").unwrap_or(path);
        match inside.strip_prefix("var/run") {
            Ok(rest) => self.state.join("root/run").join(rest),
            Err(_) if NODE_DIRECTORIES.iter().any(|own| inside.starts_with(own)) => {
                self.state.join("root").join(inside)
            }
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

    pub(crate) fn process_record(&self, name: &str) -> PathBuf {
        self.state.join(format!("process/{name}"))
    }

    pub(crate) fn command_line(&self, name: &str) -> PathBuf {
        self.state.join(format!("command/{name}"))
    }

    /// The name of the host's end of the veth pair to the node. Network interface names have at most 15 bytes.
    pub(crate) fn interface(&self) -> String {
        format!("dke2e-{}", self.id())
    }

    /// The name of the cgroup that contains the pods' cgroups, in every hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        format!("drakkar-e2e-{}", self.id())
    }

    /// The addresses of the host's and of the node's end of the veth pair, a /30 in 198.18.0.0/16. That range is reserved
    /// for benchmarks (RFC 2544), so it does not collide with the networks of the host.
    pub(crate) fn link(&self) -> (Ipv4Addr, Ipv4Addr) {
        let net = self.id[3] & !3;
        (Ipv4Addr::new(198, 18, self.id[2], net | 1), Ipv4Addr::new(198, 18, self.id[2], net | 2))
    }

    /// Creates the state directory, which must not exist or be empty.
    pub(crate) fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.state).with_context(|| format!("create {}", self.state.display()))?;
        let mut entries = fs::read_dir(&self.state).with_context(|| format!("read {}", self.state.display()))?;
        if entries.next().is_some() {
            return Err(Error::Directory { path: self.state.clone(), reason: "it is not empty".to_owned() });
        }
        fs::write(self.state.join(MARKER), "").with_context(|| format!("write to {}", self.state.display()))?;
        let directories = ["command", "log", "pki", "process", "hold", "sysctl"].map(|name| self.state.join(name));
        for directory in directories.into_iter().chain(NODE_DIRECTORIES.map(|own| self.state.join("root").join(own))) {
            fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
        }
        Ok(())
    }

    /// Whether the state directory exists and is a cluster's, running or not. The default directory needs no marker:
    /// nothing else in the target directory has its name.
    pub(crate) fn exists(&self) -> bool {
        self.state.join(MARKER).exists() || (self.state == self.cache.join("cluster") && self.state.exists())
    }

    /// Removes the state directory if it is a cluster's.
    pub(crate) fn remove(&self) -> Result<()> {
        if !self.exists() {
            return Ok(());
        }
        // The marker goes last, so that an interrupted removal can be repeated.
        for entry in fs::read_dir(&self.state).with_context(|| format!("read {}", self.state.display()))? {
            let path = entry.with_context(|| format!("read {}", self.state.display()))?.path();
            if path.ends_with(MARKER) {
                continue;
            }
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
                .with_context(|| format!("remove {}", path.display()))?;
        }
        fs::remove_dir_all(&self.state).with_context(|| format!("remove {}", self.state.display()))
    }

    /// Eight hexadecimal digits that identify this cluster on the host.
    pub(crate) fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the environment variables that set directories, made absolute, for programs that run in another directory.
pub fn directory_variables() -> impl Iterator<Item = (&'static str, PathBuf)> {
    [TARGET, STATE].into_iter().filter_map(|name| Some((name, from_repository(env::var_os(name)?))))
}

/// Resolves a path relative to the top of the repository.
fn from_repository(path: impl AsRef<Path>) -> PathBuf {
    // `join` keeps an absolute path as it is; collecting the components drops `.`.
    repository().join(path).components().collect()
}

/// The top of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster_paths(state: &str) -> Result<ClusterPaths> {
        ClusterPaths::at(Path::new(state), Path::new("/cache"))
    }

    #[test]
    fn two_directories_share_no_names_and_no_addresses() {
        let one = cluster_paths("/a/e2e").unwrap();
        let other = cluster_paths("/b/e2e").unwrap();
        assert_ne!(one.interface(), other.interface());
        assert_ne!(one.cgroup(), other.cgroup());
        assert_ne!(one.link(), other.link());
        assert!(one.interface().len() <= 15, "interface names have at most 15 bytes");
    }

    #[test]
    fn directories_that_the_node_hides_are_refused() {
        for path in ["/run/e2e", "/etc/e2e", "/var/lib/e2e", "/var/log", "/a/../run", "/with space", "/with'quote"] {
            assert!(matches!(cluster_paths(path), Err(Error::Directory { .. })), "{path}");
        }
        assert!(cluster_paths("/var/tmp/e2e").is_ok());
    }

    #[test]
    fn directories_that_contain_the_build_output_are_refused() {
        for path in ["/cache", "/"] {
            assert!(matches!(cluster_paths(path), Err(Error::Directory { .. })), "{path}");
        }
        assert!(cluster_paths("/cache/cluster").is_ok());
    }

    #[test]
    fn relative_paths_are_relative_to_the_repository() {
        assert_eq!(from_repository("target/./e2e"), repository().join("target/e2e"));
        assert_eq!(from_repository("/a/b"), Path::new("/a/b"));
    }

    #[test]
    fn paths_in_the_node_map_to_paths_on_the_host() {
        let paths = cluster_paths("/s").unwrap();
        for (in_node, on_host) in [
            ("/var/lib/kubelet/plugins", "/s/root/var/lib/kubelet/plugins"),
            ("/var/run/cdi", "/s/root/run/cdi"),
            ("/run/nri/nri.sock", "/s/root/run/nri/nri.sock"),
            ("/usr/bin/env", "/usr/bin/env"),
        ] {
            assert_eq!(paths.host_path(Path::new(in_node)), Path::new(on_host));
        }
    }

    #[test]
    fn a_leftover_default_directory_is_removed_without_a_marker() {
        let target = tempfile::tempdir().unwrap();
        let paths = ClusterPaths::at(&target.path().join("cluster"), target.path()).unwrap();
        fs::create_dir_all(paths.state().join("root/var")).unwrap();
        paths.remove().unwrap();
        assert!(!paths.state().exists() && target.path().exists());

        let programs = ClusterPaths::at(&target.path().join("bin"), target.path()).unwrap();
        fs::create_dir(programs.state()).unwrap();
        programs.remove().unwrap();
        assert!(programs.state().exists(), "it is not a cluster's directory");
    }

    #[test]
    fn only_a_clusters_directory_is_removed_or_taken() {
        let directory = tempfile::tempdir().unwrap();
        let theirs = directory.path().join("theirs");
        fs::write(&theirs, "").unwrap();
        let paths = ClusterPaths::at(directory.path(), Path::new("/cache")).unwrap();
        paths.remove().unwrap();
        assert!(theirs.exists());
        assert!(matches!(paths.create(), Err(Error::Directory { .. })));

        fs::remove_file(&theirs).unwrap();
        paths.create().unwrap();
        assert!(paths.exists());
        paths.remove().unwrap();
        assert!(!directory.path().exists());
    }
}
