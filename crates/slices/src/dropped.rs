//! The fields of a slice that an API server dropped, and the feature gates that they need.

use drakkar_client::Quantity;
use k8s_openapi::api::resource::v1::ResourceSliceSpec;
use serde_json::Value;

use super::content::{SliceHeader, normalize_device};

/// The number of fields that are named.
const MAX_FIELDS: usize = 10;

/// Fields that were sent and not stored, and the feature gates that they need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DroppedFields {
    pub(super) fields: Vec<String>,
    pub(super) gates: Vec<&'static str>,
}

impl DroppedFields {
    /// Compares what was sent with what was stored.
    pub(super) fn between(sent: ResourceSliceSpec, kept: ResourceSliceSpec) -> Self {
        let sent = normalized(sent);
        let kept = normalized(kept);
        let mut dropped = Self { fields: Vec::new(), gates: Vec::new() };
        dropped.compare("", &sent, &kept);
        if dropped.gates.is_empty() {
            dropped.gates.push("a feature gate that is not known here");
        }
        dropped
    }

    fn compare(&mut self, path: &str, sent: &Value, kept: &Value) {
        match (sent, kept) {
            (Value::Object(sent), Value::Object(kept)) => {
                for (name, value) in sent {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    match kept.get(name) {
                        Some(kept) => self.compare(&path, value, kept),
                        None => self.add(path),
                    }
                }
                // A field that was not sent: a default of a later version of the API, or of a mutating webhook.
                if let Some(added) = kept.keys().find(|name| !sent.contains_key(*name)) {
                    self.add(format!("{path} (it added {added})"));
                }
            }
            (Value::Array(sent), Value::Array(kept)) => {
                for (index, value) in sent.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    match kept.get(index) {
                        Some(kept) => self.compare(&path, value, kept),
                        None => self.add(path),
                    }
                }
            }
            (sent, kept) if sent != kept => self.add(path.to_owned()),
            _ => {}
        }
    }

    fn add(&mut self, path: String) {
        for gate in gates(&path) {
            if !self.gates.contains(gate) {
                self.gates.push(gate);
            }
        }
        if self.fields.len() < MAX_FIELDS {
            self.fields.push(path);
        } else if self.fields.len() == MAX_FIELDS {
            self.fields.push("…".to_owned());
        }
    }
}

/// Returns a slice as JSON, in a form that differs only where the meaning does.
fn normalized(mut spec: ResourceSliceSpec) -> Value {
    let mut devices = spec.devices.take().unwrap_or_default();
    devices.iter_mut().for_each(normalize_device);
    let header = SliceHeader::take(&mut spec);
    let mut value = serde_json::to_value(&header).unwrap_or_default();
    if let (Some(fields), false) = (value.as_object_mut(), devices.is_empty()) {
        fields.insert("devices".to_owned(), serde_json::to_value(&devices).unwrap_or_default());
    }
    // API servers return quantities in canonical form.
    for set in value.pointer_mut("/sharedCounters").and_then(Value::as_array_mut).into_iter().flatten() {
        for counter in
            set.get_mut("counters").and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut())
        {
            let number = counter.get("value").and_then(Value::as_str).and_then(|text| text.parse::<Quantity>().ok());
            if let Some(number) = number {
                counter["value"] = Value::String(number.exact().to_string());
            }
        }
    }
    value
}

/// Returns the feature gates that a field needs.
fn gates(path: &str) -> &'static [&'static str] {
    let within = |name: &str| path.split(['.', '[', ']']).any(|part| part == name);
    if within("compatibilityGroups") {
        &["DRADeviceCompatibilityGroups"]
    } else if within("partitionTypeAttribute") {
        &["DRAPartitionableDevicesType"]
    } else if within("skipNodeOperations") {
        &["DRAOptionalNodeOperations"]
    } else if within("nodeAllocatableResources") {
        &["DRANodeAllocatableResources"]
    } else if within("taints") {
        &["DRADeviceTaints"]
    } else if within("bindsToNode") || within("bindingConditions") || within("bindingFailureConditions") {
        &["DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"]
    } else if within("requestPolicy") || within("allowMultipleAllocations") {
        &["DRAConsumableCapacity"]
    } else if ["sharedCounters", "consumesCounters", "perDeviceNodeSelection"].into_iter().any(within)
        || (within("devices") && ["nodeName", "nodeSelector", "allNodes"].into_iter().any(within))
    {
        &["DRAPartitionableDevices"]
    } else if within("attributes") && ["ints", "bools", "strings", "versions"].into_iter().any(within) {
        &["DRAListTypeAttributes"]
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests;
