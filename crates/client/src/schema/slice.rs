//! `ResourceSlice` and its parts.

use super::Kind::{Bool, Int, List, Map, Named, Object, Quantity, Text, Time};
use super::Presence::{Always, Nullable, OmitEmpty, Pointer};
use super::{Kind, LIST_METADATA, METADATA, NODE_SELECTOR, TEXT_LIST, Type, field};

const COUNTERS: Kind = Map("string", &Object(&COUNTER));

/// Devices that a driver publishes.
pub static RESOURCE_SLICE: Type =
    Type::new("v1.ResourceSlice", &[METADATA, field(2, "spec", Object(&RESOURCE_SLICE_SPEC), Always)]);

/// A list of [`RESOURCE_SLICE`].
pub static RESOURCE_SLICE_LIST: Type =
    Type::new("v1.ResourceSliceList", &[LIST_METADATA, field(2, "items", List(&Object(&RESOURCE_SLICE)), Always)]);

/// The content of a slice.
pub static RESOURCE_SLICE_SPEC: Type = Type::new(
    "v1.ResourceSliceSpec",
    &[
        field(1, "driver", Text, Always),
        field(2, "pool", Object(&RESOURCE_POOL), Always),
        field(3, "nodeName", Text, Pointer),
        field(4, "nodeSelector", Object(&NODE_SELECTOR), Pointer),
        field(5, "allNodes", Bool, Pointer),
        field(6, "devices", List(&Object(&DEVICE)), OmitEmpty),
        field(7, "perDeviceNodeSelection", Bool, Pointer),
        field(8, "sharedCounters", List(&Object(&COUNTER_SET)), OmitEmpty),
        field(9, "partitionTypeAttribute", Named("v1.FullyQualifiedName"), Pointer),
        field(10, "skipNodeOperations", List(&Named("v1.SkipNodeOperation")), OmitEmpty).set(),
    ],
);

/// The pool that a slice belongs to.
pub static RESOURCE_POOL: Type = Type::new(
    "v1.ResourcePool",
    &[field(1, "name", Text, Always), field(2, "generation", Int, Always), field(3, "resourceSliceCount", Int, Always)],
);

/// Counters that devices of a pool share.
pub static COUNTER_SET: Type =
    Type::new("v1.CounterSet", &[field(1, "name", Text, Always), field(2, "counters", COUNTERS, OmitEmpty)]);

/// A counter.
pub static COUNTER: Type = Type::new("v1.Counter", &[field(1, "value", Quantity, Always)]);

/// A device.
pub static DEVICE: Type = Type::new(
    "v1.Device",
    &[
        field(1, "name", Text, Always),
        field(2, "attributes", Map("v1.QualifiedName", &Object(&DEVICE_ATTRIBUTE)), OmitEmpty),
        field(3, "capacity", Map("v1.QualifiedName", &Object(&DEVICE_CAPACITY)), OmitEmpty),
        field(4, "consumesCounters", List(&Object(&DEVICE_COUNTER_CONSUMPTION)), OmitEmpty),
        field(5, "nodeName", Text, Pointer),
        field(6, "nodeSelector", Object(&NODE_SELECTOR), Pointer),
        field(7, "allNodes", Bool, Pointer),
        field(8, "taints", List(&Object(&DEVICE_TAINT)), OmitEmpty),
        field(9, "bindsToNode", Bool, Pointer),
        field(10, "bindingConditions", TEXT_LIST, OmitEmpty),
        field(11, "bindingFailureConditions", TEXT_LIST, OmitEmpty),
        field(12, "allowMultipleAllocations", Bool, Pointer),
        field(14, "nodeAllocatableResources", Map("v1.ResourceName", &Object(&NODE_ALLOCATABLE_RESOURCE)), OmitEmpty),
    ],
);

/// The value of an attribute of a device.
pub static DEVICE_ATTRIBUTE: Type = Type::new(
    "v1.DeviceAttribute",
    &[
        field(2, "int", Int, Pointer).go("IntValue"),
        field(3, "bool", Bool, Pointer).go("BoolValue"),
        field(4, "string", Text, Pointer).go("StringValue"),
        field(5, "version", Text, Pointer).go("VersionValue"),
        field(6, "ints", List(&Int), OmitEmpty).go("IntValues"),
        field(7, "bools", List(&Bool), OmitEmpty).go("BoolValues"),
        field(8, "strings", TEXT_LIST, OmitEmpty).go("StringValues"),
        field(9, "versions", TEXT_LIST, OmitEmpty).go("VersionValues"),
    ],
);

/// A capacity of a device.
pub static DEVICE_CAPACITY: Type = Type::new(
    "v1.DeviceCapacity",
    &[field(1, "value", Quantity, Always), field(2, "requestPolicy", Object(&CAPACITY_REQUEST_POLICY), Pointer)],
);

/// How requests consume a capacity.
pub static CAPACITY_REQUEST_POLICY: Type = Type::new(
    "v1.CapacityRequestPolicy",
    &[
        field(1, "default", Quantity, Nullable),
        field(3, "validValues", List(&Quantity), OmitEmpty),
        field(4, "validRange", Object(&CAPACITY_REQUEST_POLICY_RANGE), Pointer),
    ],
);

/// The amounts of a capacity that can be requested.
pub static CAPACITY_REQUEST_POLICY_RANGE: Type = Type::new(
    "v1.CapacityRequestPolicyRange",
    &[field(1, "min", Quantity, Pointer), field(2, "max", Quantity, Pointer), field(3, "step", Quantity, Pointer)],
);

/// The counters that a device consumes.
pub static DEVICE_COUNTER_CONSUMPTION: Type = Type::new(
    "v1.DeviceCounterConsumption",
    &[
        field(1, "counterSet", Text, Always),
        field(2, "counters", COUNTERS, OmitEmpty),
        field(3, "compatibilityGroups", TEXT_LIST, OmitEmpty),
    ],
);

/// A taint of a device.
pub static DEVICE_TAINT: Type = Type::new(
    "v1.DeviceTaint",
    &[
        field(1, "key", Text, Always),
        field(2, "value", Text, OmitEmpty),
        field(3, "effect", Named("v1.DeviceTaintEffect"), Always),
        field(4, "timeAdded", Time, Pointer),
    ],
);

/// A resource of the node that a device uses.
pub static NODE_ALLOCATABLE_RESOURCE: Type = Type::new(
    "v1.NodeAllocatableResource",
    &[
        field(3, "mapping", Object(&NODE_ALLOCATABLE_MAPPING), Pointer),
        field(4, "overhead", Object(&NODE_ALLOCATABLE_OVERHEAD), Pointer),
    ],
);

/// How much of a node's resource a device provides.
pub static NODE_ALLOCATABLE_MAPPING: Type = Type::new(
    "v1.NodeAllocatableMapping",
    &[
        field(1, "capacityKey", Named("v1.QualifiedName"), Pointer),
        field(2, "capacityMultiplier", Quantity, Pointer),
        field(3, "deviceMultiplier", Quantity, Pointer),
    ],
);

/// How much of a node's resource the use of a device costs.
pub static NODE_ALLOCATABLE_OVERHEAD: Type = Type::new(
    "v1.NodeAllocatableOverhead",
    &[field(1, "perPod", Quantity, Pointer), field(2, "perContainer", Quantity, Pointer)],
);
