//! The driver's answer to a prepare: checked, turned into what the store writes, and into what the kubelet gets.

use std::collections::{BTreeMap, HashSet};

use drakkar_cdi::QualifiedName;
use drakkar_metadata::Request;
use drakkar_metadata::name::{DeviceName, DriverName, NameError, PoolName, RequestName};
use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;

use crate::claim::{Claim, base};
use crate::driver::{Device, DeviceMetadata};
use crate::store::{Delivery, PreparedRequest};

/// What a driver's answer breaks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("the driver did not say what became of the claim")]
    Missing,
    #[error("the driver returned a device with a bad name: {0}")]
    Name(#[from] NameError),
    #[error("the driver returned device {pool}/{device}, which was not allocated from it; allocated is {allocated}")]
    NotAllocated { pool: String, device: String, allocated: String },
    #[error(
        "the driver returned device {pool}/{device} for request {request:?}, for which it was not allocated; it was for \
         {requests}"
    )]
    NoSuchRequest { pool: String, device: String, request: String, requests: String },
    #[error("the driver returned device {pool}/{device} with share id {share_id:?}, which is none that was allocated")]
    NoSuchShare { pool: String, device: String, share_id: String },
    #[error("the driver returned device {pool}/{device} twice for the same requests")]
    Twice { pool: String, device: String },
    #[error("the driver returned device {pool}/{device} with the CDI device {id:?}: {source}")]
    CdiDevice { pool: String, device: String, id: String, source: Box<drakkar_cdi::NameError> },
}

/// One device of the answer to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnsweredDevice {
    /// The requests without subrequests; none means all.
    pub(crate) request_names: Vec<String>,
    pub(crate) pool_name: String,
    pub(crate) device_name: String,
    pub(crate) cdi_device_ids: Vec<String>,
    pub(crate) share_id: Option<String>,
}

/// Checks that a kubelet can use the devices and that they are the claim's, and fills in share ids.
pub(super) fn check(claim: &Claim, devices: &mut [Device]) -> Result<(), AnswerError> {
    let mut seen: HashSet<(String, String, Option<String>, Vec<String>)> = HashSet::new();
    for device in devices {
        PoolName::new(device.pool_name.as_str())?;
        DeviceName::new(device.device_name.as_str())?;
        let (pool, name) = (device.pool_name.clone(), device.device_name.clone());
        if !claim.results().any(|result| is_result_of(device, result)) {
            let mut allocated: Vec<_> =
                claim.results().map(|result| format!("{}/{}", result.pool, result.device)).collect();
            allocated.dedup();
            return Err(AnswerError::NotAllocated { pool, device: name, allocated: allocated.join(", ") });
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
            return Err(AnswerError::NoSuchRequest { pool, device: name, request: request.clone(), requests });
        }
        for id in &device.cdi_device_ids {
            if let Err(source) = id.parse::<QualifiedName>() {
                let source = Box::new(source);
                return Err(AnswerError::CdiDevice { pool, device: name, id: id.clone(), source });
            }
        }
        device.share_id = share_id(claim, device)?;
        if !seen.insert((pool.clone(), name.clone(), device.share_id.clone(), device.requests.clone())) {
            return Err(AnswerError::Twice { pool, device: name });
        }
    }
    Ok(())
}

/// The share that the driver names, or the only one that was allocated.
fn share_id(claim: &Claim, device: &Device) -> Result<Option<String>, AnswerError> {
    let results =
        claim.results().filter(|result| is_result_of(device, result) && serves(device, base(&result.request)));
    let mut shares: Vec<&str> = results.filter_map(|result| result.share_id.as_deref()).collect();
    shares.sort_unstable();
    shares.dedup();
    match (&device.share_id, shares.as_slice()) {
        (Some(given), shares) if !shares.contains(&given.as_str()) => Err(AnswerError::NoSuchShare {
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

/// What containers are to be told: one entry for each request of the claim that this driver has devices for.
///
/// References with the same request (`gpu`, `gpu/large`) share an entry. A request for which the driver returned no
/// device has those that were allocated, and is told of later.
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
        for device in devices.iter_mut().filter(|device| serves(device, request)) {
            // The kubelet is not told of it, so it is not copied where only one file tells of it.
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
        let delivery = if references.is_empty() { deferred } else { Delivery::Now };
        if references.is_empty() {
            for result in claim.results().filter(|result| base(&result.request) == request) {
                add(&mut references, &result.request, content(driver, &result.pool, &result.device, None));
            }
        }
        prepared.push(PreparedRequest { request: RequestName::new(request)?, references, delivery });
    }
    Ok(prepared)
}

/// The reference under which a device that is for all requests is told of in one of them.
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

/// What a file says of a device.
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

/// What the kubelet gets: the driver's devices, and with them the CDI device of each request's metadata.
///
/// A kubelet hands all CDI devices of an entry to every container that references one of the entry's requests. So the
/// metadata of a request is only ever in an entry that names just that request: the first of the driver's that does,
/// behind the driver's own ids, or else one that is made for it.
pub(super) fn respond(
    claim: &Claim,
    devices: Vec<Device>,
    mut metadata: BTreeMap<RequestName, QualifiedName>,
) -> Vec<AnsweredDevice> {
    let mut answered: Vec<AnsweredDevice> = devices.into_iter().map(answered).collect();
    let returned = answered.len();
    for result in claim.results() {
        let request = base(&result.request);
        let serves = |device: &AnsweredDevice| {
            device.request_names.is_empty() || device.request_names.iter().any(|name| name == request)
        };
        let is_served = answered[..returned].iter().any(serves);
        match (is_served, metadata.remove(request)) {
            // The driver returned none of the request's devices: all that were allocated are passed on.
            (false, id) => answered.push(made_for(result, id.as_ref())),
            (true, Some(id)) => match answered.iter_mut().find(|device| device.request_names == [request]) {
                Some(device) => device.cdi_device_ids.push(id.to_string()),
                None => answered.push(made_for(result, Some(&id))),
            },
            (true, None) => {}
        }
    }
    answered
}

fn answered(device: Device) -> AnsweredDevice {
    let Device { requests, pool_name, device_name, cdi_device_ids, share_id, metadata: _ } = device;
    let mut request_names: Vec<String> = Vec::with_capacity(requests.len());
    for reference in requests {
        let request = base(&reference);
        if !request_names.iter().any(|known| known == request) {
            request_names.push(request.to_owned());
        }
    }
    AnsweredDevice { request_names, pool_name, device_name, cdi_device_ids, share_id }
}

fn made_for(result: &DeviceRequestAllocationResult, metadata: Option<&QualifiedName>) -> AnsweredDevice {
    AnsweredDevice {
        request_names: vec![base(&result.request).to_owned()],
        pool_name: result.pool.clone(),
        device_name: result.device.clone(),
        cdi_device_ids: metadata.map(ToString::to_string).into_iter().collect(),
        share_id: result.share_id.clone(),
    }
}
