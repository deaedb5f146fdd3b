//! What is in the files: metadata documents, CDI devices and CDI specs.

use std::path::PathBuf;

use drakkar_cdi::MetadataDevice;
use drakkar_metadata::name::{PodClaimName, RequestName};
use drakkar_metadata::path::{ContainerFile, HOST_FILE, HOST_SUBDIR, Layout, claim_directory};
use drakkar_metadata::{Device, DeviceMetadata, ObjectMeta, Request, decode, validate};

use super::files::Files;
use super::record::{ClaimKey, RequestRecord};
use super::{Store, StoreError};

impl<F: Files> Store<F> {
    pub(super) fn document(
        &self,
        claim: &ClaimKey,
        pod_claim: Option<&PodClaimName>,
        request: &RequestName,
        content: &[Request],
        generation: i64,
    ) -> Result<DeviceMetadata, StoreError> {
        let document = DeviceMetadata {
            metadata: ObjectMeta {
                name: claim.name.to_string(),
                namespace: claim.namespace.to_string(),
                uid: claim.uid.to_string(),
                generation,
                ..ObjectMeta::default()
            },
            pod_claim_name: pod_claim.map(ToString::to_string),
            requests: content.to_vec(),
        };
        match validate(&document) {
            Ok(()) => Ok(document),
            Err(source) => {
                Err(StoreError::Invalid { claim: Box::new(claim.clone()), request: request.clone(), source })
            }
        }
    }

    pub(super) fn device(&self, claim: &ClaimKey, request: &RequestName) -> Result<MetadataDevice, StoreError> {
        MetadataDevice::new(self.settings.driver.clone(), claim.uid.clone(), request.clone()).map_err(|source| {
            StoreError::Cdi { claim: Box::new(claim.clone()), request: request.clone(), source: source.into() }
        })
    }

    pub(super) fn spec(
        &self,
        claim: &ClaimKey,
        pod_claim: Option<&PodClaimName>,
        device: &MetadataDevice,
    ) -> Result<Vec<u8>, StoreError> {
        let (request, driver) = (device.request().clone(), self.settings.driver.clone());
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
        let host_path = self.claim_path(claim)?.join(request.as_str()).join(HOST_FILE);
        let container_paths = self.settings.layouts.iter().map(|layout| container_path(layout).path());
        let spec = device.spec(host_path, container_paths).map_err(|source| StoreError::Cdi {
            claim: Box::new(claim.clone()),
            request: device.request().clone(),
            source: source.into(),
        })?;
        Ok(spec.to_json())
    }

    pub(super) fn claim_path(&self, claim: &ClaimKey) -> Result<PathBuf, StoreError> {
        let directory = claim_directory(&claim.namespace, &claim.name)
            .map_err(|source| StoreError::Path { claim: Box::new(claim.clone()), source: source.into() })?;
        Ok(self.settings.plugin_directory.join(HOST_SUBDIR).join(directory))
    }
}

/// Groups the devices of an update by the reference for which each was prepared.
pub(super) fn by_reference(
    claim: &ClaimKey,
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

/// The generation of a file's content, if there is any that can be read.
pub(super) fn generation_of(content: &[u8]) -> Option<i64> {
    decode(content).ok().map(|decoded| decoded.metadata.metadata.generation)
}
