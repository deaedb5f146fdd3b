//! The types, field by field, in the order in which the server writes them.

use super::Kind::{Bool, Int, List, Map, Named, Object, Quantity, Raw, Text, Time};
use super::Written::{Always, Filled, OrNull, Present};
use super::{Field, Kind, Type, Written};

const fn field(name: &'static str, kind: Kind, written: Written) -> Field {
    Field { name, internal: None, kind, written }
}

const fn named(name: &'static str, internal: &'static str, kind: Kind, written: Written) -> Field {
    Field { name, internal: Some(internal), kind, written }
}

const TEXTS: Kind = Map("string", &Text);
const QUANTITIES: Kind = Map("v1.QualifiedName", &Quantity);

static OBJECT_META: Type = Type {
    name: "v1.ObjectMeta",
    fields: &[
        field("name", Text, Filled),
        field("generateName", Text, Filled),
        field("namespace", Text, Filled),
        field("selfLink", Text, Filled),
        named("uid", "UID", Named("types.UID"), Filled),
        field("resourceVersion", Text, Filled),
        field("generation", Int, Filled),
        field("creationTimestamp", Time, Present),
        field("deletionTimestamp", Time, Present),
        field("deletionGracePeriodSeconds", Int, Present),
        field("labels", TEXTS, Filled),
        field("annotations", TEXTS, Filled),
        field("ownerReferences", List(&Object(&OWNER_REFERENCE)), Filled),
        field("finalizers", List(&Text), Filled),
        field("managedFields", Raw, Filled),
    ],
};

pub(in super::super) static OWNER_REFERENCE: Type = Type {
    name: "v1.OwnerReference",
    fields: &[
        field("apiVersion", Text, Always),
        field("kind", Text, Always),
        field("name", Text, Always),
        named("uid", "UID", Named("types.UID"), Always),
        field("controller", Bool, Present),
        field("blockOwnerDeletion", Bool, Present),
    ],
};

const META: Field = field("metadata", Object(&OBJECT_META), Always);

pub(super) static RESOURCE_SLICE: Type =
    Type { name: "v1.ResourceSlice", fields: &[META, field("spec", Object(&RESOURCE_SLICE_SPEC), Always)] };

static RESOURCE_SLICE_SPEC: Type = Type {
    name: "v1.ResourceSliceSpec",
    fields: &[
        field("driver", Text, Always),
        field("pool", Object(&RESOURCE_POOL), Always),
        field("nodeName", Text, Present),
        field("nodeSelector", Object(&NODE_SELECTOR), Present),
        field("allNodes", Bool, Present),
        field("devices", List(&Object(&DEVICE)), Filled),
        field("perDeviceNodeSelection", Bool, Present),
        field("sharedCounters", List(&Object(&COUNTER_SET)), Filled),
        field("partitionTypeAttribute", Named("v1.FullyQualifiedName"), Present),
        field("skipNodeOperations", List(&Named("v1.SkipNodeOperation")), Filled),
    ],
};

static RESOURCE_POOL: Type = Type {
    name: "v1.ResourcePool",
    fields: &[field("name", Text, Always), field("generation", Int, Always), field("resourceSliceCount", Int, Always)],
};

pub(in super::super) static COUNTER_SET: Type = Type {
    name: "v1.CounterSet",
    fields: &[field("name", Text, Always), field("counters", Map("string", &Object(&COUNTER)), Filled)],
};

static COUNTER: Type = Type { name: "v1.Counter", fields: &[field("value", Quantity, Always)] };

static DEVICE: Type = Type {
    name: "v1.Device",
    fields: &[
        field("name", Text, Always),
        field("attributes", Map("v1.QualifiedName", &Object(&DEVICE_ATTRIBUTE)), Filled),
        field("capacity", Map("v1.QualifiedName", &Object(&DEVICE_CAPACITY)), Filled),
        field("consumesCounters", List(&Object(&COUNTER_CONSUMPTION)), Filled),
        field("nodeName", Text, Present),
        field("nodeSelector", Object(&NODE_SELECTOR), Present),
        field("allNodes", Bool, Present),
        field("taints", List(&Object(&DEVICE_TAINT)), Filled),
        field("bindsToNode", Bool, Present),
        field("bindingConditions", List(&Text), Filled),
        field("bindingFailureConditions", List(&Text), Filled),
        field("allowMultipleAllocations", Bool, Present),
        field("nodeAllocatableResources", Map("v1.ResourceName", &Object(&NODE_ALLOCATABLE_RESOURCE)), Filled),
    ],
};

