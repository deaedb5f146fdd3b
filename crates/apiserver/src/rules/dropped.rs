//! Dropping of fields: those of disabled features that the stored object does not use, and device status without allocation.

use serde_json::Value;

use super::super::resource::Resource;
use super::claim::{allocated_devices, device_id};
use super::gates::Gates;
use super::value::{at, at_mut, entries, get, list, list_mut, remove};

pub(super) fn drop_fields(resource: Resource, new: &mut Value, old: Option<&Value>, gates: &Gates) {
    match resource {
        Resource::ResourceSlice => slice(new, old, gates),
        Resource::ResourceClaim => {
            claim_spec(new, old, &["spec"], gates);
            match old {
                Some(old) => claim_status(new, old, gates),
                // A claim is created without a status.
                None => remove(new, &["status"]),
            }
        }
        Resource::ResourceClaimTemplate => claim_spec(new, old, &["spec", "spec"], gates),
        Resource::DeviceClass => {
            let used = old.is_some_and(|old| at(old, &["spec", "extendedResourceName"]).is_some());
            if !gates.enabled("DRAExtendedResource") && !used {
                remove(&mut new["spec"], &["extendedResourceName"]);
            }
        }
        Resource::Node
        | Resource::Pod
        | Resource::Namespace
        | Resource::Event
        | Resource::ConfigMap
        | Resource::Service
        | Resource::Lease => {}
    }
}

const ATTRIBUTE_LISTS: [&str; 4] = ["ints", "bools", "strings", "versions"];

/// Whether a list is not empty.
fn filled(object: &Value, field: &str) -> bool {
    !list(object, field).is_empty()
}

fn slice(new: &mut Value, old: Option<&Value>, gates: &Gates) {
    let spec = old.and_then(|old| get(old, "spec"));
    let used = |field: &dyn Fn(&Value) -> bool| spec.is_some_and(field);
    let by_device = |field: &dyn Fn(&Value) -> bool| spec.is_some_and(|spec| list(spec, "devices").iter().any(field));
    let is_off = |gate: &str, used: bool| !gates.enabled(gate) && !used;

    let per_device = ["nodeName", "nodeSelector", "allNodes"];
    let partitions = used(&|spec| filled(spec, "sharedCounters") || get(spec, "perDeviceNodeSelection").is_some())
        || by_device(&|device| {
            filled(device, "consumesCounters") || per_device.iter().any(|field| get(device, field).is_some())
        });
    let binding = by_device(&|device| {
        filled(device, "bindingConditions")
            || filled(device, "bindingFailureConditions")
            || get(device, "bindsToNode").is_some()
    });
    let capacity = by_device(&|device| {
        get(device, "allowMultipleAllocations").is_some()
            || entries(device, "capacity").any(|(_, capacity)| get(capacity, "requestPolicy").is_some())
    });
    let groups = by_device(&|device| {
        list(device, "consumesCounters").iter().any(|consumption| filled(consumption, "compatibilityGroups"))
    });
    let lists = by_device(&|device| {
        entries(device, "attributes").any(|(_, value)| ATTRIBUTE_LISTS.iter().any(|field| get(value, field).is_some()))
    });

    let mut spec_fields: Vec<&str> = Vec::new();
    let mut device_fields: Vec<&str> = Vec::new();
    if is_off("DRADeviceTaints", by_device(&|device| filled(device, "taints"))) {
        device_fields.push("taints");
    }
    if is_off("DRAPartitionableDevices", partitions) {
        spec_fields.extend(["sharedCounters", "perDeviceNodeSelection"]);
        device_fields.push("consumesCounters");
        device_fields.extend(per_device);
    }
    if (!gates.enabled("DRADeviceBindingConditions") || !gates.enabled("DRAResourceClaimDeviceStatus")) && !binding {
        device_fields.extend(["bindingConditions", "bindingFailureConditions", "bindsToNode"]);
    }
    let drop_capacity = is_off("DRAConsumableCapacity", capacity);
    if drop_capacity {
        device_fields.push("allowMultipleAllocations");
    }
    let allocatable = by_device(&|device| entries(device, "nodeAllocatableResources").len() > 0);
    if is_off("DRANodeAllocatableResources", allocatable) {
        device_fields.push("nodeAllocatableResources");
    }
    if is_off("DRAPartitionableDevicesType", used(&|spec| get(spec, "partitionTypeAttribute").is_some())) {
        spec_fields.push("partitionTypeAttribute");
    }
    if is_off("DRAOptionalNodeOperations", used(&|spec| filled(spec, "skipNodeOperations"))) {
        spec_fields.push("skipNodeOperations");
    }
    let drop_groups = is_off("DRADeviceCompatibilityGroups", groups);
    let drop_lists = is_off("DRAListTypeAttributes", lists);

    if let Some(spec) = new.get_mut("spec") {
        remove(spec, &spec_fields);
    }
    for device in list_mut(new, &["spec", "devices"]) {
        remove(device, &device_fields);
        if drop_capacity {
            each_value(device, "capacity", &["requestPolicy"]);
        }
        if drop_lists {
            each_value(device, "attributes", &ATTRIBUTE_LISTS);
        }
        if drop_groups {
            for consumption in list_mut(device, &["consumesCounters"]) {
                remove(consumption, &["compatibilityGroups"]);
            }
        }
    }
}

fn each_value(object: &mut Value, map: &str, fields: &[&str]) {
    for value in object.get_mut(map).and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut()) {
        remove(value, fields);
    }
}

