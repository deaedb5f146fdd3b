//! Validation of device status.

use serde_json::Value;

use super::super::address::interface_address;
use super::super::field::{Bad, Errors, Path};
use super::super::formats::{driver, label, label_key, pool, raw_object, uuid};
use super::super::names::condition_reason;
use super::super::schema::{ALLOCATED_DEVICE_STATUS, show};
use super::super::value::{at, get, list, number, optional_text, text, texts};

/// The maximum number of conditions of a device.
const MAX_CONDITIONS: usize = 8;
/// The maximum size of `data`.
const MAX_DATA_BYTES: usize = 10 * 1024;
/// The maximum number of addresses of a network device.
const MAX_ADDRESSES: usize = 16;
const MAX_INTERFACE_NAME_BYTES: usize = 256;
const MAX_HARDWARE_ADDRESS_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// The identity of an allocated device: driver, pool, device and share ID.
pub(in super::super) type DeviceId<'a> = [&'a str; 4];

pub(in super::super) fn device_id(device: &Value) -> DeviceId<'_> {
    ["driver", "pool", "device", "shareID"].map(|field| text(device, field))
}

/// Returns the allocated devices of a claim's status.
pub(in super::super) fn allocated_devices(status: &Value) -> Vec<DeviceId<'_>> {
    let devices = at(status, &["allocation", "devices"]).unwrap_or(&Value::Null);
    list(devices, "results").iter().map(device_id).collect()
}

pub(super) fn validate(status: &Value, path: &Path, errors: &mut Errors) {
    let allocated = allocated_devices(status);
    let devices = list(status, "devices");
    for (index, device) in devices.iter().enumerate() {
        let path = path.index(index);
        if devices[..index].iter().any(|other| device_id(other) == device_id(device)) {
            errors.duplicate(&path, Bad::Json(show(&ALLOCATED_DEVICE_STATUS, device)));
        }
        validate_device(device, &allocated, &path, errors);
    }
}

fn validate_device(device: &Value, allocated: &[DeviceId<'_>], path: &Path, errors: &mut Errors) {
    driver(text(device, "driver"), &path.child("driver"), errors);
    pool(text(device, "pool"), &path.child("pool"), errors);
    label(text(device, "device"), &path.child("device"), errors);
    if let Some(share) = optional_text(device, "shareID") {
        uuid(share, &path.child("shareID"), errors);
    }
    let id = device_id(device);
    if !allocated.contains(&id) {
        let [driver, pool, device, share] = id.map(|part| Value::from(part).to_string());
        let shown = format!("{{\"Driver\":{driver},\"Pool\":{pool},\"Device\":{device},\"ShareID\":{share}}}");
        errors.invalid(path, Bad::Json(shown), "must be an allocated device in the claim");
    }
    conditions(device, &path.child("conditions"), errors);
    if let Some(data) = get(device, "data") {
        raw_object(Some(data), MAX_DATA_BYTES, &path.child("data"), errors);
    }
    if let Some(network) = get(device, "networkData") {
        network_data(network, &path.child("networkData"), errors);
    }
}

fn conditions(device: &Value, path: &Path, errors: &mut Errors) {
    let conditions = list(device, "conditions");
    errors.too_many(path, conditions.len(), MAX_CONDITIONS);
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let kind = text(condition, "type");
        if conditions[..index].iter().any(|other| text(other, "type") == kind) {
            errors.duplicate(&path, kind);
        }
        validate_condition(condition, &path, errors);
    }
}

fn validate_condition(condition: &Value, path: &Path, errors: &mut Errors) {
    match text(condition, "type") {
        "" => errors.required(&path.child("type"), "is required"),
        kind => label_key(kind, &path.child("type"), errors),
    }
    match text(condition, "status") {
        "" => errors.required(&path.child("status"), ""),
        "True" | "False" | "Unknown" => {}
        other => errors.not_supported(&path.child("status"), other, &["False", "True", "Unknown"]),
    }
    let generation = number(condition, "observedGeneration");
    if generation < 0 {
        errors.invalid(&path.child("observedGeneration"), generation, "must be greater than or equal to zero");
    }
    if text(condition, "lastTransitionTime").is_empty() {
        errors.required(&path.child("lastTransitionTime"), "");
    }
    match text(condition, "reason") {
        "" => errors.required(&path.child("reason"), ""),
        reason => {
            let path = path.child("reason");
            errors.invalid_each(&path, reason, condition_reason(reason));
            if reason.len() > MAX_REASON_BYTES {
                errors.too_long(&path, MAX_REASON_BYTES);
            }
        }
    }
    if text(condition, "message").len() > MAX_MESSAGE_BYTES {
        errors.too_long(&path.child("message"), MAX_MESSAGE_BYTES);
    }
}

fn network_data(network: &Value, path: &Path, errors: &mut Errors) {
    for (field, limit) in [("interfaceName", MAX_INTERFACE_NAME_BYTES), ("hardwareAddress", MAX_HARDWARE_ADDRESS_BYTES)]
    {
        if text(network, field).len() > limit {
            errors.too_long(&path.child(field), limit);
        }
    }
    let addresses = texts(network, "ips");
    let path = path.child("ips");
    if errors.too_many(&path, addresses.len(), MAX_ADDRESSES) {
        return;
    }
    for (index, address) in addresses.iter().enumerate() {
        let path = path.index(index);
        errors.invalid_each(&path, address, interface_address(address));
        if addresses[..index].contains(address) {
            errors.duplicate(&path, *address);
        }
    }
}
