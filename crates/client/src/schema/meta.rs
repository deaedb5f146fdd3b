//! The types of `meta.k8s.io/v1`: metadata, conditions, and what requests are answered with.

use super::Kind::{Bool, Int, List, Named, Object, Raw, Text, Time};
use super::Presence::{Always, OmitEmpty, Pointer};
use super::{LIST_METADATA, TEXT_LIST, TEXTS, Type, field};

/// The metadata of an object.
pub static OBJECT_META: Type = Type::new(
    "v1.ObjectMeta",
    &[
        field(1, "name", Text, OmitEmpty),
        field(2, "generateName", Text, OmitEmpty),
        field(3, "namespace", Text, OmitEmpty),
        field(4, "selfLink", Text, OmitEmpty),
        field(5, "uid", Named("types.UID"), OmitEmpty).go("UID"),
        field(6, "resourceVersion", Text, OmitEmpty),
        field(7, "generation", Int, OmitEmpty),
        field(8, "creationTimestamp", Time, OmitEmpty),
        field(9, "deletionTimestamp", Time, Pointer),
        field(10, "deletionGracePeriodSeconds", Int, Pointer),
        field(11, "labels", TEXTS, OmitEmpty),
        field(12, "annotations", TEXTS, OmitEmpty),
        field(13, "ownerReferences", List(&Object(&OWNER_REFERENCE)), OmitEmpty).keyed(&["uid"]).patch_merged(),
        field(14, "finalizers", TEXT_LIST, OmitEmpty).set().patch_merged(),
        field(17, "managedFields", List(&Object(&MANAGED_FIELDS_ENTRY)), OmitEmpty),
    ],
);

/// A reference to the owner of an object.
pub static OWNER_REFERENCE: Type = Type::atomic(
    "v1.OwnerReference",
    &[
        field(5, "apiVersion", Text, Always).go("APIVersion"),
        field(1, "kind", Text, Always),
        field(3, "name", Text, Always),
        field(4, "uid", Named("types.UID"), Always).go("UID"),
        field(6, "controller", Bool, Pointer),
        field(7, "blockOwnerDeletion", Bool, Pointer),
    ],
);

/// The fields of an object that one manager owns.
pub static MANAGED_FIELDS_ENTRY: Type = Type::new(
    "v1.ManagedFieldsEntry",
    &[
        field(1, "manager", Text, OmitEmpty),
        field(2, "operation", Named("v1.ManagedFieldsOperationType"), OmitEmpty),
        field(3, "apiVersion", Text, OmitEmpty).go("APIVersion"),
        field(4, "time", Time, Pointer),
        field(6, "fieldsType", Text, OmitEmpty),
        field(7, "fieldsV1", Raw, Pointer),
        field(8, "subresource", Text, OmitEmpty),
    ],
);

/// The metadata of a list.
pub static LIST_META: Type = Type::new(
    "v1.ListMeta",
    &[
        field(1, "selfLink", Text, OmitEmpty),
        field(2, "resourceVersion", Text, OmitEmpty),
        field(3, "continue", Text, OmitEmpty),
        field(4, "remainingItemCount", Int, Pointer),
    ],
);

/// A condition in a status.
pub static CONDITION: Type = Type::new(
    "v1.Condition",
    &[
        field(1, "type", Text, Always),
        field(2, "status", Named("v1.ConditionStatus"), Always),
        field(3, "observedGeneration", Int, OmitEmpty),
        field(4, "lastTransitionTime", Time, Always),
        field(5, "reason", Text, Always),
        field(6, "message", Text, Always),
    ],
);

/// The answer to a request that failed, or that has no object to return.
pub static STATUS: Type = Type::new(
    "v1.Status",
    &[
        LIST_METADATA,
        field(2, "status", Text, OmitEmpty),
        field(3, "message", Text, OmitEmpty),
        field(4, "reason", Named("v1.StatusReason"), OmitEmpty),
        field(5, "details", Object(&STATUS_DETAILS), Pointer),
        field(6, "code", Int, OmitEmpty),
    ],
);

/// The details of a [`STATUS`].
pub static STATUS_DETAILS: Type = Type::new(
    "v1.StatusDetails",
    &[
        field(1, "name", Text, OmitEmpty),
        field(2, "group", Text, OmitEmpty),
        field(3, "kind", Text, OmitEmpty),
        field(6, "uid", Named("types.UID"), OmitEmpty).go("UID"),
        field(4, "causes", List(&Object(&STATUS_CAUSE)), OmitEmpty),
        field(5, "retryAfterSeconds", Int, OmitEmpty),
    ],
);

/// One cause of a failure.
pub static STATUS_CAUSE: Type = Type::new(
    "v1.StatusCause",
    &[
        field(1, "reason", Named("v1.CauseType"), OmitEmpty).go("Type"),
        field(2, "message", Text, OmitEmpty),
        field(3, "field", Text, OmitEmpty),
    ],
);

/// The body of a delete request.
pub static DELETE_OPTIONS: Type = Type::new(
    "v1.DeleteOptions",
    &[
        field(1, "gracePeriodSeconds", Int, Pointer),
        field(2, "preconditions", Object(&PRECONDITIONS), Pointer),
        field(3, "orphanDependents", Bool, Pointer),
        field(4, "propagationPolicy", Named("v1.DeletionPropagation"), Pointer),
        field(5, "dryRun", TEXT_LIST, OmitEmpty),
        field(6, "ignoreStoreReadErrorWithClusterBreakingPotential", Bool, Pointer),
    ],
);

/// What must hold of an object for it to be deleted.
pub static PRECONDITIONS: Type = Type::new(
    "v1.Preconditions",
    &[field(1, "uid", Named("types.UID"), Pointer).go("UID"), field(2, "resourceVersion", Text, Pointer)],
);
