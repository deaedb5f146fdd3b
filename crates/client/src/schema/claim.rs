//! `ResourceClaim`, `ResourceClaimTemplate` and their parts.

use super::Kind::{Bool, Int, List, Named, Object, Raw, Text, Time};
use super::Presence::{Always, OmitEmpty, Pointer};
use super::{CONDITION, LIST_METADATA, METADATA, NODE_SELECTOR, QUANTITIES, TEXT_LIST, Type, field};

/// A claim.
pub static RESOURCE_CLAIM: Type = Type::new(
    "v1.ResourceClaim",
    &[
        METADATA,
        field(2, "spec", Object(&RESOURCE_CLAIM_SPEC), Always),
        field(3, "status", Object(&RESOURCE_CLAIM_STATUS), Always),
    ],
);

/// A list of [`RESOURCE_CLAIM`].
pub static RESOURCE_CLAIM_LIST: Type =
    Type::new("v1.ResourceClaimList", &[LIST_METADATA, field(2, "items", List(&Object(&RESOURCE_CLAIM)), Always)]);

/// A template of claims.
pub static RESOURCE_CLAIM_TEMPLATE: Type =
    Type::new("v1.ResourceClaimTemplate", &[METADATA, field(2, "spec", Object(&RESOURCE_CLAIM_TEMPLATE_SPEC), Always)]);

/// A list of [`RESOURCE_CLAIM_TEMPLATE`].
pub static RESOURCE_CLAIM_TEMPLATE_LIST: Type = Type::new(
    "v1.ResourceClaimTemplateList",
    &[LIST_METADATA, field(2, "items", List(&Object(&RESOURCE_CLAIM_TEMPLATE)), Always)],
);

/// The content of a template: metadata and spec of its claims.
pub static RESOURCE_CLAIM_TEMPLATE_SPEC: Type =
    Type::new("v1.ResourceClaimTemplateSpec", &[METADATA, field(2, "spec", Object(&RESOURCE_CLAIM_SPEC), Always)]);

/// The spec of a claim.
pub static RESOURCE_CLAIM_SPEC: Type =
    Type::new("v1.ResourceClaimSpec", &[field(1, "devices", Object(&DEVICE_CLAIM), Always)]);

/// The devices that a claim asks for.
pub static DEVICE_CLAIM: Type = Type::new(
    "v1.DeviceClaim",
    &[
        field(1, "requests", List(&Object(&DEVICE_REQUEST)), Always),
        field(2, "constraints", List(&Object(&DEVICE_CONSTRAINT)), OmitEmpty),
        field(3, "config", List(&Object(&DEVICE_CLAIM_CONFIGURATION)), OmitEmpty),
    ],
);

/// A request for devices.
pub static DEVICE_REQUEST: Type = Type::new(
    "v1.DeviceRequest",
    &[
        field(1, "name", Text, Always),
        field(2, "exactly", Object(&EXACT_DEVICE_REQUEST), Pointer),
        field(3, "firstAvailable", List(&Object(&DEVICE_SUB_REQUEST)), OmitEmpty),
    ],
);

/// The content of a request without alternatives.
pub static EXACT_DEVICE_REQUEST: Type = Type::new(
    "v1.ExactDeviceRequest",
    &[
        field(1, "deviceClassName", Text, Always),
        field(2, "selectors", List(&Object(&DEVICE_SELECTOR)), OmitEmpty),
        field(3, "allocationMode", Named("v1.DeviceAllocationMode"), OmitEmpty),
        field(4, "count", Int, OmitEmpty),
        field(5, "adminAccess", Bool, Pointer),
        field(6, "tolerations", List(&Object(&DEVICE_TOLERATION)), OmitEmpty),
        field(7, "capacity", Object(&CAPACITY_REQUIREMENTS), Pointer),
        field(8, "derivedAttributes", List(&Object(&DEVICE_DERIVED_ATTRIBUTE)), OmitEmpty),
    ],
);

/// One of the alternatives of a request.
pub static DEVICE_SUB_REQUEST: Type = Type::new(
    "v1.DeviceSubRequest",
    &[
        field(1, "name", Text, Always),
        field(2, "deviceClassName", Text, Always),
        field(3, "selectors", List(&Object(&DEVICE_SELECTOR)), OmitEmpty),
        field(4, "allocationMode", Named("v1.DeviceAllocationMode"), OmitEmpty),
        field(5, "count", Int, OmitEmpty),
        field(6, "tolerations", List(&Object(&DEVICE_TOLERATION)), OmitEmpty),
        field(7, "capacity", Object(&CAPACITY_REQUIREMENTS), Pointer),
        field(8, "derivedAttributes", List(&Object(&DEVICE_DERIVED_ATTRIBUTE)), OmitEmpty),
    ],
);

/// A selector of devices.
pub static DEVICE_SELECTOR: Type =
    Type::new("v1.DeviceSelector", &[field(1, "cel", Object(&CEL_DEVICE_SELECTOR), Pointer).go("CEL")]);

/// A selector of devices in CEL.
pub static CEL_DEVICE_SELECTOR: Type = Type::new("v1.CELDeviceSelector", &[field(1, "expression", Text, Always)]);

/// The capacities that a request asks for.
pub static CAPACITY_REQUIREMENTS: Type =
    Type::new("v1.CapacityRequirements", &[field(1, "requests", QUANTITIES, OmitEmpty)]);

/// An attribute that a request derives from those of a device.
pub static DEVICE_DERIVED_ATTRIBUTE: Type = Type::new(
    "v1.DeviceDerivedAttribute",
    &[field(1, "name", Named("v1.FullyQualifiedName"), Always), field(2, "expression", Text, Always)],
);

