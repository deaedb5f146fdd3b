//! Merges pending reports with everything else that this driver has applied to the claim.
//!
//! An apply must be complete: fields that a field manager applied before and now omits are removed. So each apply starts
//! from the current claim, read or [known](super::known), and keeps those fields that are ours according to its managed
//! fields. So a restart loses nothing, and two instances of a driver (in a rolling update, or of a claim that is used on two
//! nodes) keep each other's entries.

use serde_json::{Map, Value};

use super::queue::Report;
use super::report::DeviceCondition;

/// An allocated device: pool, name and share ID.
type AllocatedDevice<'a> = (&'a str, &'a str, Option<&'a str>);

/// A report that does not match the allocation of its claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MergeError {
    /// The device is not allocated to the claim.
    #[error("it is not allocated to the claim")]
    NotAllocated,
    /// The share is not allocated to the claim.
    #[error("share {share_id} of it is not allocated to the claim")]
    ShareNotAllocated { share_id: String },
    /// The claim has several shares of the device, and the report names none.
    #[error("the claim has {shares} shares of it: set the share ID")]
    AmbiguousShare { shares: usize },
}

/// The entries to apply to a claim, and the reports that cannot be applied.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Merged {
    /// All entries of this driver.
    pub(super) devices: Vec<Value>,
    /// The numbers of the reports that are merged into the entries.
    pub(super) applied: Vec<u64>,
    /// The numbers of the reports that cannot be applied, and why.
    pub(super) refused: Vec<(u64, MergeError)>,
}

/// Merges reports into the entries that this driver has in the claim.
pub(super) fn merge(claim: &Value, driver: &str, manager: &str, reports: &[Report]) -> Merged {
    let allocated = allocated(claim, driver);
    let mut merged = Merged { devices: own_entries(claim, driver, manager), ..Merged::default() };
    // The API server removes entries of devices that are no longer allocated, and rejects them in an apply.
    merged.devices.retain(|entry| allocated.contains(&identity(entry)));
    let live = claim.pointer("/status/devices").and_then(Value::as_array);
    for report in reports {
        let share_id = match share_id(report, &allocated) {
            Ok(share_id) => share_id,
            Err(error) => {
                merged.refused.push((report.number, error));
                continue;
            }
        };
        let status = &report.status;
        let device = (status.pool_name.as_str(), status.device_name.as_str(), share_id);
        let is_of_device = |entry: &&Value| entry["driver"] == driver && identity(entry) == device;
        let current = live.and_then(|live| live.iter().find(is_of_device));
        let entry = status.entry(driver, share_id, |condition| transition_time(condition, current, &report.time));
        merged.devices.retain(|entry| identity(entry) != device);
        merged.devices.push(entry);
        merged.applied.push(report.number);
    }
    merged
}

/// Whether the claim has all of these entries.
pub(super) fn contains_entries(claim: &Value, driver: &str, entries: &[Value]) -> bool {
    let live = claim.pointer("/status/devices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    entries.iter().all(|entry| live.iter().any(|found| found["driver"] == driver && identity(found) == identity(entry)))
}

/// Returns the resource version of a claim; empty if it has none.
pub(super) fn resource_version(claim: &Value) -> &str {
    claim.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default()
}

/// Whether an entry of the managed fields is that of this driver's applies.
pub(super) fn is_own_manager(entry: &Value, manager: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"] == "status"
}

/// Returns the devices of this driver that are allocated to the claim.
fn allocated<'a>(claim: &'a Value, driver: &str) -> Vec<AllocatedDevice<'a>> {
    let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    results.into_iter().flatten().filter(|result| result["driver"] == driver).map(identity).collect()
}

fn identity(value: &Value) -> AllocatedDevice<'_> {
    let text = |field| value.get(field).and_then(Value::as_str);
    (text("pool").unwrap_or_default(), text("device").unwrap_or_default(), text("shareID"))
}

