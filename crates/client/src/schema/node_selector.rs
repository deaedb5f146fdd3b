//! The types of node selectors, which slices and allocations share with the core group.

use super::Kind::{List, Named, Object, Text};
use super::Presence::{Always, OmitEmpty};
use super::{TEXT_LIST, Type, field};

/// A selector of nodes: any of its terms must match.
pub static NODE_SELECTOR: Type =
    Type::atomic("v1.NodeSelector", &[field(1, "nodeSelectorTerms", List(&Object(&NODE_SELECTOR_TERM)), Always)]);

/// A term of a node selector: all of its requirements must match.
pub static NODE_SELECTOR_TERM: Type = Type::atomic(
    "v1.NodeSelectorTerm",
    &[
        field(1, "matchExpressions", List(&Object(&NODE_SELECTOR_REQUIREMENT)), OmitEmpty),
        field(2, "matchFields", List(&Object(&NODE_SELECTOR_REQUIREMENT)), OmitEmpty),
    ],
);

/// A requirement of a node selector.
pub static NODE_SELECTOR_REQUIREMENT: Type = Type::new(
    "v1.NodeSelectorRequirement",
    &[
        field(1, "key", Text, Always),
        field(2, "operator", Named("v1.NodeSelectorOperator"), Always),
        field(3, "values", TEXT_LIST, OmitEmpty),
    ],
);
