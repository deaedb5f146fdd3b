//! What is to be applied: the reports that wait, and everything else that this driver has said of the claim.
//!
//! An apply is complete: what a field manager had applied before and leaves out now is removed. So each one begins with the
//! claim as it is now, and takes over those fields that the claim's managed fields say are ours. Nothing has to be remembered
//! for that, so a restart loses nothing, and two instances of a driver (in a rolling update, or of a claim that is used on two
//! nodes) keep each other's entries.

use serde_json::{Map, Value};

use super::queue::Report;
use super::report::DeviceCondition;

/// A device of the allocation: pool, name, share.
type Allocated<'a> = (&'a str, &'a str, Option<&'a str>);

/// What is to be applied to a claim, and what cannot be.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Merged {
    /// All entries of this driver.
    pub(super) devices: Vec<Value>,
    /// The numbers of the reports that are in it.
    pub(super) taken: Vec<u64>,
    /// The numbers of those that cannot be, and why.
    pub(super) refused: Vec<(u64, String)>,
}

/// Brings reports and what the claim has of them together.
pub(super) fn merge(claim: &Value, driver: &str, manager: &str, reports: &[Report]) -> Merged {
    let allocated = allocated(claim, driver);
    let mut merged = Merged { devices: own_entries(claim, driver, manager), ..Merged::default() };
    // Entries of devices that are not allocated any more go by themselves, and cannot be applied.
    merged.devices.retain(|entry| allocated.contains(&identity(entry)));
    let live = claim.pointer("/status/devices").and_then(Value::as_array);
    for report in reports {
        let share_id = match share_id(report, &allocated) {
            Ok(share_id) => share_id,
            Err(problem) => {
                merged.refused.push((report.number, problem));
                continue;
            }
        };
        let status = &report.status;
        let which = (status.pool_name.as_str(), status.device_name.as_str(), share_id);
        let of_driver = |entry: &&Value| entry["driver"] == driver && identity(entry) == which;
        let before = live.and_then(|live| live.iter().find(of_driver));
        let entry = status.entry(driver, share_id, |condition| since(condition, before, &report.time));
        merged.devices.retain(|entry| identity(entry) != which);
        merged.devices.push(entry);
        merged.taken.push(report.number);
    }
    merged
}

/// Whether the claim has all of these entries.
pub(super) fn has_all(claim: &Value, driver: &str, entries: &[Value]) -> bool {
    let live = claim.pointer("/status/devices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    entries.iter().all(|entry| live.iter().any(|has| has["driver"] == driver && identity(has) == identity(entry)))
}

/// The devices of the claim that are the driver's.
fn allocated<'a>(claim: &'a Value, driver: &str) -> Vec<Allocated<'a>> {
    let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    results.into_iter().flatten().filter(|result| result["driver"] == driver).map(identity).collect()
}

fn identity(value: &Value) -> Allocated<'_> {
    let text = |field| value.get(field).and_then(Value::as_str);
    (text("pool").unwrap_or_default(), text("device").unwrap_or_default(), text("shareID"))
}

/// The share that is reported of: the one that the driver names, or the only one there is.
fn share_id<'a>(report: &'a Report, allocated: &[Allocated<'a>]) -> Result<Option<&'a str>, String> {
    let status = &report.status;
    let shares = allocated
        .iter()
        .filter(|(pool, device, _)| *pool == status.pool_name && *device == status.device_name)
        .map(|(.., share_id)| *share_id);
    let mut shares: Vec<Option<&str>> = shares.collect();
    shares.dedup();
    match (status.share_id.as_deref(), shares.as_slice()) {
        (_, []) => Err("it is not allocated to the claim".to_owned()),
        (given, shares) if shares.contains(&given) => Ok(given),
        (None, [only]) => Ok(*only),
        (None, shares) => Err(format!("the claim has {} shares of it: say which", shares.len())),
        (Some(given), _) => Err(format!("share {given} of it is not allocated to the claim")),
    }
}

/// Since when a condition has had its status: the time at which it was reported, unless it was so before.
fn since(condition: &DeviceCondition, before: Option<&Value>, reported: &str) -> String {
    let conditions = before.and_then(|entry| entry["conditions"].as_array());
    let same = conditions
        .into_iter()
        .flatten()
        .find(|has| has["type"] == condition.type_.as_str() && has["status"] == condition.status.as_str());
    same.and_then(|has| has["lastTransitionTime"].as_str()).unwrap_or(reported).to_owned()
}

/// What of the claim's entries this field manager has applied.
fn own_entries(claim: &Value, driver: &str, manager: &str) -> Vec<Value> {
    let managers = claim.pointer("/metadata/managedFields").and_then(Value::as_array);
    let ours = managers
        .into_iter()
        .flatten()
        .find(|entry| entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"] == "status");
    let fields = ours.and_then(|entry| entry.pointer("/fieldsV1/f:status/f:devices")).and_then(Value::as_object);
    let live = claim.pointer("/status/devices").and_then(Value::as_array);
    let entries = fields.into_iter().flatten().filter_map(|(key, fields)| {
        let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
        let is_it = |entry: &&Value| entry["driver"] == key["driver"] && identity(entry) == identity(&key);
        let entry = live?.iter().find(is_it).filter(|entry| entry["driver"] == driver)?;
        Some(owned(entry, fields.as_object()?))
    });
    entries.collect()
}

/// The part of a value that a set of fields names: `f:name` is a member, `k:{…}` the element of a list with these members,
/// `v:…` an element that is this value, `.` the thing itself; a set that names nothing is about all of it.
fn owned(value: &Value, fields: &Map<String, Value>) -> Value {
    if fields.is_empty() {
        return value.clone();
    }
    let below = |value: &Value, fields: &Value| owned(value, fields.as_object().unwrap_or(&Map::new()));
    match value {
        Value::Object(members) => {
            let owned = members.iter().filter_map(|(name, value)| {
                let fields = fields.get(&format!("f:{name}"))?;
                Some((name.clone(), below(value, fields)))
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
                    Some((_, fields)) => Some(below(element, fields)),
                    None => values.contains(element).then(|| element.clone()),
                }
            });
            Value::Array(owned.collect())
        }
        scalar => scalar.clone(),
    }
}
