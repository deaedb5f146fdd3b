//! The API server's validation rules for an entry of `status.devices`, checked before anything is sent: a driver gets all
//! problems at once, from the call that has them.

use std::collections::HashSet;
use std::net::IpAddr;

use drakkar_metadata::name::{DeviceName, PoolName, syntax};
use drakkar_metadata::validate::{MAX_HARDWARE_ADDRESS, MAX_INTERFACE_NAME, MAX_IPS};
use serde_json::Value;

use super::report::{DeviceCondition, DeviceStatus};
use crate::metadata::NetworkDeviceData;

/// The maximum number of conditions of a device.
const MAX_CONDITIONS: usize = 8;
/// The maximum size of `data` in bytes.
const MAX_DATA: usize = 10 * 1024;
/// The maximum length of a reason in bytes.
const MAX_REASON: usize = 1024;
/// The maximum length of a message in bytes.
const MAX_MESSAGE: usize = 32 * 1024;

/// Returns all problems of the reports of one call; each names its device and field.
pub(super) fn problems(devices: &[DeviceStatus]) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for device in devices {
        let name = format!("device {}/{}", device.pool_name, device.device_name);
        if !seen.insert((&device.pool_name, &device.device_name, &device.share_id)) {
            found.push(format!("{name}: duplicate report"));
        }
        check_device(device, |field, problem| found.push(format!("{name}: {field}: {problem}")));
    }
    found
}

fn check_device(device: &DeviceStatus, mut report: impl FnMut(&str, String)) {
    if let Err(error) = PoolName::new(device.pool_name.as_str()) {
        report("pool", error.to_string());
    }
    if let Err(error) = DeviceName::new(device.device_name.as_str()) {
        report("device", error.to_string());
    }
    if let Some(share_id) = device.share_id.as_deref().filter(|share_id| !syntax::is_uuid(share_id)) {
        report("shareID", format!("{share_id:?} is not a UUID in lower case"));
    }
    check_conditions(&device.conditions, &mut report);
    match &device.data {
        None => {}
        Some(data @ Value::Object(_)) => {
            let size = size(data);
            if size > MAX_DATA {
                report("data", too_long(size, MAX_DATA));
            }
        }
        Some(_) => report("data", "must be a JSON object".to_owned()),
    }
    if let Some(data) = &device.network_data {
        check_network_data(data, &mut report);
    }
}

fn check_conditions(conditions: &[DeviceCondition], report: &mut impl FnMut(&str, String)) {
    if conditions.len() > MAX_CONDITIONS {
        report("conditions", format!("has {} entries, at most {MAX_CONDITIONS} are allowed", conditions.len()));
    }
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let mut report = |field: &str, problem: String| report(&format!("conditions[{index}].{field}"), problem);
        let DeviceCondition { type_, status: _, reason, message, observed_generation } = condition;
        if !seen.insert(type_) {
            report("type", format!("{type_:?} is a duplicate"));
        }
        if !syntax::is_label_key(type_) {
            let rule = "must be at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit, \
                        with an optional prefix of a domain and '/'";
            report("type", format!("{type_:?} {rule}"));
        }
        if reason.len() > MAX_REASON {
            report("reason", too_long(reason.len(), MAX_REASON));
        } else if !syntax::is_condition_reason(reason) {
            let rule =
                "must be letters, digits, '_', ',' and ':', starting with a letter and not ending with ',' or ':'";
            report("reason", format!("{reason:?} {rule}"));
        }
        if message.len() > MAX_MESSAGE {
            report("message", too_long(message.len(), MAX_MESSAGE));
        }
        if let Some(generation) = observed_generation.filter(|generation| *generation < 0) {
            report("observedGeneration", format!("{generation} must not be negative"));
        }
    }
}

fn check_network_data(data: &NetworkDeviceData, report: &mut impl FnMut(&str, String)) {
    let NetworkDeviceData { interface_name, ips, hardware_address } = data;
    if interface_name.len() > MAX_INTERFACE_NAME {
        report("networkData.interfaceName", too_long(interface_name.len(), MAX_INTERFACE_NAME));
    }
    if hardware_address.len() > MAX_HARDWARE_ADDRESS {
        report("networkData.hardwareAddress", too_long(hardware_address.len(), MAX_HARDWARE_ADDRESS));
    }
    if ips.len() > MAX_IPS {
        report("networkData.ips", format!("has {} entries, at most {MAX_IPS} are allowed", ips.len()));
    }
    let mut seen = HashSet::new();
    for (index, ip) in ips.iter().enumerate() {
        let field = format!("networkData.ips[{index}]");
        if !seen.insert(ip) {
            report(&field, format!("{ip:?} is a duplicate"));
        }
        if let Some(problem) = address_problem(ip) {
            report(&field, format!("{ip:?} {problem}"));
        }
    }
}

/// Returns the problem of an address with a prefix length, if it has one.
fn address_problem(text: &str) -> Option<String> {
    let rule = || "must be an address with a prefix length, such as 10.0.0.5/24 or 2001:db8::1/64".to_owned();
    let Some((address, prefix)) = text.split_once('/') else { return Some(rule()) };
    let (Ok(address), Ok(prefix)) = (address.parse::<IpAddr>(), prefix.parse::<u8>()) else { return Some(rule()) };
    let (address, prefix, max_prefix) = match address {
        IpAddr::V4(_) => (address, prefix, 32),
        IpAddr::V6(v6) => match (v6.to_ipv4_mapped(), prefix.checked_sub(96)) {
            // An IPv4-mapped address must be written as IPv4.
            (Some(v4), Some(prefix)) => (IpAddr::V4(v4), prefix, 32),
            (Some(_), None) => return Some(rule()),
            (None, _) => (address, prefix, 128),
        },
    };
    let canonical = format!("{address}/{prefix}");
    if prefix > max_prefix {
        return Some(rule());
    }
    (canonical != text).then(|| format!("must be written as {canonical:?}"))
}

/// Returns the size of a value as the API server counts it: it encodes some characters as `\uXXXX`.
fn size(value: &Value) -> usize {
    let text = value.to_string();
    let escapes = text.chars().map(|character| match character {
        '<' | '>' | '&' => 5,
        '\u{2028}' | '\u{2029}' => 3,
        _ => 0,
    });
    text.len() + escapes.sum::<usize>()
}

fn too_long(length: usize, limit: usize) -> String {
    format!("has {length} bytes, at most {limit} are allowed")
}