fn requests_of(spec: Option<&Value>) -> &[Value] {
    spec.and_then(|spec| get(spec, "devices")).map(|devices| list(devices, "requests")).unwrap_or_default()
}

/// Whether any request or subrequest uses a field.
fn in_requests(spec: Option<&Value>, used: impl Fn(&Value) -> bool) -> bool {
    requests_of(spec)
        .iter()
        .any(|request| get(request, "exactly").is_some_and(&used) || list(request, "firstAvailable").iter().any(&used))
}

fn uses_distinct_attribute(spec: Option<&Value>) -> bool {
    let devices = spec.and_then(|spec| get(spec, "devices"));
    let constraints = devices.map(|devices| list(devices, "constraints")).unwrap_or_default();
    constraints.iter().any(|constraint| get(constraint, "distinctAttribute").is_some())
}

fn uses_capacity(spec: Option<&Value>) -> bool {
    uses_distinct_attribute(spec) || in_requests(spec, |request| get(request, "capacity").is_some())
}

fn uses_admin_access(spec: Option<&Value>) -> bool {
    let asks = |request: &Value| at(request, &["exactly", "adminAccess"]).is_some();
    requests_of(spec).iter().any(asks)
}

fn claim_spec(new: &mut Value, old: Option<&Value>, path: &[&str], gates: &Gates) {
    let old = old.and_then(|old| at(old, path));
    let is_off = |gate: &str, used: bool| !gates.enabled(gate) && !used;
    let lists = requests_of(old).iter().any(|request| filled(request, "firstAvailable"));
    let mut fields = Vec::new();
    if is_off("DRADeviceTaints", in_requests(old, |request| filled(request, "tolerations"))) {
        fields.push("tolerations");
    }
    let drop_capacity = is_off("DRAConsumableCapacity", uses_capacity(old));
    if drop_capacity {
        fields.push("capacity");
    }
    if is_off("DRADerivedAttributes", in_requests(old, |request| filled(request, "derivedAttributes"))) {
        fields.push("derivedAttributes");
    }
    let Some(devices) = at_mut(new, path).and_then(|spec| spec.get_mut("devices")) else { return };
    for request in list_mut(devices, &["requests"]) {
        if is_off("DRAPrioritizedList", lists) {
            remove(request, &["firstAvailable"]);
        }
        if let Some(exactly) = request.get_mut("exactly") {
            remove(exactly, &fields);
            if is_off("DRAAdminAccess", uses_admin_access(old)) {
                remove(exactly, &["adminAccess"]);
            }
        }
        for choice in list_mut(request, &["firstAvailable"]) {
            remove(choice, &fields);
        }
    }
    if drop_capacity {
        for constraint in list_mut(devices, &["constraints"]) {
            remove(constraint, &["distinctAttribute"]);
        }
    }
}

fn claim_status(new: &mut Value, old: &Value, gates: &Gates) {
    let spec = get(old, "spec");
    let status = get(old, "status").unwrap_or(&Value::Null);
    let allocation = at(status, &["allocation", "devices"]).unwrap_or(&Value::Null);
    let in_results = |fields: &[&str]| {
        list(allocation, "results").iter().any(|result| fields.iter().any(|field| get(result, field).is_some()))
    };
    let is_off = |gate: &str, used: bool| !gates.enabled(gate) && !used;
    let devices = filled(status, "devices");
    let shares = list(status, "devices").iter().any(|device| get(device, "shareID").is_some());

    let mut result_fields = Vec::new();
    if is_off("DRAAdminAccess", uses_admin_access(spec) || in_results(&["adminAccess"])) {
        result_fields.push("adminAccess");
    }
    let drop_capacity =
        is_off("DRAConsumableCapacity", uses_capacity(spec) || in_results(&["shareID", "consumedCapacity"]) || shares);
    if drop_capacity {
        result_fields.extend(["shareID", "consumedCapacity"]);
    }
    let conditions = ["bindingConditions", "bindingFailureConditions"];
    if is_off("DRADeviceBindingConditions", in_results(&conditions)) {
        result_fields.extend(conditions);
    }
    let skipped = list(allocation, "results").iter().any(|result| filled(result, "skipNodeOperations"));
    if is_off("DRAOptionalNodeOperations", skipped) {
        result_fields.push("skipNodeOperations");
    }

    let Some(new_status) = new.get_mut("status") else { return };
    for result in list_mut(new_status, &["allocation", "devices", "results"]) {
        remove(result, &result_fields);
    }
    if is_off("DRAResourceClaimDeviceStatus", devices) {
        return remove(new_status, &["devices"]);
    }
    if drop_capacity {
        for device in list_mut(new_status, &["devices"]) {
            remove(device, &["shareID"]);
        }
    }
    drop_deallocated(new_status, status);
}

/// Removes the status of devices that are no longer allocated.
fn drop_deallocated(new: &mut Value, old: &Value) {
    let now: Vec<_> = allocated_devices(new).into_iter().map(|id| id.map(str::to_owned)).collect();
    let is_deallocated = |device: &Value| {
        let id = device_id(device);
        allocated_devices(old).contains(&id) && !now.iter().any(|other| other == &id.map(str::to_owned))
    };
    if let Some(devices) = new.get_mut("devices").and_then(Value::as_array_mut) {
        devices.retain(|device| !is_deallocated(device));
        if devices.is_empty() {
            remove(new, &["devices"]);
        }
    }
}