pub(in super::super) static DEVICE_ATTRIBUTE: Type = Type {
    name: "v1.DeviceAttribute",
    fields: &[
        named("int", "IntValue", Int, Present),
        named("bool", "BoolValue", Bool, Present),
        named("string", "StringValue", Text, Present),
        named("version", "VersionValue", Text, Present),
        named("ints", "IntValues", List(&Int), Filled),
        named("bools", "BoolValues", List(&Bool), Filled),
        named("strings", "StringValues", List(&Text), Filled),
        named("versions", "VersionValues", List(&Text), Filled),
    ],
};

static DEVICE_CAPACITY: Type = Type {
    name: "v1.DeviceCapacity",
    fields: &[field("value", Quantity, Always), field("requestPolicy", Object(&REQUEST_POLICY), Present)],
};

static REQUEST_POLICY: Type = Type {
    name: "v1.CapacityRequestPolicy",
    fields: &[
        field("default", Quantity, OrNull),
        field("validValues", List(&Quantity), Filled),
        field("validRange", Object(&REQUEST_POLICY_RANGE), Present),
    ],
};

static REQUEST_POLICY_RANGE: Type = Type {
    name: "v1.CapacityRequestPolicyRange",
    fields: &[field("min", Quantity, Present), field("max", Quantity, Present), field("step", Quantity, Present)],
};

pub(in super::super) static COUNTER_CONSUMPTION: Type = Type {
    name: "v1.DeviceCounterConsumption",
    fields: &[
        field("counterSet", Text, Always),
        field("counters", Map("string", &Object(&COUNTER)), Filled),
        field("compatibilityGroups", List(&Text), Filled),
    ],
};

static DEVICE_TAINT: Type = Type {
    name: "v1.DeviceTaint",
    fields: &[
        field("key", Text, Always),
        field("value", Text, Filled),
        field("effect", Named("v1.DeviceTaintEffect"), Always),
        field("timeAdded", Time, Present),
    ],
};

static NODE_ALLOCATABLE_RESOURCE: Type = Type {
    name: "v1.NodeAllocatableResource",
    fields: &[
        field("mapping", Object(&NODE_ALLOCATABLE_MAPPING), Present),
        field("overhead", Object(&NODE_ALLOCATABLE_OVERHEAD), Present),
    ],
};

static NODE_ALLOCATABLE_MAPPING: Type = Type {
    name: "v1.NodeAllocatableMapping",
    fields: &[
        field("capacityKey", Named("v1.QualifiedName"), Present),
        field("capacityMultiplier", Quantity, Present),
        field("deviceMultiplier", Quantity, Present),
    ],
};

static NODE_ALLOCATABLE_OVERHEAD: Type = Type {
    name: "v1.NodeAllocatableOverhead",
    fields: &[field("perPod", Quantity, Present), field("perContainer", Quantity, Present)],
};

static NODE_SELECTOR: Type =
    Type { name: "v1.NodeSelector", fields: &[field("nodeSelectorTerms", List(&Object(&NODE_SELECTOR_TERM)), Always)] };

pub(in super::super) static NODE_SELECTOR_TERM: Type = Type {
    name: "v1.NodeSelectorTerm",
    fields: &[
        field("matchExpressions", List(&Object(&NODE_SELECTOR_REQUIREMENT)), Filled),
        field("matchFields", List(&Object(&NODE_SELECTOR_REQUIREMENT)), Filled),
    ],
};

static NODE_SELECTOR_REQUIREMENT: Type = Type {
    name: "v1.NodeSelectorRequirement",
    fields: &[
        field("key", Text, Always),
        field("operator", Named("v1.NodeSelectorOperator"), Always),
        field("values", List(&Text), Filled),
    ],
};

pub(super) static RESOURCE_CLAIM: Type = Type {
    name: "v1.ResourceClaim",
    fields: &[
        META,
        field("spec", Object(&RESOURCE_CLAIM_SPEC), Always),
        field("status", Object(&RESOURCE_CLAIM_STATUS), Always),
    ],
};

static RESOURCE_CLAIM_SPEC: Type =
    Type { name: "v1.ResourceClaimSpec", fields: &[field("devices", Object(&DEVICE_CLAIM), Always)] };