/// A toleration of taints of devices.
pub static DEVICE_TOLERATION: Type = Type::new(
    "v1.DeviceToleration",
    &[
        field(1, "key", Text, OmitEmpty),
        field(2, "operator", Named("v1.DeviceTolerationOperator"), OmitEmpty),
        field(3, "value", Text, OmitEmpty),
        field(4, "effect", Named("v1.DeviceTaintEffect"), OmitEmpty),
        field(5, "tolerationSeconds", Int, Pointer),
    ],
);

/// A constraint on the devices of several requests.
pub static DEVICE_CONSTRAINT: Type = Type::new(
    "v1.DeviceConstraint",
    &[
        field(1, "requests", TEXT_LIST, OmitEmpty),
        field(2, "matchAttribute", Named("v1.FullyQualifiedName"), Pointer),
        field(3, "distinctAttribute", Named("v1.FullyQualifiedName"), Pointer),
    ],
);

/// The configuration of devices in a claim.
pub static DEVICE_CLAIM_CONFIGURATION: Type = Type::new(
    "v1.DeviceClaimConfiguration",
    &[
        field(1, "requests", TEXT_LIST, OmitEmpty),
        field(1, "opaque", Object(&OPAQUE_DEVICE_CONFIGURATION), Pointer).embedded_in(2),
    ],
);

/// Configuration that only the driver understands.
pub static OPAQUE_DEVICE_CONFIGURATION: Type =
    Type::new("v1.OpaqueDeviceConfiguration", &[field(1, "driver", Text, Always), field(2, "parameters", Raw, Always)]);

/// The status of a claim.
pub static RESOURCE_CLAIM_STATUS: Type = Type::new(
    "v1.ResourceClaimStatus",
    &[
        field(1, "allocation", Object(&ALLOCATION_RESULT), Pointer),
        field(2, "reservedFor", List(&Object(&RESOURCE_CLAIM_CONSUMER_REFERENCE)), OmitEmpty)
            .keyed(&["uid"])
            .patch_merged(),
        field(4, "devices", List(&Object(&ALLOCATED_DEVICE_STATUS)), OmitEmpty)
            .keyed(&["driver", "device", "pool", "shareID"]),
    ],
);

/// The allocation of a claim.
pub static ALLOCATION_RESULT: Type = Type::new(
    "v1.AllocationResult",
    &[
        field(1, "devices", Object(&DEVICE_ALLOCATION_RESULT), Always),
        field(3, "nodeSelector", Object(&NODE_SELECTOR), Pointer),
        field(5, "allocationTimestamp", Time, Pointer),
    ],
);

/// The devices that are allocated for a claim.
pub static DEVICE_ALLOCATION_RESULT: Type = Type::new(
    "v1.DeviceAllocationResult",
    &[
        field(1, "results", List(&Object(&DEVICE_REQUEST_ALLOCATION_RESULT)), OmitEmpty),
        field(2, "config", List(&Object(&DEVICE_ALLOCATION_CONFIGURATION)), OmitEmpty),
    ],
);

/// A device that is allocated for a request.
pub static DEVICE_REQUEST_ALLOCATION_RESULT: Type = Type::new(
    "v1.DeviceRequestAllocationResult",
    &[
        field(1, "request", Text, Always),
        field(2, "driver", Text, Always),
        field(3, "pool", Text, Always),
        field(4, "device", Text, Always),
        field(5, "adminAccess", Bool, Pointer),
        field(6, "tolerations", List(&Object(&DEVICE_TOLERATION)), OmitEmpty),
        field(7, "bindingConditions", TEXT_LIST, OmitEmpty),
        field(8, "bindingFailureConditions", TEXT_LIST, OmitEmpty),
        field(9, "shareID", Named("types.UID"), Pointer),
        field(10, "consumedCapacity", QUANTITIES, OmitEmpty),
        field(11, "skipNodeOperations", List(&Named("v1.SkipNodeOperation")), OmitEmpty).set(),
    ],
);

/// The configuration of allocated devices.
pub static DEVICE_ALLOCATION_CONFIGURATION: Type = Type::new(
    "v1.DeviceAllocationConfiguration",
    &[
        field(1, "source", Named("v1.AllocationConfigSource"), Always),
        field(2, "requests", TEXT_LIST, OmitEmpty),
        field(1, "opaque", Object(&OPAQUE_DEVICE_CONFIGURATION), Pointer).embedded_in(3),
    ],
);

/// A consumer of a claim, most often a pod.
pub static RESOURCE_CLAIM_CONSUMER_REFERENCE: Type = Type::new(
    "v1.ResourceClaimConsumerReference",
    &[
        field(1, "apiGroup", Text, OmitEmpty).go("APIGroup"),
        field(3, "resource", Text, Always),
        field(4, "name", Text, Always),
        field(5, "uid", Named("types.UID"), Always).go("UID"),
    ],
);

/// The status of an allocated device, which its driver reports.
pub static ALLOCATED_DEVICE_STATUS: Type = Type::new(
    "v1.AllocatedDeviceStatus",
    &[
        field(1, "driver", Text, Always),
        field(2, "pool", Text, Always),
        field(3, "device", Text, Always),
        field(7, "shareID", Text, Pointer),
        field(4, "conditions", List(&Object(&CONDITION)), Always).keyed(&["type"]),
        field(5, "data", Raw, Pointer),
        field(6, "networkData", Object(&NETWORK_DEVICE_DATA), Pointer),
    ],
);

/// The network data of a device.
pub static NETWORK_DEVICE_DATA: Type = Type::new(
    "v1.NetworkDeviceData",
    &[
        field(1, "interfaceName", Text, OmitEmpty),
        field(2, "ips", TEXT_LIST, OmitEmpty).go("IPs"),
        field(3, "hardwareAddress", Text, OmitEmpty),
    ],
);
