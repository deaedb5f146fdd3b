//! A node: directories, and what is in them.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ApiServer, DRIVER, TestClaim, TestDriver};
use drakkar_plugin::{Helper, PluginBuilder};
use serde_json::Value;
use tempfile::TempDir;

/// A node: the kubelet's directories, a CDI directory and an API server.
pub struct Node {
    pub root: TempDir,
    pub api: ApiServer,
}

impl Default for Node {
    fn default() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        Self { root, api: ApiServer::default() }
    }
}

impl Node {
    pub fn plugin_directory(&self) -> PathBuf {
        self.root.path().join("plugins").join(DRIVER)
    }

    pub fn cdi_directory(&self) -> PathBuf {
        self.root.path().join("cdi")
    }

    /// A driver on this node, with metadata, that does not wait for devices.
    pub fn builder(&self) -> PluginBuilder {
        PluginBuilder::new(DRIVER)
            .client(self.api.client())
            .kubelet_root(self.root.path())
            .cdi_directory(self.cdi_directory())
            .device_timeout(Duration::ZERO)
            .device_metadata(true)
    }

    pub async fn start(&self, driver: &TestDriver) -> Helper {
        self.builder().start(driver.clone()).await.unwrap()
    }

    /// A claim that the API server has.
    pub fn claim(&self, claim: TestClaim) -> TestClaim {
        self.api.put(&claim.object);
        claim
    }

    /// The metadata file of a request on the host.
    pub fn metadata_file(&self, claim: &TestClaim, request: &str) -> PathBuf {
        self.plugin_directory()
            .join("dra-device-metadata")
            .join(format!("default_{}", claim.name()))
            .join(request)
            .join("metadata.json")
    }

    /// What a metadata file says, in its first version.
    pub fn metadata(&self, claim: &TestClaim, request: &str) -> Value {
        let bytes = std::fs::read(self.metadata_file(claim, request)).unwrap();
        serde_json::Deserializer::from_slice(&bytes).into_iter().next().unwrap().unwrap()
    }

    /// Every file and directory of the driver and in the CDI directory, relative to the node's root; no sockets or locks.
    pub fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.plugin_directory(), &mut found);
        walk(&self.cdi_directory(), &mut found);
        let relative = |path: PathBuf| path.strip_prefix(self.root.path()).unwrap().to_str().unwrap().to_owned();
        let mut found: Vec<String> = found.into_iter().map(relative).collect();
        found.sort();
        found
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".sock") && name != "serialize.lock" {
            found.push(path);
        }
    }
}

impl Node {
    /// A driver of another name on this node, with metadata.
    pub fn builder_for(&self, driver: &str) -> PluginBuilder {
        PluginBuilder::new(driver)
            .client(self.api.client())
            .kubelet_root(self.root.path())
            .cdi_directory(self.cdi_directory())
            .device_metadata(true)
    }
}

impl Node {
    /// The files in the directories of sockets that are sockets, or staged ones.
    pub fn sockets(&self) -> Vec<String> {
        let mut names = Vec::new();
        for directory in [self.root.path().join("plugins_registry"), self.plugin_directory()] {
            let Ok(entries) = std::fs::read_dir(directory) else { continue };
            let names_of_sockets = entries.map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_socket());
            names.extend(names_of_sockets.map(|entry| entry.file_name().to_str().unwrap().to_owned()));
        }
        names.sort();
        names
    }

    /// The CDI spec of a request.
    pub fn spec_file(&self, claim: &TestClaim, request: &str) -> PathBuf {
        self.cdi_directory().join(format!("{DRIVER}_metadata_{}_{request}.json", claim.uid()))
    }

    /// The directory of a claim.
    pub fn claim_directory(&self, claim: &TestClaim) -> PathBuf {
        self.plugin_directory().join("dra-device-metadata").join(format!("default_{}", claim.name()))
    }

    /// Whether a claim with the one request `gpu` is prepared or not, which is all that it may be between two calls.
    /// Prepared means: there are a record and a file that can be read, a spec that names the file, and nothing else.
    pub fn is_prepared(&self, claim: &TestClaim) -> bool {
        let (directory, spec) = (self.claim_directory(claim), self.spec_file(claim, "gpu"));
        if !directory.exists() {
            assert!(!spec.exists(), "{} has a spec and no files", claim.name());
            return false;
        }
        let mut found = Vec::new();
        walk(&directory, &mut found);
        let mut names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(&directory).unwrap().to_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, [".claim.json", "gpu", "gpu/metadata.json"], "files of {}", claim.name());
        let bytes = std::fs::read(directory.join("gpu/metadata.json")).unwrap();
        let metadata = drakkar_metadata::decode(&bytes).unwrap().metadata;
        assert_eq!(metadata.metadata.uid, claim.uid());
        let spec: Value = serde_json::from_slice(&std::fs::read(spec).unwrap()).unwrap();
        let mounts = spec.pointer("/devices/0/containerEdits/mounts").and_then(Value::as_array).unwrap();
        assert!(!mounts.is_empty());
        for mount in mounts {
            assert_eq!(mount["hostPath"].as_str().map(Path::new), Some(self.metadata_file(claim, "gpu").as_path()));
        }
        true
    }
}
