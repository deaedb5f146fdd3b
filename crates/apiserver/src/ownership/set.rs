//! Sets of fields, as trees of the elements of `fieldsV1`.
//!
//! An element is `f:NAME` (field), `k:{…}` (item of a list, by its keys) or `v:…` (item of a set, by its value).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// A set of fields, or one node of its tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Whether the field of this node is itself in the set, apart from what is below it.
    pub(crate) member: bool,
    pub(crate) children: BTreeMap<String, Fields>,
}

impl Fields {
    /// Reads a `fieldsV1`.
    pub(crate) fn parse(value: &Value) -> Self {
        let mut fields = Self::children_of(value);
        fields.member = false;
        fields
    }

    fn children_of(value: &Value) -> Self {
        let object = value.as_object();
        let children = object
            .into_iter()
            .flatten()
            .filter(|(element, _)| *element != ".")
            .map(|(element, below)| (element.clone(), Self::children_of(below)))
            .collect();
        Self { member: object.is_none_or(|object| object.is_empty() || object.contains_key(".")), children }
    }

    /// Returns the set as a `fieldsV1`.
    pub(crate) fn to_value(&self) -> Value {
        let mut object = Map::new();
        if self.member && !self.children.is_empty() {
            object.insert(".".to_owned(), Map::new().into());
        }
        object.extend(self.children.iter().map(|(element, below)| (element.clone(), below.to_value())));
        object.into()
    }

    /// Returns whether the set has no members.
    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    /// Inserts the field at a path of elements.
    pub(crate) fn insert(&mut self, path: &[String]) {
        let node = path.iter().fold(self, |node, element| node.children.entry(element.clone()).or_default());
        node.member = true;
    }

    /// Adds the members of another set.
    pub(crate) fn union(&mut self, other: &Self) {
        self.member |= other.member;
        for (element, below) in &other.children {
            self.children.entry(element.clone()).or_default().union(below);
        }
    }

    /// Returns the members that both sets have.
    #[must_use]
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, below)| {
            let both = below.intersection(other.children.get(element)?);
            (!both.is_empty()).then(|| (element.clone(), both))
        });
        Self { member: self.member && other.member, children: children.collect() }
    }

    /// Returns the members that the other set does not have.
    #[must_use]
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, below)| {
            let rest = match other.children.get(element) {
                Some(other) => below.difference(other),
                None => below.clone(),
            };
            (!rest.is_empty()).then(|| (element.clone(), rest))
        });
        Self { member: self.member && !other.member, children: children.collect() }
    }

    /// Returns the paths of the members as conflict messages have them: `.status.devices[device="a",driver="b"].data`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    fn collect(&self, path: &mut String, paths: &mut Vec<String>) {
        let length = path.len();
        // Members of a level come before those below it.
        for (element, _) in self.children.iter().filter(|(_, below)| below.member) {
            push_element(element, path);
            paths.push(path.clone());
            path.truncate(length);
        }
        for (element, below) in &self.children {
            push_element(element, path);
            below.collect(path, paths);
            path.truncate(length);
        }
    }
}

/// Appends an element to a path.
fn push_element(element: &str, path: &mut String) {
    // Writing to a string cannot fail.
    let _ = match element.split_once(':') {
        Some(("f", name)) => write!(path, ".{name}"),
        Some(("v", value)) => write!(path, "[={value}]"),
        Some(("k", keys)) => {
            let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            write!(path, "[{}]", keys.join(","))
        }
        _ => write!(path, "{element}"),
    };
}
