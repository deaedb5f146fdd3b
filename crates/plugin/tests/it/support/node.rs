//! A node's directories and their contents.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drakkar_plugin::{Helper, PluginBuilder};
use serde_json::Value;
use tempfile::TempDir;

use super::{ApiServer, DRIVER, TestClaim, TestDriver};

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

    /// Returns the builder of a driver with metadata that does not wait for devices.
    pub fn builder(&self) -> PluginBuilder {
        self.builder_for(DRIVER).device_timeout(Duration::ZERO)
    }

    /// Returns the builder of a driver with this name, with metadata.
    pub fn builder_for(&self, driver: &str) -> PluginBuilder {
        PluginBuilder::new(driver)
            .client(self.api.client())
            .kubelet_root(self.root.path())
            .cdi_directory(self.cdi_directory())
            .device_metadata(true)
    }

    pub async fn start(&self, driver: &TestDriver) -> Helper {
        self.builder().start(driver.clone()).await.unwrap()
    }

    /// Creates a claim in the API server, and returns it.
    pub fn claim(&self, claim: TestClaim) -> TestClaim {
        self.api.put(&claim.object);
        claim
    }

    /// Creates a claim whose UID (`uid-of-NAME`) and only device (`gpu-NAME`) are named after it.
    pub fn named_claim(&self, name: &str) -> TestClaim {
        self.claim(TestClaim::new(name, &format!("uid-of-{name}")).device("gpu", &format!("gpu-{name}")))
    }

    /// Returns the path of a request's metadata file on the host.
    pub fn metadata_file(&self, claim: &TestClaim, request: &str) -> PathBuf {
        self.claim_directory(claim).join(request).join("metadata.json")
    }

    /// Returns the metadata file of a request, in the first of its versions.
    pub fn metadata(&self, claim: &TestClaim, request: &str) -> Value {
        let bytes = std::fs::read(self.metadata_file(claim, request)).unwrap();
        serde_json::Deserializer::from_slice(&bytes).into_iter().next().unwrap().unwrap()
    }

    /// Returns all files and directories of the driver and in the CDI directory, relative to the node's root, without sockets
    /// and locks.
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
    /// Returns the names of the sockets in the registry directory and in the driver's directory.
    pub fn sockets(&self) -> Vec<String> {
        let mut names = Vec::new();
        for directory in [self.root.path().join("plugins_registry"), self.plugin_directory()] {
            let Ok(entries) = std::fs::read_dir(directory) else { continue };
            let sockets = entries.map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_socket());
            names.extend(sockets.map(|entry| entry.file_name().to_str().unwrap().to_owned()));
        }
        names.sort();
        names
    }

    /// Returns the path of a request's CDI spec.
    pub fn spec_file(&self, claim: &TestClaim, request: &str) -> PathBuf {
        self.cdi_directory().join(format!("{DRIVER}_metadata_{}_{request}.json", claim.uid()))
    }

    /// Returns the directory of a claim's metadata files.
    pub fn claim_directory(&self, claim: &TestClaim) -> PathBuf {
        self.plugin_directory().join("dra-device-metadata").join(format!("default_{}", claim.name()))
    }

    /// Whether a claim with only the request `gpu` is prepared. Fails the test if it is neither prepared nor unprepared.
    ///
    /// Prepared means that there are exactly its record, a valid metadata file, and a CDI spec that mounts the file.
    pub fn is_prepared(&self, claim: &TestClaim) -> bool {
        let directory = self.claim_directory(claim);
        let spec = self.spec_file(claim, "gpu");
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
