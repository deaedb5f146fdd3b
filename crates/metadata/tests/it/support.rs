//! Shared by the tests: a root directory for files, and metadata.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use drakkar_metadata::{Device, Metadata, ObjectMeta, Reader, Request, Versions, encode};
use tempfile::TempDir;

pub(crate) const CLAIMS: &str = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims";
pub(crate) const TEMPLATES: &str = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates";
pub(crate) const KEP: &str = "/var/run/dra-device-attributes";

/// A temporary root directory. Paths are those in the container.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader::with_root(self.root()).unwrap()
    }

    /// Returns the path outside the container.
    pub(crate) fn outside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().join(path.as_ref().strip_prefix("/").unwrap())
    }

    /// Creates the parent directory of a path, and returns the path outside the container.
    pub(crate) fn create_parent(&self, path: impl AsRef<Path>) -> PathBuf {
        let outside = self.outside(path);
        fs::create_dir_all(outside.parent().unwrap()).unwrap();
        outside
    }

    pub(crate) fn directory(&self, path: impl AsRef<Path>) -> PathBuf {
        let outside = self.outside(path);
        fs::create_dir_all(&outside).unwrap();
        outside
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let outside = self.create_parent(path);
        fs::write(&outside, content).unwrap();
        outside
    }
}

/// The path of a file in the Kubernetes layout, for a claim that the pod names.
pub(crate) fn claim_path(claim: &str, request: &str, driver: &str) -> String {
    format!("{CLAIMS}/{claim}/{request}/{driver}-metadata.json")
}

/// The path of a file in the Kubernetes layout, for a claim from a template.
pub(crate) fn template_path(pod_claim: &str, request: &str, driver: &str) -> String {
    format!("{TEMPLATES}/{pod_claim}/{request}/{driver}-metadata.json")
}

/// The path of a file in the KEP's layout.
pub(crate) fn kep_path(claim: &str, request: &str, driver: &str) -> String {
    format!("{KEP}/{claim}/{request}/{driver}-metadata.json")
}

pub(crate) fn device(driver: &str, name: &str) -> Device {
    Device { driver: driver.into(), pool: "worker-0".into(), name: name.into(), ..Device::default() }
}

/// Returns metadata with one request that has these devices of this driver.
pub(crate) fn metadata(claim: &str, request: &str, driver: &str, devices: &[&str]) -> Metadata {
    Metadata {
        metadata: ObjectMeta {
            name: claim.into(),
            namespace: "default".into(),
            uid: format!("{claim}-uid"),
            generation: 1,
            ..ObjectMeta::default()
        },
        pod_claim_name: None,
        requests: vec![Request {
            name: request.into(),
            devices: devices.iter().map(|name| device(driver, name)).collect(),
        }],
    }
}

/// Makes metadata that of a claim from a template.
pub(crate) fn from_template(pod_claim: &str, mut metadata: Metadata) -> Metadata {
    metadata.pod_claim_name = Some(pod_claim.into());
    metadata
}

/// Returns a driver's file, with both versions.
pub(crate) fn file(metadata: &Metadata) -> Vec<u8> {
    encode(metadata, &both())
}

pub(crate) fn both() -> Versions {
    "v1beta1,v1alpha1".parse().unwrap()
}

/// Reads a fixture of this crate.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)).unwrap()
}

/// Runs `work`, and fails if it hangs.
pub(crate) fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still running after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the work panicked"),
    }
}

/// Returns the names of devices, in order.
pub(crate) fn device_names<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Vec<&'a str> {
    devices.into_iter().map(|device| device.name.as_str()).collect()
}