static DEVICE_CLAIM: Type = Type {
    name: "v1.DeviceClaim",
    fields: &[
        field("requests", List(&Object(&DEVICE_REQUEST)), Always),
        field("constraints", List(&Object(&DEVICE_CONSTRAINT)), Filled),
        field("config", List(&Object(&DEVICE_CLAIM_CONFIGURATION)), Filled),
    ],
};

pub(in super::super) static DEVICE_REQUEST: Type = Type {
    name: "v1.DeviceRequest",
    fields: &[
        field("name", Text, Always),
        field("exactly", Object(&EXACT_DEVICE_REQUEST), Present),
        field("firstAvailable", List(&Object(&DEVICE_SUB_REQUEST)), Filled),
    ],
};

static EXACT_DEVICE_REQUEST: Type = Type {
    name: "v1.ExactDeviceRequest",
    fields: &[
        field("deviceClassName", Text, Always),
        field("selectors", List(&Object(&DEVICE_SELECTOR)), Filled),
        field("allocationMode", Named("v1.DeviceAllocationMode"), Filled),
        field("count", Int, Filled),
        field("adminAccess", Bool, Present),
        field("tolerations", List(&Object(&DEVICE_TOLERATION)), Filled),
        field("capacity", Object(&CAPACITY_REQUIREMENTS), Present),
        field("derivedAttributes", List(&Object(&DERIVED_ATTRIBUTE)), Filled),
    ],
};

pub(in super::super) static DEVICE_SUB_REQUEST: Type = Type {
    name: "v1.DeviceSubRequest",
    fields: &[
        field("name", Text, Always),
        field("deviceClassName", Text, Always),
        field("selectors", List(&Object(&DEVICE_SELECTOR)), Filled),
        field("allocationMode", Named("v1.DeviceAllocationMode"), Filled),
        field("count", Int, Filled),
        field("tolerations", List(&Object(&DEVICE_TOLERATION)), Filled),
        field("capacity", Object(&CAPACITY_REQUIREMENTS), Present),
        field("derivedAttributes", List(&Object(&DERIVED_ATTRIBUTE)), Filled),
    ],
};

static DEVICE_SELECTOR: Type =
    Type { name: "v1.DeviceSelector", fields: &[named("cel", "CEL", Object(&CEL_DEVICE_SELECTOR), Present)] };

static CEL_DEVICE_SELECTOR: Type = Type { name: "v1.CELDeviceSelector", fields: &[field("expression", Text, Always)] };

static CAPACITY_REQUIREMENTS: Type =
    Type { name: "v1.CapacityRequirements", fields: &[field("requests", QUANTITIES, Filled)] };

static DERIVED_ATTRIBUTE: Type = Type {
    name: "v1.DeviceDerivedAttribute",
    fields: &[field("name", Named("v1.FullyQualifiedName"), Always), field("expression", Text, Always)],
};

static DEVICE_TOLERATION: Type = Type {
    name: "v1.DeviceToleration",
    fields: &[
        field("key", Text, Filled),
        field("operator", Named("v1.DeviceTolerationOperator"), Filled),
        field("value", Text, Filled),
        field("effect", Named("v1.DeviceTaintEffect"), Filled),
        field("tolerationSeconds", Int, Present),
    ],
};

static DEVICE_CONSTRAINT: Type = Type {
    name: "v1.DeviceConstraint",
    fields: &[
        field("requests", List(&Text), Filled),
        field("matchAttribute", Named("v1.FullyQualifiedName"), Present),
        field("distinctAttribute", Named("v1.FullyQualifiedName"), Present),
    ],
};

static DEVICE_CLAIM_CONFIGURATION: Type = Type {
    name: "v1.DeviceClaimConfiguration",
    fields: &[field("requests", List(&Text), Filled), field("opaque", Object(&OPAQUE), Present)],
};

static OPAQUE: Type = Type {
    name: "v1.OpaqueDeviceConfiguration",
    fields: &[field("driver", Text, Always), field("parameters", Raw, Always)],
};

static RESOURCE_CLAIM_STATUS: Type = Type {
    name: "v1.ResourceClaimStatus",
    fields: &[
        field("allocation", Object(&ALLOCATION_RESULT), Present),
        field("reservedFor", List(&Object(&CONSUMER_REFERENCE)), Filled),
        field("devices", List(&Object(&ALLOCATED_DEVICE_STATUS)), Filled),
    ],
};

static ALLOCATION_RESULT: Type = Type {
    name: "v1.AllocationResult",
    fields: &[
        field("devices", Object(&DEVICE_ALLOCATION_RESULT), Always),
        field("nodeSelector", Object(&NODE_SELECTOR), Present),
        field("allocationTimestamp", Time, Present),
    ],
};

