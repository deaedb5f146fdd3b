//! Rules for devices.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use drakkar_metadata::DeviceAttribute;
use drakkar_metadata::name::{DeviceName, syntax};
use k8s_openapi::api::resource::v1::{DeviceCounterConsumption, DeviceTaint, NodeAllocatableResource};

use super::super::resources::{DeviceNodes, PublishedDevice};
use super::{DevicePath, Errors, capacity, counters, node_selector, text};

const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
const MAX_ATTRIBUTE_VALUES: usize = 48;
const MAX_VALUE: usize = 64;
const MAX_TAINTS: usize = 16;
const MAX_CONSUMPTIONS: usize = 2;
const MAX_COMPATIBILITY_GROUPS: usize = 2;
const MAX_CONDITIONS: usize = 4;

const EFFECTS: [&str; 3] = ["None", "NoSchedule", "NoExecute"];

pub(super) fn device(path: DevicePath, device: &PublishedDevice, per_device: bool, errors: &mut Errors) {
    errors.name(format_args!("{path}.name"), DeviceName::new(device.name.as_str()));
    let entries = device.attributes.len() + device.capacity.len();
    let values: usize = device.attributes.values().map(number_of_values).sum();
    if entries > MAX_ATTRIBUTES_AND_CAPACITIES {
        let limit = MAX_ATTRIBUTES_AND_CAPACITIES;
        errors.push(path, format_args!("too many attributes and capacities: {entries}, at most {limit} are allowed"));
    } else if values > MAX_ATTRIBUTE_VALUES {
        let limit = MAX_ATTRIBUTE_VALUES;
        errors.push(path, format_args!("too many attribute values: {values}, at most {limit} are allowed"));
    } else {
        for (name, value) in &device.attributes {
            let path = format_args!("{path}.attributes[{name}]");
            errors.check(path, text::qualified_name(name));
            attribute(path, value, errors);
        }
        for (name, value) in &device.capacity {
            let path = format_args!("{path}.capacity[{name}]");
            errors.check(path, text::qualified_name(name));
            capacity::capacity(path, value, device.allow_multiple_allocations, errors);
        }
    }
    if errors.fits(format_args!("{path}.taints"), device.taints.len(), MAX_TAINTS) {
        for (index, one) in device.taints.iter().enumerate() {
            taint(format_args!("{path}.taints[{index}]"), one, errors);
        }
    }
    consumptions(path, &device.consumes_counters, errors);
    device_nodes(path, device, per_device, errors);
    conditions(path, device, errors);
    for (name, resource) in &device.node_allocatable_resources {
        node_allocatable(format_args!("{path}.nodeAllocatableResources[{name}]"), name, resource, device, errors);
    }
}

fn number_of_values(attribute: &DeviceAttribute) -> usize {
    let lists = attribute.ints.len() + attribute.bools.len() + attribute.strings.len() + attribute.versions.len();
    lists.max(1)
}

fn attribute(path: fmt::Arguments<'_>, attribute: &DeviceAttribute, errors: &mut Errors) {
    let set: Vec<&str> = attribute.set_values().map(|value| value.kind()).collect();
    match set.as_slice() {
        [_] => {}
        [] => errors.push(path, "has no value: exactly one must be set, and a list must not be empty"),
        several => {
            let problem = format_args!("has {} values ({}): exactly one must be set", set.len(), several.join(", "));
            errors.push(path, problem);
        }
    }
    if let Some(text) = &attribute.string {
        errors.check(format_args!("{path}.string"), text::length(text, MAX_VALUE));
    }
    if let Some(text) = &attribute.version {
        errors.check(format_args!("{path}.version"), version(text));
    }
    for (index, text) in attribute.strings.iter().enumerate() {
        errors.check(format_args!("{path}.strings[{index}]"), text::length(text, MAX_VALUE));
    }
    for (index, text) in attribute.versions.iter().enumerate() {
        errors.check(format_args!("{path}.versions[{index}]"), version(text));
    }
}

fn version(version: &str) -> Result<(), String> {
    text::length(version, MAX_VALUE)?;
    if syntax::is_semantic_version(version) {
        Ok(())
    } else {
        Err(format!("{version:?} is not a semantic version (2.0.0), such as 1.2.3"))
    }
}

fn taint(path: fmt::Arguments<'_>, taint: &DeviceTaint, errors: &mut Errors) {
    errors.check(format_args!("{path}.key"), text::label_key(&taint.key));
    if let Some(value) = &taint.value {
        errors.check(format_args!("{path}.value"), text::label_value(value));
    }
    if !EFFECTS.contains(&taint.effect.as_str()) {
        let problem = format_args!("{:?} is not valid: must be one of {}", taint.effect, EFFECTS.join(", "));
        errors.push(format_args!("{path}.effect"), problem);
    }
}