/// Returns the share ID of a report: the one that the driver set, or the only one that is allocated.
fn share_id<'a>(report: &'a Report, allocated: &[AllocatedDevice<'a>]) -> Result<Option<&'a str>, MergeError> {
    let status = &report.status;
    let shares = allocated
        .iter()
        .filter(|(pool, device, _)| *pool == status.pool_name && *device == status.device_name)
        .map(|(.., share_id)| *share_id);
    let mut shares: Vec<Option<&str>> = shares.collect();
    shares.dedup();
    match (status.share_id.as_deref(), shares.as_slice()) {
        (_, []) => Err(MergeError::NotAllocated),
        (given, shares) if shares.contains(&given) => Ok(given),
        (None, [only]) => Ok(*only),
        (None, shares) => Err(MergeError::AmbiguousShare { shares: shares.len() }),
        (Some(given), _) => Err(MergeError::ShareNotAllocated { share_id: given.to_owned() }),
    }
}

/// Returns the last transition time of a condition: the current one if the status is unchanged, else that of the report.
fn transition_time(condition: &DeviceCondition, current: Option<&Value>, reported: &str) -> String {
    let conditions = current.and_then(|entry| entry["conditions"].as_array());
    let unchanged = conditions
        .into_iter()
        .flatten()
        .find(|found| found["type"] == condition.type_.as_str() && found["status"] == condition.status.as_str());
    unchanged.and_then(|found| found["lastTransitionTime"].as_str()).unwrap_or(reported).to_owned()
}

/// Returns the parts of the claim's entries that this field manager has applied.
fn own_entries(claim: &Value, driver: &str, manager: &str) -> Vec<Value> {
    let managers = claim.pointer("/metadata/managedFields").and_then(Value::as_array);
    let ours = managers.into_iter().flatten().find(|entry| is_own_manager(entry, manager));
    let fields = ours.and_then(|entry| entry.pointer("/fieldsV1/f:status/f:devices")).and_then(Value::as_object);
    let live = claim.pointer("/status/devices").and_then(Value::as_array);
    let entries = fields.into_iter().flatten().filter_map(|(key, fields)| {
        let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
        let has_key = |entry: &&Value| entry["driver"] == key["driver"] && identity(entry) == identity(&key);
        let entry = live?.iter().find(has_key).filter(|entry| entry["driver"] == driver)?;
        Some(owned_part(entry, fields.as_object()?))
    });
    entries.collect()
}

/// Returns the part of a value that a field set (`fieldsV1`) names: `f:name` is a member, `k:{…}` the list element with
/// these members, `v:…` the list element with this value, `.` the value itself. An empty set stands for the whole value.
fn owned_part(value: &Value, fields: &Map<String, Value>) -> Value {
    if fields.is_empty() {
        return value.clone();
    }
    let nested = |value: &Value, fields: &Value| owned_part(value, fields.as_object().unwrap_or(&Map::new()));
    match value {
        Value::Object(members) => {
            let owned = members.iter().filter_map(|(name, value)| {
                let fields = fields.get(&format!("f:{name}"))?;
                Some((name.clone(), nested(value, fields)))
            });
            Value::Object(owned.collect())
        }
        Value::Array(elements) => {
            let keys: Vec<(Map<String, Value>, &Value)> = fields
                .iter()
                .filter_map(|(name, fields)| Some((serde_json::from_str(name.strip_prefix("k:")?).ok()?, fields)))
                .collect();
            let values: Vec<Value> =
                fields.keys().filter_map(|name| serde_json::from_str(name.strip_prefix("v:")?).ok()).collect();
            let owned = elements.iter().filter_map(|element| {
                let has = |key: &Map<String, Value>| key.iter().all(|(name, value)| element.get(name) == Some(value));
                match keys.iter().find(|(key, _)| has(key)) {
                    Some((_, fields)) => Some(nested(element, fields)),
                    None => values.contains(element).then(|| element.clone()),
                }
            });
            Value::Array(owned.collect())
        }
        scalar => scalar.clone(),
    }
}
