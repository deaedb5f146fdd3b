//! Checks the driver's response to a prepare, and turns it into metadata for the store and a response for the kubelet.

use std::collections::BTreeMap;

use drakkar_cdi::QualifiedName;
use drakkar_client::ClaimRef;
use drakkar_metadata::Request;
use drakkar_metadata::name::{DeviceName, DriverName, NameError, PoolName, RequestName};
use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;

use super::container_edits;
use crate::claim::{Claim, base};
use crate::driver::{Device, DeviceMetadata};
use crate::store::{Delivery, PreparedRequest};

/// An invalid response of the driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverResponseError {
    #[error("the driver returned no outcome for the claim")]
    Missing,
    #[error("the driver returned a device with an invalid name: {0}")]
    Name(#[from] NameError),
    #[error(
        "the driver returned device {pool}/{device}, which is not allocated to the claim from this driver; allocated: \
         {allocated}"
    )]
    NotAllocated { pool: String, device: String, allocated: String },
    #[error(
        "the driver returned device {pool}/{device} for request {request:?}, for which it is not allocated; allocated for: \
         {requests}"
    )]
    NoSuchRequest { pool: String, device: String, request: String, requests: String },
    #[error(
        "the driver returned device {pool}/{device} with share id {share_id:?}, which is not allocated to the claim"
    )]
    NoSuchShare { pool: String, device: String, share_id: String },
    #[error("the driver returned device {pool}/{device} twice for the same requests")]
    Duplicate { pool: String, device: String },
    #[error("the driver returned device {pool}/{device} with an invalid CDI device id {id:?}: {source}")]
    CdiDevice { pool: String, device: String, id: String, source: Box<drakkar_cdi::NameError> },
    #[error("claim {claim}: the driver returned device {pool}/{device} with invalid edits: {source}")]
    ContainerEdits { claim: Box<ClaimRef>, pool: String, device: String, source: Box<drakkar_cdi::ValidationError> },
    #[error(
        "claim {claim}: the driver returned device {pool}/{device} with invalid edits: containerEdits.mounts[{index}]\
         .containerPath: {path:?} is where containers see their metadata; mount elsewhere"
    )]
    MetadataPath { claim: Box<ClaimRef>, pool: String, device: String, index: usize, path: String },
    #[error("claim {claim}: container edits need a CDI device: {source}")]
    CdiName { claim: Box<ClaimRef>, source: Box<drakkar_cdi::NameError> },
}

/// One device of the response to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedDevice {
    /// The requests without subrequests; empty means all.
    pub(crate) request_names: Vec<String>,
    pub(crate) pool_name: String,
    pub(crate) device_name: String,
    pub(crate) cdi_device_ids: Vec<String>,
    pub(crate) share_id: Option<String>,
}

/// Checks that the kubelet can use the devices and that they are allocated to the claim, and fills in share IDs.
pub(super) fn check(claim: &Claim, devices: &mut [Device]) -> Result<(), DriverResponseError> {
    for index in 0..devices.len() {
        let (checked, rest) = devices.split_at_mut(index);
        let Some(device) = rest.first_mut() else { continue };
        PoolName::check(&device.pool_name)?;
        DeviceName::check(&device.device_name)?;
        let names = || (device.pool_name.clone(), device.device_name.clone());
        if !claim.results().any(|result| is_result_of(device, result)) {
            let mut allocated: Vec<_> =
                claim.results().map(|result| format!("{}/{}", result.pool, result.device)).collect();
            allocated.dedup();
            let (pool, device) = names();
            return Err(DriverResponseError::NotAllocated { pool, device, allocated: allocated.join(", ") });
        }
        let is_for = |reference: &&String| {
            claim.results().any(|result| {
                is_result_of(device, result) && (result.request == **reference || base(&result.request) == **reference)
            })
        };
        if let Some(request) = device.requests.iter().find(|reference| !is_for(reference)) {
            let results = claim.results().filter(|result| is_result_of(device, result));
            let mut requests: Vec<_> = results.map(|result| result.request.as_str()).collect();
            requests.dedup();
            let requests = requests.join(", ");
            let (request, (pool, device)) = (request.clone(), names());
            return Err(DriverResponseError::NoSuchRequest { pool, device, request, requests });
        }
        for id in &device.cdi_device_ids {
            if let Err(source) = id.parse::<QualifiedName>() {
                let (id, source, (pool, device)) = (id.clone(), Box::new(source), names());
                return Err(DriverResponseError::CdiDevice { pool, device, id, source });
            }
        }
        container_edits::check(claim, device)?;
        device.share_id = share_id(claim, device)?;
        let is_repeated = checked.iter().any(|other| {
            other.pool_name == device.pool_name
                && other.device_name == device.device_name
                && other.share_id == device.share_id
                && other.requests == device.requests
        });
        if is_repeated {
            let (pool, device) = (device.pool_name.clone(), device.device_name.clone());
            return Err(DriverResponseError::Duplicate { pool, device });
        }
    }
    Ok(())
}