static DEVICE_ALLOCATION_RESULT: Type = Type {
    name: "v1.DeviceAllocationResult",
    fields: &[
        field("results", List(&Object(&REQUEST_ALLOCATION_RESULT)), Filled),
        field("config", List(&Object(&DEVICE_ALLOCATION_CONFIGURATION)), Filled),
    ],
};

static REQUEST_ALLOCATION_RESULT: Type = Type {
    name: "v1.DeviceRequestAllocationResult",
    fields: &[
        field("request", Text, Always),
        field("driver", Text, Always),
        field("pool", Text, Always),
        field("device", Text, Always),
        field("adminAccess", Bool, Present),
        field("tolerations", List(&Object(&DEVICE_TOLERATION)), Filled),
        field("bindingConditions", List(&Text), Filled),
        field("bindingFailureConditions", List(&Text), Filled),
        field("shareID", Named("types.UID"), Present),
        field("consumedCapacity", QUANTITIES, Filled),
        field("skipNodeOperations", List(&Named("v1.SkipNodeOperation")), Filled),
    ],
};

static DEVICE_ALLOCATION_CONFIGURATION: Type = Type {
    name: "v1.DeviceAllocationConfiguration",
    fields: &[
        field("source", Named("v1.AllocationConfigSource"), Always),
        field("requests", List(&Text), Filled),
        field("opaque", Object(&OPAQUE), Present),
    ],
};

pub(in super::super) static CONSUMER_REFERENCE: Type = Type {
    name: "v1.ResourceClaimConsumerReference",
    fields: &[
        field("apiGroup", Text, Filled),
        field("resource", Text, Always),
        field("name", Text, Always),
        field("uid", Named("types.UID"), Always),
    ],
};

pub(in super::super) static ALLOCATED_DEVICE_STATUS: Type = Type {
    name: "v1.AllocatedDeviceStatus",
    fields: &[
        field("driver", Text, Always),
        field("pool", Text, Always),
        field("device", Text, Always),
        field("shareID", Text, Present),
        field("conditions", List(&Object(&CONDITION)), Always),
        field("data", Raw, Present),
        field("networkData", Object(&NETWORK_DEVICE_DATA), Present),
    ],
};

static CONDITION: Type = Type {
    name: "v1.Condition",
    fields: &[
        field("type", Text, Always),
        field("status", Named("v1.ConditionStatus"), Always),
        field("observedGeneration", Int, Filled),
        field("lastTransitionTime", Time, Always),
        field("reason", Text, Always),
        field("message", Text, Always),
    ],
};

static NETWORK_DEVICE_DATA: Type = Type {
    name: "v1.NetworkDeviceData",
    fields: &[
        field("interfaceName", Text, Filled),
        field("ips", List(&Text), Filled),
        field("hardwareAddress", Text, Filled),
    ],
};

pub(super) static RESOURCE_CLAIM_TEMPLATE: Type =
    Type { name: "v1.ResourceClaimTemplate", fields: &[META, field("spec", Object(&CLAIM_TEMPLATE_SPEC), Always)] };

pub(in super::super) static CLAIM_TEMPLATE_SPEC: Type =
    Type { name: "v1.ResourceClaimTemplateSpec", fields: &[META, field("spec", Object(&RESOURCE_CLAIM_SPEC), Always)] };

pub(super) static DEVICE_CLASS: Type =
    Type { name: "v1.DeviceClass", fields: &[META, field("spec", Object(&DEVICE_CLASS_SPEC), Always)] };

static DEVICE_CLASS_SPEC: Type = Type {
    name: "v1.DeviceClassSpec",
    fields: &[
        field("selectors", List(&Object(&DEVICE_SELECTOR)), Filled),
        field("config", List(&Object(&DEVICE_CLASS_CONFIGURATION)), Filled),
        field("extendedResourceName", Text, Present),
    ],
};

static DEVICE_CLASS_CONFIGURATION: Type =
    Type { name: "v1.DeviceClassConfiguration", fields: &[field("opaque", Object(&OPAQUE), Present)] };

pub(in super::super) static POD_RESOURCE_CLAIM: Type = Type {
    name: "v1.PodResourceClaim",
    fields: &[
        field("name", Text, Always),
        field("resourceClaimName", Text, Present),
        field("resourceClaimTemplateName", Text, Present),
    ],
};
