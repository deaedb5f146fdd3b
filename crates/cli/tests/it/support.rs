//! A container's root directory with metadata files, and the command to read them.

use std::fs;
use std::path::{Path, PathBuf};

use drakkar_metadata::path::ContainerFile;
use drakkar_metadata::{Device, Metadata, NetworkDeviceData, ObjectMeta, Request, Versions, encode};
use snapbox::cmd::{Command, cargo_bin};
use tempfile::TempDir;

/// A directory that plays a container's root.
pub(crate) struct Container(TempDir);

impl Container {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Keeps the directory on disk, for inspection.
    pub(crate) fn keep(self) -> PathBuf {
        self.0.keep()
    }

    /// Returns the command with this container's root.
    pub(crate) fn drakkar<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        drakkar().env("DRAKKAR_ROOT", self.root()).args(arguments)
    }

    /// Returns the path outside the container.
    pub(crate) fn outside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().join(path.as_ref().strip_prefix("/").unwrap())
    }

    pub(crate) fn write(&self, file: &ContainerFile, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.outside(file.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Links a file to a second path, like a second mount of it.
    pub(crate) fn link(&self, file: &ContainerFile, again: &ContainerFile) {
        let path = self.outside(again.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::hard_link(self.outside(file.path()), path).unwrap();
    }

    /// Creates the container of docs/workloads.md: claim `devices` from a template, request `gpu`, two devices, both layouts.
    pub(crate) fn with_gpus() -> Self {
        let container = Self::new();
        let file = template("devices", "gpu", "gpu.example.com");
        container.write(&file, encode(&gpus(), &Versions::default()));
        container.link(&file, &kep("trainer-devices-x7x2k", "gpu", "gpu.example.com"));
        container
    }
}

/// Returns the command, independent of the test's environment.
pub(crate) fn drakkar() -> Command {
    Command::new(cargo_bin!("drakkar")).env_remove("DRAKKAR_ROOT").env("NO_COLOR", "1")
}

pub(crate) fn claim(claim: &str, request: &str, driver: &str) -> ContainerFile {
    ContainerFile::Claim {
        claim: claim.parse().unwrap(),
        request: request.parse().unwrap(),
        driver: driver.parse().unwrap(),
    }
}

pub(crate) fn template(pod_claim: &str, request: &str, driver: &str) -> ContainerFile {
    ContainerFile::Template {
        pod_claim: pod_claim.parse().unwrap(),
        request: request.parse().unwrap(),
        driver: driver.parse().unwrap(),
    }
}

pub(crate) fn kep(claim: &str, request: &str, driver: &str) -> ContainerFile {
    ContainerFile::Kep {
        claim: claim.parse().unwrap(),
        request: request.parse().unwrap(),
        driver: driver.parse().unwrap(),
    }
}

pub(crate) fn device(driver: &str, name: &str) -> Device {
    Device { driver: driver.into(), pool: "worker-0".into(), name: name.into(), ..Device::default() }
}

pub(crate) fn metadata(claim: &str, uid: &str, request: &str, devices: Vec<Device>) -> Metadata {
    Metadata {
        metadata: ObjectMeta {
            name: claim.into(),
            namespace: "default".into(),
            uid: uid.into(),
            generation: 1,
            ..ObjectMeta::default()
        },
        pod_claim_name: None,
        requests: vec![Request { name: request.into(), devices }],
    }
}

/// The metadata that docs/workloads.md shows.
pub(crate) fn gpus() -> Metadata {
    let gpu = |name, address: &str| Device {
        attributes: [
            ("model".into(), "LATEST-GPU-MODEL".into()),
            ("resource.kubernetes.io/pciBusID".into(), address.into()),
        ]
        .into(),
        ..device("gpu.example.com", name)
    };
    let devices = vec![gpu("gpu-0", "0000:03:00.0"), gpu("gpu-1", "0000:04:00.0")];
    Metadata {
        pod_claim_name: Some("devices".into()),
        ..metadata("trainer-devices-x7x2k", "3f0c6a50-9c5c-4b52-8f0b-4f4c1f0d7f11", "gpu", devices)
    }
}

pub(crate) fn nic() -> Metadata {
    let network_data = NetworkDeviceData {
        interface_name: "net1".into(),
        ips: vec!["10.9.0.5/24".into(), "fd00:9::5/64".into()],
        hardware_address: "02:00:00:00:00:05".into(),
    };
    let nic = Device { network_data: Some(network_data), ..device("net.example.com", "eth1") };
    metadata("net", "b7a5f1de-52a5-4a5e-8e0a-6f0f2f8f5a22", "eth", vec![nic])
}