/// Returns the share ID given by the driver or, without one, the only share that is allocated.
fn share_id(claim: &Claim, device: &Device) -> Result<Option<String>, DriverResponseError> {
    let results =
        claim.results().filter(|result| is_result_of(device, result) && serves(device, base(&result.request)));
    let mut shares: Vec<&str> = results.filter_map(|result| result.share_id.as_deref()).collect();
    shares.sort_unstable();
    shares.dedup();
    match (&device.share_id, shares.as_slice()) {
        (Some(given), shares) if !shares.contains(&given.as_str()) => Err(DriverResponseError::NoSuchShare {
            pool: device.pool_name.clone(),
            device: device.device_name.clone(),
            share_id: given.clone(),
        }),
        (None, [only]) => Ok(Some((*only).to_owned())),
        (given, _) => Ok(given.clone()),
    }
}

fn is_result_of(device: &Device, result: &DeviceRequestAllocationResult) -> bool {
    device.pool_name == result.pool && device.device_name == result.device
}

fn serves(device: &Device, request: &str) -> bool {
    device.requests.is_empty() || device.requests.iter().any(|reference| base(reference) == request)
}

/// Returns the metadata for containers: one entry for each request of the claim with devices of this driver.
///
/// References to the same request (`gpu`, `gpu/large`) share an entry. A request for which the driver returned no device
/// gets the allocated devices, and its metadata is delivered later. The same with a gate if the driver returned devices and
/// metadata for none of them: their CDI devices are known, and what the gate waits for is not.
pub(super) fn plan(
    claim: &Claim,
    driver: &DriverName,
    devices: &mut [Device],
    deferred: Delivery,
) -> Result<Vec<PreparedRequest>, NameError> {
    let mut prepared: Vec<PreparedRequest> = Vec::new();
    for result in claim.results() {
        let request = base(&result.request);
        if prepared.iter().any(|prepared| prepared.request.as_str() == request) {
            continue;
        }
        let mut references = Vec::new();
        let is_described = devices.iter().any(|device| serves(device, request) && device.metadata.is_some());
        for device in devices.iter_mut().filter(|device| serves(device, request)) {
            // Moved, not cloned, where only one file contains it: the kubelet's response has no metadata.
            let metadata = match device.requests.as_slice() {
                [_] => device.metadata.take(),
                _ => device.metadata.clone(),
            };
            let content = content(driver, &device.pool_name, &device.device_name, metadata);
            if device.requests.is_empty() {
                add(&mut references, reference_of(claim, request, device), content);
                continue;
            }
            if let [reference] = device.requests.as_slice() {
                add(&mut references, reference, content);
                continue;
            }
            for reference in device.requests.iter().filter(|reference| base(reference) == request) {
                add(&mut references, reference, content.clone());
            }
        }
        let is_deferred = references.is_empty() || (deferred == Delivery::Gated && !is_described);
        let delivery = if is_deferred { deferred } else { Delivery::Now };
        if references.is_empty() {
            for result in claim.results().filter(|result| base(&result.request) == request) {
                add(&mut references, &result.request, content(driver, &result.pool, &result.device, None));
            }
        }
        prepared.push(PreparedRequest { request: RequestName::new(request)?, references, delivery });
    }
    Ok(prepared)
}

