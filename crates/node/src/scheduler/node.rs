//! The node that pods are put on, and whether selectors of slices, claims and pods mean it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// The label that every node has.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What selectors can ask about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
}

impl NodeInfo {
    /// The node, with the labels of its object if there is one.
    pub(crate) fn new(name: &str, object: Option<&Node>) -> Self {
        let mut labels = object.and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
        labels.entry(HOSTNAME.to_owned()).or_insert_with(|| name.to_owned());
        Self { name: name.to_owned(), labels }
    }

    /// Whether one of the three ways to say where something is means this node.
    pub(crate) fn is_meant_by(&self, name: Option<&str>, all: Option<bool>, selector: Option<&NodeSelector>) -> bool {
        match (name.filter(|name| !name.is_empty()), all, selector) {
            (Some(name), _, _) => name == self.name,
            (None, Some(true), _) => true,
            (None, _, Some(selector)) => self.is_selected_by(selector),
            (None, _, None) => false,
        }
    }

    /// Whether one of the selector's terms matches.
    pub(crate) fn is_selected_by(&self, selector: &NodeSelector) -> bool {
        selector.node_selector_terms.iter().any(|term| self.matches(term))
    }

    /// Whether the node has all these labels.
    pub(crate) fn has_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }

    /// A term without requirements matches nothing.
    fn matches(&self, term: &NodeSelectorTerm) -> bool {
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let labels = term.match_expressions.as_deref().unwrap_or_default();
        let name = |key: &str| (key == "metadata.name").then_some(self.name.as_str());
        (!fields.is_empty() || !labels.is_empty())
            && fields.iter().all(|requirement| meets(requirement, name(&requirement.key)))
            && labels
                .iter()
                .all(|requirement| meets(requirement, self.labels.get(&requirement.key).map(String::as_str)))
    }
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let compared = || number(value).zip(number(values.first().map(String::as_str)));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(value, than)| value > than),
        "Lt" => compared().is_some_and(|(value, than)| value < than),
        _ => false,
    }
}
