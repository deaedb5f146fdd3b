//! Builds the content of the files: metadata documents, CDI devices and CDI specs.

use std::path::Path;

use drakkar_cdi::{ClaimDevices, MetadataDevice};
use drakkar_client::ClaimRef;
use drakkar_metadata::name::{PodClaimName, RequestName};
use drakkar_metadata::path::{ContainerFile, HOST_FILE, Layout};
use drakkar_metadata::{Device, Metadata, ObjectMeta, Request, decode, validate};

use super::directory_name::directory_name;
use super::files::Files;
use super::open_directory::{OpenDirectory, join_path};
use super::record::{Record, RequestRecord};
use super::{Store, StoreError};

impl<F: Files> Store<F> {
    /// Returns the validated metadata document of a request.
    pub(super) fn document(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        request: &RequestName,
        requests: Vec<Request>,
        generation: i64,
    ) -> Result<Metadata, StoreError> {
        let document = Metadata {
            metadata: ObjectMeta {
                name: claim.name.to_string(),
                namespace: claim.namespace.to_string(),
                uid: claim.uid.to_string(),
                generation,
                ..ObjectMeta::default()
            },
            pod_claim_name: pod_claim.map(ToString::to_string),
            requests,
        };
        match validate(&document) {
            Ok(()) => Ok(document),
            Err(source) => {
                Err(StoreError::Invalid { claim: Box::new(claim.clone()), request: request.clone(), source })
            }
        }
    }

    /// Returns the CDI device that mounts the metadata of a request.
    pub(super) fn metadata_device(
        &self,
        claim: &ClaimRef,
        request: &RequestName,
    ) -> Result<MetadataDevice, StoreError> {
        MetadataDevice::new(self.settings.driver.clone(), claim.uid.clone(), request.clone()).map_err(|source| {
            StoreError::Cdi { claim: Box::new(claim.clone()), request: request.clone(), source: source.into() }
        })
    }

    /// Returns the name of the CDI spec that mounts the metadata of a request.
    pub(super) fn metadata_spec_name(&self, claim: &ClaimRef, request: &RequestName) -> Result<String, StoreError> {
        MetadataDevice::file_name_of(&self.settings.driver, &claim.uid, request).map_err(|source| StoreError::Cdi {
            claim: Box::new(claim.clone()),
            request: request.clone(),
            source: source.into(),
        })
    }

    /// Returns the CDI devices of a claim.
    pub(super) fn claim_devices(&self, claim: &ClaimRef) -> Result<ClaimDevices, StoreError> {
        let devices = ClaimDevices::new(self.settings.driver.clone(), claim.uid.clone());
        devices.map_err(|source| StoreError::CdiName { claim: Box::new(claim.clone()), source: Box::new(source) })
    }

    /// Returns file name and content of the CDI spec of a claim's devices; `None` if none of them has edits.
    pub(super) fn claim_spec(&self, record: &Record) -> Result<Option<(String, Vec<u8>)>, StoreError> {
        if record.devices.is_empty() {
            return Ok(None);
        }
        let devices = self.claim_devices(&record.claim)?;
        let spec = devices.spec(record.devices.clone()).map_err(|source| StoreError::ClaimSpec {
            claim: Box::new(record.claim.clone()),
            name: devices.file_name(),
            source: Box::new(source),
        })?;
        Ok(Some((devices.file_name(), spec.to_json())))
    }

    /// Returns the CDI spec that mounts the metadata file of a request in all configured layouts.
    pub(super) fn cdi_spec(
        &self,
        claim: &ClaimRef,
        pod_claim: Option<&PodClaimName>,
        claim_path: &Path,
        device: &MetadataDevice,
    ) -> Result<Vec<u8>, StoreError> {
        let request = device.request().clone();
        let driver = self.settings.driver.clone();
        let container_path = |layout: &Layout| match (layout, pod_claim) {
            (Layout::Kubernetes, Some(pod_claim)) => ContainerFile::Template {
                pod_claim: pod_claim.clone(),
                request: request.clone(),
                driver: driver.clone(),
            },
            (Layout::Kubernetes, None) => {
                ContainerFile::Claim { claim: claim.name.clone(), request: request.clone(), driver: driver.clone() }
            }
            (Layout::Kep, _) => {
                ContainerFile::Kep { claim: claim.name.clone(), request: request.clone(), driver: driver.clone() }
            }
        };
        let host_path = join_path(claim_path, &[request.as_str(), HOST_FILE]);
        let container_paths: Vec<_> =
            self.settings.layouts.iter().map(|layout| container_path(layout).path()).collect();
        device.spec_json(host_path, &container_paths).map_err(|source| StoreError::Cdi {
            claim: Box::new(claim.clone()),
            request: device.request().clone(),
            source: source.into(),
        })
    }
}

/// Groups the devices of an update by the request reference for which each was prepared.
pub(super) fn by_reference(
    claim: &ClaimRef,
    request: &RequestName,
    prepared: &RequestRecord,
    devices: Vec<Device>,
) -> Result<Vec<Request>, StoreError> {
    let mut content: Vec<Request> = Vec::new();
    for device in devices {
        let owned = prepared.devices.iter().find(|(_, pool, name)| *pool == device.pool && *name == device.name);
        let Some((reference, _, _)) = owned else {
            return Err(StoreError::ForeignDevice {
                claim: Box::new(claim.clone()),
                request: request.clone(),
                pool: device.pool,
                device: device.name,
            });
        };
        match content.iter_mut().find(|entry| entry.name == *reference) {
            Some(entry) => entry.devices.push(device),
            None => content.push(Request { name: reference.clone(), devices: vec![device] }),
        }
    }
    if content.is_empty() {
        let reference = prepared.devices.first().map_or(request.as_str(), |(reference, _, _)| reference);
        content.push(Request { name: reference.to_owned(), devices: Vec::new() });
    }
    Ok(content)
}

/// Returns the generation of a file's content, if it can be decoded.
pub(super) fn generation_of(content: &[u8]) -> Option<i64> {
    decode(content).ok().map(|decoded| decoded.metadata.metadata.generation)
}

/// Whether a file has no metadata: it is empty, or its former content has been overwritten with newlines.
pub(super) fn is_blank(content: &[u8]) -> bool {
    content.iter().all(|byte| *byte == b'\n')
}

/// Returns the claim that a metadata file names, if the file is in that claim's directory.
pub(super) fn owner_of(metadata: &Metadata, claim_dir: &OpenDirectory) -> Option<ClaimRef> {
    let ObjectMeta { namespace, name, uid, .. } = &metadata.metadata;
    let claim = ClaimRef { namespace: namespace.parse().ok()?, name: name.parse().ok()?, uid: uid.parse().ok()? };
    claim_dir.is_named(&directory_name(&claim.namespace, &claim.name)).then_some(claim)
}