/// Returns the reference under which a device for all requests appears in the metadata of one request.
fn reference_of<'a>(claim: &'a Claim, request: &'a str, device: &Device) -> &'a str {
    let of_request = || claim.results().filter(|result| base(&result.request) == request);
    let own = of_request().find(|result| is_result_of(device, result));
    own.or_else(|| of_request().next()).map_or(request, |result| &result.request)
}

fn add(references: &mut Vec<Request>, reference: &str, device: drakkar_metadata::Device) {
    match references.iter_mut().find(|entry| entry.name == reference) {
        Some(entry) => entry.devices.push(device),
        None => references.push(Request { name: reference.to_owned(), devices: vec![device] }),
    }
}

/// Returns the entry of a device in a metadata file.
pub(crate) fn content(
    driver: &DriverName,
    pool: &str,
    name: &str,
    metadata: Option<DeviceMetadata>,
) -> drakkar_metadata::Device {
    let DeviceMetadata { attributes, network_data } = metadata.unwrap_or_default();
    drakkar_metadata::Device {
        driver: driver.to_string(),
        pool: pool.to_owned(),
        name: name.to_owned(),
        attributes,
        network_data,
    }
}

/// Builds the response for the kubelet: the driver's devices, with the CDI device of each request's metadata.
///
/// The kubelet passes all CDI devices of an entry to every container that references one of the entry's requests. So the
/// metadata of a request is only ever part of an entry for just that request: the driver's first such entry, after the
/// driver's own IDs, or else an entry made for it.
pub(super) fn respond(
    claim: &Claim,
    devices: Vec<Device>,
    mut metadata: BTreeMap<RequestName, QualifiedName>,
) -> Vec<PreparedDevice> {
    let mut prepared: Vec<PreparedDevice> = devices.into_iter().map(PreparedDevice::from).collect();
    let returned = prepared.len();
    for result in claim.results() {
        let request = base(&result.request);
        let serves = |device: &PreparedDevice| {
            device.request_names.is_empty() || device.request_names.iter().any(|name| name == request)
        };
        let is_served = prepared[..returned].iter().any(serves);
        match (is_served, metadata.remove(request)) {
            // The driver returned none of the request's devices: pass on all that are allocated.
            (false, id) => prepared.push(device_for(result, id.as_ref())),
            (true, Some(id)) => match prepared.iter_mut().find(|device| device.request_names == [request]) {
                Some(device) => device.cdi_device_ids.push(String::from(&id)),
                None => prepared.push(device_for(result, Some(&id))),
            },
            (true, None) => {}
        }
    }
    prepared
}

impl From<Device> for PreparedDevice {
    fn from(device: Device) -> Self {
        let Device { requests, pool_name, device_name, cdi_device_ids, share_id, .. } = device;
        let mut request_names: Vec<String> = Vec::with_capacity(requests.len());
        for reference in requests {
            let request = base(&reference);
            if !request_names.iter().any(|known| known == request) {
                request_names.push(request.to_owned());
            }
        }
        Self { request_names, pool_name, device_name, cdi_device_ids, share_id }
    }
}

/// Returns an entry for an allocated device that the driver did not return.
fn device_for(result: &DeviceRequestAllocationResult, metadata: Option<&QualifiedName>) -> PreparedDevice {
    PreparedDevice {
        request_names: vec![base(&result.request).to_owned()],
        pool_name: result.pool.clone(),
        device_name: result.device.clone(),
        cdi_device_ids: metadata.map(String::from).into_iter().collect(),
        share_id: result.share_id.clone(),
    }
}
