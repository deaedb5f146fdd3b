//! The node that pods are scheduled onto, and whether the selectors of slices, claims and pods match it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// The label that every node has.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What node selectors match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
}

impl NodeInfo {
    /// Creates the info from the node's name and, if it exists, its object.
    pub(crate) fn new(name: &str, object: Option<&Node>) -> Self {
        let mut labels = object.and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
        labels.entry(HOSTNAME.to_owned()).or_insert_with(|| name.to_owned());
        Self { name: name.to_owned(), labels }
    }

    /// Reports whether a node name, `allNodes` or a node selector matches this node.
    pub(crate) fn is_matched_by(&self, name: Option<&str>, all: Option<bool>, selector: Option<&NodeSelector>) -> bool {
        match (name.filter(|name| !name.is_empty()), all, selector) {
            (Some(name), _, _) => name == self.name,
            (None, Some(true), _) => true,
            (None, _, Some(selector)) => self.is_selected_by(selector),
            (None, _, None) => false,
        }
    }

    /// Reports whether one of the selector's terms matches.
    pub(crate) fn is_selected_by(&self, selector: &NodeSelector) -> bool {
        selector.node_selector_terms.iter().any(|term| self.matches(term))
    }

    /// Reports whether the node has all these labels.
    pub(crate) fn has_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }

    /// Reports whether a term matches. A term without requirements matches nothing.
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