fn consumptions(path: DevicePath, consumptions: &[DeviceCounterConsumption], errors: &mut Errors) {
    if !errors.fits(format_args!("{path}.consumesCounters"), consumptions.len(), MAX_CONSUMPTIONS) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, consumption) in consumptions.iter().enumerate() {
        let path = format_args!("{path}.consumesCounters[{index}]");
        if !seen.insert(&consumption.counter_set) {
            let problem = format_args!("duplicate: {:?}", consumption.counter_set);
            errors.push(format_args!("{path}.counterSet"), problem);
        }
        counters(path, &consumption.counters, errors);
        let groups = consumption.compatibility_groups.as_deref().unwrap_or_default();
        if errors.fits(format_args!("{path}.compatibilityGroups"), groups.len(), MAX_COMPATIBILITY_GROUPS) {
            for (index, group) in groups.iter().enumerate() {
                let path = format_args!("{path}.compatibilityGroups[{index}]");
                errors.check(path, text::label("compatibility group", group));
                if groups[..index].contains(group) {
                    errors.push(path, format_args!("duplicate: {group:?}"));
                }
            }
        }
    }
}

fn device_nodes(path: DevicePath, device: &PublishedDevice, per_device: bool, errors: &mut Errors) {
    match (&device.nodes, per_device) {
        (None, true) => {
            errors.push(format_args!("{path}.nodes"), "required in a pool with NodeSelection::PerDevice");
        }
        (Some(_), false) => {
            errors.push(format_args!("{path}.nodes"), "allowed only in a pool with NodeSelection::PerDevice");
        }
        (Some(DeviceNodes::Selector(selector)), true) => {
            node_selector(format_args!("{path}.nodeSelector"), selector, false, errors);
        }
        (Some(DeviceNodes::Node(name)), true) => {
            errors.check(format_args!("{path}.nodeName"), text::subdomain("node name", name));
        }
        (Some(DeviceNodes::AllNodes), true) | (None, false) => {}
    }
}

fn conditions(path: DevicePath, device: &PublishedDevice, errors: &mut Errors) {
    let conditions = &device.binding_conditions;
    let failures = &device.binding_failure_conditions;
    let mut seen = HashSet::new();
    for (field, list) in [("bindingConditions", conditions), ("bindingFailureConditions", failures)] {
        let path = format_args!("{path}.{field}");
        if !errors.fits(path, list.len(), MAX_CONDITIONS) {
            return;
        }
        for (index, condition) in list.iter().enumerate() {
            errors.check(format_args!("{path}[{index}]"), text::label_key(condition));
            if !seen.insert(condition) {
                errors.push(format_args!("{path}[{index}]"), format_args!("duplicate: {condition:?}"));
            }
        }
    }
    if conditions.is_empty() != failures.is_empty() {
        let missing = if conditions.is_empty() { "bindingConditions" } else { "bindingFailureConditions" };
        errors.push(
            format_args!("{path}.{missing}"),
            "required: bindingConditions and bindingFailureConditions are set together or not at all",
        );
    }
}

fn node_allocatable(
    path: fmt::Arguments<'_>,
    name: &str,
    resource: &NodeAllocatableResource,
    device: &PublishedDevice,
    errors: &mut Errors,
) {
    let is_native = ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-");
    if !is_native {
        errors.push(path, "must be cpu, memory, ephemeral-storage or hugepages-…");
    }
    if resource.mapping.is_none() && resource.overhead.is_none() {
        errors.push(path, "required: a mapping or an overhead");
    }
    let mut signed = |field: fmt::Arguments<'_>, quantity: Option<&_>, least: i8| {
        let Some(quantity) = quantity else { return };
        match capacity::quantity(quantity) {
            Ok(amount) if amount.signum() >= least => {}
            Ok(_) => errors.push(
                format_args!("{path}.{field}"),
                if least > 0 { "must be positive" } else { "must not be negative" },
            ),
            Err(problem) => errors.push(format_args!("{path}.{field}"), problem),
        }
    };
    if let Some(mapping) = &resource.mapping {
        signed(format_args!("mapping.capacityMultiplier"), mapping.capacity_multiplier.as_ref(), 1);
        signed(format_args!("mapping.deviceMultiplier"), mapping.device_multiplier.as_ref(), 1);
    }
    if let Some(overhead) = &resource.overhead {
        signed(format_args!("overhead.perPod"), overhead.per_pod.as_ref(), 0);
        signed(format_args!("overhead.perContainer"), overhead.per_container.as_ref(), 0);
        if overhead.per_pod.is_none() && overhead.per_container.is_none() {
            errors.push(format_args!("{path}.overhead"), "required: perPod or perContainer");
        }
    }
    if let Some(mapping) = &resource.mapping {
        match (&mapping.capacity_key, &mapping.capacity_multiplier) {
            (Some(key), _) if !device.capacity.contains_key(key) => {
                errors.push(
                    format_args!("{path}.mapping.capacityKey"),
                    format_args!("the device has no capacity {key:?}"),
                );
            }
            (Some(_), None) => {
                errors.push(format_args!("{path}.mapping.capacityMultiplier"), "required with capacityKey");
            }
            (None, Some(_)) => {
                errors.push(format_args!("{path}.mapping.capacityKey"), "required with capacityMultiplier");
            }
            _ => {}
        }
        if mapping.capacity_key.is_some() == mapping.device_multiplier.is_some() {
            errors.push(format_args!("{path}.mapping"), "must have exactly one of capacityKey and deviceMultiplier");
        }
    }
}
