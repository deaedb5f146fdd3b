//! The API server's rules for an entry of `status.devices`, checked before anything is sent: a driver is told where it made
//! the mistake, at once and with all that is wrong.

use std::collections::HashSet;
use std::net::IpAddr;

use drakkar_metadata::name::{DeviceName, PoolName, syntax};
use drakkar_metadata::validate::{MAX_HARDWARE_ADDRESS, MAX_INTERFACE_NAME, MAX_IPS};
use serde_json::Value;

use super::report::{DeviceCondition, DeviceStatus};
use crate::metadata::NetworkDeviceData;

/// How many conditions a device may have.
const MAX_CONDITIONS: usize = 8;
/// How many bytes `data` may have.
const MAX_DATA: usize = 10 * 1024;
/// How many bytes a reason may have.
const MAX_REASON: usize = 1024;
/// How many bytes a message may have.
const MAX_MESSAGE: usize = 32 * 1024;

/// All that is wrong with the reports of one call; each problem names its device and field.
pub(super) fn problems(devices: &[DeviceStatus]) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for device in devices {
        let name = format!("device {}/{}", device.pool_name, device.device_name);
        if !seen.insert((&device.pool_name, &device.device_name, &device.share_id)) {
            found.push(format!("{name}: is there twice"));
        }
        of_device(device, |field, problem| found.push(format!("{name}: {field}: {problem}")));
    }
    found
}

fn of_device(device: &DeviceStatus, mut tell: impl FnMut(&str, String)) {
    if let Err(error) = PoolName::new(device.pool_name.as_str()) {
        tell("pool", error.to_string());
    }
    if let Err(error) = DeviceName::new(device.device_name.as_str()) {
        tell("device", error.to_string());
    }
    if let Some(share_id) = device.share_id.as_deref().filter(|share_id| !syntax::is_uuid(share_id)) {
        tell("shareID", format!("{share_id:?} is not a UUID in lower case"));
    }
    conditions(&device.conditions, &mut tell);
    match &device.data {
        None => {}
        Some(data @ Value::Object(_)) => match size(data) {
            size if size > MAX_DATA => tell("data", too_long(size, MAX_DATA)),
            _ => {}
        },
        Some(_) => tell("data", "must be a JSON object".to_owned()),
    }
    if let Some(data) = &device.network_data {
        network_data(data, &mut tell);
    }
}

fn conditions(conditions: &[DeviceCondition], tell: &mut impl FnMut(&str, String)) {
    if conditions.len() > MAX_CONDITIONS {
        tell("conditions", format!("there are {}, at most {MAX_CONDITIONS} are allowed", conditions.len()));
    }
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let mut tell = |field: &str, problem: String| tell(&format!("conditions[{index}].{field}"), problem);
        let DeviceCondition { type_, status: _, reason, message, observed_generation } = condition;
        if !seen.insert(type_) {
            tell("type", format!("{type_:?} is there twice"));
        }
        if !syntax::is_label_key(type_) {
            let rule = "must be letters, digits, '-', '_' and '.', starting and ending with a letter or digit, at most \
                        63, with or without a domain and '/' before";
            tell("type", format!("{type_:?} {rule}"));
        }
        if reason.len() > MAX_REASON {
            tell("reason", too_long(reason.len(), MAX_REASON));
        } else if !syntax::is_condition_reason(reason) {
            let rule =
                "must be letters, digits, '_', ',' and ':', starting with a letter and not ending with ',' or ':'";
            tell("reason", format!("{reason:?} {rule}"));
        }
        if message.len() > MAX_MESSAGE {
            tell("message", too_long(message.len(), MAX_MESSAGE));
        }
        if let Some(generation) = observed_generation.filter(|generation| *generation < 0) {
            tell("observedGeneration", format!("{generation} must not be negative"));
        }
    }
}

fn network_data(data: &NetworkDeviceData, tell: &mut impl FnMut(&str, String)) {
    let NetworkDeviceData { interface_name, ips, hardware_address } = data;
    if interface_name.len() > MAX_INTERFACE_NAME {
        tell("networkData.interfaceName", too_long(interface_name.len(), MAX_INTERFACE_NAME));
    }
    if hardware_address.len() > MAX_HARDWARE_ADDRESS {
        tell("networkData.hardwareAddress", too_long(hardware_address.len(), MAX_HARDWARE_ADDRESS));
    }
    if ips.len() > MAX_IPS {
        tell("networkData.ips", format!("there are {}, at most {MAX_IPS} are allowed", ips.len()));
    }
    let mut seen = HashSet::new();
    for (index, ip) in ips.iter().enumerate() {
        let field = format!("networkData.ips[{index}]");
        if !seen.insert(ip) {
            tell(&field, format!("{ip:?} is there twice"));
        }
        if let Some(problem) = address_problem(ip) {
            tell(&field, format!("{ip:?} {problem}"));
        }
    }
}

/// What is wrong with an address with a prefix length.
fn address_problem(text: &str) -> Option<String> {
    let rule = || "must be an address with a prefix length, such as 10.0.0.5/24 or 2001:db8::1/64".to_owned();
    let Some((address, prefix)) = text.split_once('/') else { return Some(rule()) };
    let (Ok(address), Ok(prefix)) = (address.parse::<IpAddr>(), prefix.parse::<u8>()) else { return Some(rule()) };
    let (address, prefix, most) = match address {
        IpAddr::V4(_) => (address, prefix, 32),
        IpAddr::V6(v6) => match (v6.to_ipv4_mapped(), prefix.checked_sub(96)) {
            // What means an IPv4 address has to be written as one.
            (Some(v4), Some(prefix)) => (IpAddr::V4(v4), prefix, 32),
            (Some(_), None) => return Some(rule()),
            (None, _) => (address, prefix, 128),
        },
    };
    let canonical = format!("{address}/{prefix}");
    match prefix > most {
        true => Some(rule()),
        false => (canonical != text).then(|| format!("must be written as {canonical:?}")),
    }
}

/// How many bytes a value has where the API server counts them: it writes some characters of texts as `\uXXXX`.
fn size(value: &Value) -> usize {
    let text = value.to_string();
    let more = text.chars().map(|character| match character {
        '<' | '>' | '&' => 5,
        '\u{2028}' | '\u{2029}' => 3,
        _ => 0,
    });
    text.len() + more.sum::<usize>()
}

fn too_long(length: usize, limit: usize) -> String {
    format!("has {length} bytes, at most {limit} are allowed")
}
