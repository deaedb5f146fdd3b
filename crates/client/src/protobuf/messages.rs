//! The messages of the API that are understood: numbers, names and kinds of their fields, as in Kubernetes 1.37.

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) count: Count,
    pub(super) kind: Kind,
}

/// How often a field may be there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count {
    One,
    Many,
    /// By keys that are text.
    Map,
}

/// What a field has. Go always sends fields that are no pointers; those that JSON leaves out when they are empty are `IfAny`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    TextIfAny,
    Int,
    IntIfAny,
    Bool,
    Quantity,
    Time,
    /// JSON in a message of its own.
    Json,
    Message(&'static [Field]),
    /// A message whose fields are those of the one that it is in.
    Inline(&'static [Field]),
}

use Kind::{Bool, Inline, Int, IntIfAny, Json, Message, Quantity, Text, TextIfAny, Time};

/// The fields of an object of the API, if it is one of those that are understood.
pub(super) fn of(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    match (kind, api_version) {
        ("ResourceSlice", "resource.k8s.io/v1" | "resource.k8s.io/v1beta2") => Some(RESOURCE_SLICE),
        ("ResourceSliceList", "resource.k8s.io/v1" | "resource.k8s.io/v1beta2") => Some(RESOURCE_SLICE_LIST),
        ("ResourceClaim", "resource.k8s.io/v1" | "resource.k8s.io/v1beta2") => Some(RESOURCE_CLAIM),
        ("ResourceClaimList", "resource.k8s.io/v1" | "resource.k8s.io/v1beta2") => Some(RESOURCE_CLAIM_LIST),
        ("DeleteOptions", _) => Some(DELETE_OPTIONS),
        ("Status", "v1") => Some(STATUS),
        _ => None,
    }
}

const fn one(number: u64, name: &'static str, kind: Kind) -> Field {
    Field { number, name, count: Count::One, kind }
}

const fn many(number: u64, name: &'static str, kind: Kind) -> Field {
    Field { number, name, count: Count::Many, kind }
}

const fn map(number: u64, name: &'static str, kind: Kind) -> Field {
    Field { number, name, count: Count::Map, kind }
}

const RESOURCE_SLICE_LIST: &[Field] =
    &[one(1, "metadata", Message(LIST_META)), many(2, "items", Message(RESOURCE_SLICE))];

const RESOURCE_CLAIM_LIST: &[Field] =
    &[one(1, "metadata", Message(LIST_META)), many(2, "items", Message(RESOURCE_CLAIM))];

const RESOURCE_SLICE: &[Field] = &[one(1, "metadata", Message(OBJECT_META)), one(2, "spec", Message(SLICE_SPEC))];

const SLICE_SPEC: &[Field] = &[
    one(1, "driver", Text),
    one(2, "pool", Message(POOL)),
    one(3, "nodeName", Text),
    one(4, "nodeSelector", Message(NODE_SELECTOR)),
    one(5, "allNodes", Bool),
    many(6, "devices", Message(DEVICE)),
    one(7, "perDeviceNodeSelection", Bool),
    many(8, "sharedCounters", Message(COUNTER_SET)),
    one(9, "partitionTypeAttribute", Text),
    many(10, "skipNodeOperations", Text),
];

const POOL: &[Field] = &[one(1, "name", Text), one(2, "generation", Int), one(3, "resourceSliceCount", Int)];

const DEVICE: &[Field] = &[
    one(1, "name", Text),
    map(2, "attributes", Message(ATTRIBUTE)),
    map(3, "capacity", Message(CAPACITY)),
    many(4, "consumesCounters", Message(CONSUMPTION)),
    one(5, "nodeName", Text),
    one(6, "nodeSelector", Message(NODE_SELECTOR)),
    one(7, "allNodes", Bool),
    many(8, "taints", Message(TAINT)),
    one(9, "bindsToNode", Bool),
    many(10, "bindingConditions", Text),
    many(11, "bindingFailureConditions", Text),
    one(12, "allowMultipleAllocations", Bool),
    map(14, "nodeAllocatableResources", Message(NODE_ALLOCATABLE)),
];

const ATTRIBUTE: &[Field] = &[
    one(2, "int", Int),
    one(3, "bool", Bool),
    one(4, "string", Text),
    one(5, "version", Text),
    many(6, "ints", Int),
    many(7, "bools", Bool),
    many(8, "strings", Text),
    many(9, "versions", Text),
];

const CAPACITY: &[Field] = &[one(1, "value", Quantity), one(2, "requestPolicy", Message(REQUEST_POLICY))];

const REQUEST_POLICY: &[Field] =
    &[one(1, "default", Quantity), many(3, "validValues", Quantity), one(4, "validRange", Message(VALID_RANGE))];

const VALID_RANGE: &[Field] = &[one(1, "min", Quantity), one(2, "max", Quantity), one(3, "step", Quantity)];

const CONSUMPTION: &[Field] =
    &[one(1, "counterSet", Text), map(2, "counters", Message(COUNTER)), many(3, "compatibilityGroups", Text)];

const COUNTER_SET: &[Field] = &[one(1, "name", Text), map(2, "counters", Message(COUNTER))];

const COUNTER: &[Field] = &[one(1, "value", Quantity)];

const TAINT: &[Field] =
    &[one(1, "key", Text), one(2, "value", TextIfAny), one(3, "effect", Text), one(4, "timeAdded", Time)];

const NODE_ALLOCATABLE: &[Field] = &[one(3, "mapping", Message(MAPPING)), one(4, "overhead", Message(OVERHEAD))];

const MAPPING: &[Field] =
    &[one(1, "capacityKey", Text), one(2, "capacityMultiplier", Quantity), one(3, "deviceMultiplier", Quantity)];

const OVERHEAD: &[Field] = &[one(1, "perPod", Quantity), one(2, "perContainer", Quantity)];

const NODE_SELECTOR: &[Field] = &[many(1, "nodeSelectorTerms", Message(NODE_SELECTOR_TERM))];

const NODE_SELECTOR_TERM: &[Field] =
    &[many(1, "matchExpressions", Message(NODE_REQUIREMENT)), many(2, "matchFields", Message(NODE_REQUIREMENT))];

const NODE_REQUIREMENT: &[Field] = &[one(1, "key", Text), one(2, "operator", Text), many(3, "values", Text)];

const RESOURCE_CLAIM: &[Field] = &[
    one(1, "metadata", Message(OBJECT_META)),
    one(2, "spec", Message(&[one(1, "devices", Message(DEVICE_CLAIM))])),
    one(3, "status", Message(CLAIM_STATUS)),
];

const DEVICE_CLAIM: &[Field] = &[
    many(1, "requests", Message(DEVICE_REQUEST)),
    many(
        2,
        "constraints",
        Message(&[many(1, "requests", Text), one(2, "matchAttribute", Text), one(3, "distinctAttribute", Text)]),
    ),
    many(3, "config", Message(&[many(1, "requests", Text), one(2, "", Inline(CONFIGURATION))])),
];

const DEVICE_REQUEST: &[Field] =
    &[one(1, "name", Text), one(2, "exactly", Message(EXACTLY)), many(3, "firstAvailable", Message(SUBREQUEST))];

const EXACTLY: &[Field] = &[
    one(1, "deviceClassName", Text),
    many(2, "selectors", Message(SELECTOR)),
    one(3, "allocationMode", TextIfAny),
    one(4, "count", IntIfAny),
    one(5, "adminAccess", Bool),
    many(6, "tolerations", Message(TOLERATION)),
    one(7, "capacity", Message(CAPACITY_REQUIREMENTS)),
    many(8, "derivedAttributes", Message(DERIVED_ATTRIBUTE)),
];

const SUBREQUEST: &[Field] = &[
    one(1, "name", Text),
    one(2, "deviceClassName", Text),
    many(3, "selectors", Message(SELECTOR)),
    one(4, "allocationMode", TextIfAny),
    one(5, "count", IntIfAny),
    many(6, "tolerations", Message(TOLERATION)),
    one(7, "capacity", Message(CAPACITY_REQUIREMENTS)),
    many(8, "derivedAttributes", Message(DERIVED_ATTRIBUTE)),
];

const DERIVED_ATTRIBUTE: &[Field] = &[one(1, "name", Text), one(2, "expression", Text)];

const SELECTOR: &[Field] = &[one(1, "cel", Message(&[one(1, "expression", Text)]))];

const CAPACITY_REQUIREMENTS: &[Field] = &[map(1, "requests", Quantity)];

const TOLERATION: &[Field] = &[
    one(1, "key", TextIfAny),
    one(2, "operator", TextIfAny),
    one(3, "value", TextIfAny),
    one(4, "effect", TextIfAny),
    one(5, "tolerationSeconds", Int),
];

const CONFIGURATION: &[Field] = &[one(1, "opaque", Message(&[one(1, "driver", Text), one(2, "parameters", Json)]))];

const CLAIM_STATUS: &[Field] = &[
    one(1, "allocation", Message(ALLOCATION)),
    many(
        2,
        "reservedFor",
        Message(&[one(1, "apiGroup", TextIfAny), one(3, "resource", Text), one(4, "name", Text), one(5, "uid", Text)]),
    ),
    many(4, "devices", Message(DEVICE_STATUS)),
];

const ALLOCATION: &[Field] = &[
    one(1, "devices", Message(&[many(1, "results", Message(RESULT)), many(2, "config", Message(ALLOCATED_CONFIG))])),
    one(3, "nodeSelector", Message(NODE_SELECTOR)),
    one(5, "allocationTimestamp", Time),
];

const ALLOCATED_CONFIG: &[Field] =
    &[one(1, "source", Text), many(2, "requests", Text), one(3, "", Inline(CONFIGURATION))];

const RESULT: &[Field] = &[
    one(1, "request", Text),
    one(2, "driver", Text),
    one(3, "pool", Text),
    one(4, "device", Text),
    one(5, "adminAccess", Bool),
    many(6, "tolerations", Message(TOLERATION)),
    many(7, "bindingConditions", Text),
    many(8, "bindingFailureConditions", Text),
    one(9, "shareID", Text),
    map(10, "consumedCapacity", Quantity),
    many(11, "skipNodeOperations", Text),
];

const DEVICE_STATUS: &[Field] = &[
    one(1, "driver", Text),
    one(2, "pool", Text),
    one(3, "device", Text),
    many(4, "conditions", Message(CONDITION)),
    one(5, "data", Json),
    one(
        6,
        "networkData",
        Message(&[one(1, "interfaceName", TextIfAny), many(2, "ips", Text), one(3, "hardwareAddress", TextIfAny)]),
    ),
    one(7, "shareID", Text),
];

const CONDITION: &[Field] = &[
    one(1, "type", Text),
    one(2, "status", Text),
    one(3, "observedGeneration", IntIfAny),
    one(4, "lastTransitionTime", Time),
    one(5, "reason", Text),
    one(6, "message", Text),
];

const LIST_META: &[Field] = &[
    one(1, "selfLink", TextIfAny),
    one(2, "resourceVersion", TextIfAny),
    one(3, "continue", TextIfAny),
    one(4, "remainingItemCount", Int),
];

const OBJECT_META: &[Field] = &[
    one(1, "name", TextIfAny),
    one(2, "generateName", TextIfAny),
    one(3, "namespace", TextIfAny),
    one(4, "selfLink", TextIfAny),
    one(5, "uid", TextIfAny),
    one(6, "resourceVersion", TextIfAny),
    one(7, "generation", IntIfAny),
    one(8, "creationTimestamp", Time),
    one(9, "deletionTimestamp", Time),
    one(10, "deletionGracePeriodSeconds", Int),
    map(11, "labels", Text),
    map(12, "annotations", Text),
    many(13, "ownerReferences", Message(OWNER)),
    many(14, "finalizers", Text),
    many(17, "managedFields", Message(MANAGED_FIELDS)),
];

const MANAGED_FIELDS: &[Field] = &[
    one(1, "manager", TextIfAny),
    one(2, "operation", TextIfAny),
    one(3, "apiVersion", TextIfAny),
    one(4, "time", Time),
    one(6, "fieldsType", TextIfAny),
    one(7, "fieldsV1", Json),
    one(8, "subresource", TextIfAny),
];

const OWNER: &[Field] = &[
    one(1, "kind", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    one(6, "controller", Bool),
    one(7, "blockOwnerDeletion", Bool),
];

const DELETE_OPTIONS: &[Field] = &[
    one(1, "gracePeriodSeconds", Int),
    one(2, "preconditions", Message(&[one(1, "uid", Text), one(2, "resourceVersion", Text)])),
    one(3, "orphanDependents", Bool),
    one(4, "propagationPolicy", Text),
    many(5, "dryRun", Text),
];

/// What an API server says of a request that it did not fulfil.
const STATUS: &[Field] = &[
    one(1, "metadata", Message(LIST_META)),
    one(2, "status", TextIfAny),
    one(3, "message", TextIfAny),
    one(4, "reason", TextIfAny),
    one(5, "details", Message(STATUS_DETAILS)),
    one(6, "code", IntIfAny),
];

const STATUS_DETAILS: &[Field] = &[
    one(1, "name", TextIfAny),
    one(2, "group", TextIfAny),
    one(3, "kind", TextIfAny),
    many(
        4,
        "causes",
        Message(&[one(1, "reason", TextIfAny), one(2, "message", TextIfAny), one(3, "field", TextIfAny)]),
    ),
    one(5, "retryAfterSeconds", IntIfAny),
    one(6, "uid", TextIfAny),
];
