//! Objects as trees of owned fields: which there are, which differ, how two become one.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::schema::{self, List};
use super::set::Fields;
use crate::resource::Resource;

/// What differs between two states of an object.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Added or modified.
    pub(crate) changed: Fields,
    pub(crate) removed: Fields,
}

/// Where in an object one is: for the schema (`status.devices[].data`), and in the words of a field set.
#[derive(Clone, Debug)]
struct Place {
    resource: Resource,
    path: String,
    elements: Vec<String>,
}

impl Place {
    fn top(resource: Resource) -> Self {
        Self { resource, path: String::new(), elements: Vec::new() }
    }

    fn field(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        self.below(path, format!("f:{name}"))
    }

    fn item(&self, element: String) -> Self {
        self.below(format!("{}[]", self.path), element)
    }

    fn below(&self, path: String, element: String) -> Self {
        let mut elements = self.elements.clone();
        elements.push(element);
        Self { resource: self.resource, path, elements }
    }

    /// Whether this is always there, if only empty. Nobody owns that.
    fn is_section(&self) -> bool {
        matches!(
            (self.resource, self.path.as_str()),
            (_, "" | "metadata" | "spec" | "status")
                | (Resource::ResourceClaim, "spec.devices")
                | (Resource::ResourceSlice, "spec.pool")
                | (Resource::Pod, "spec.containers")
        )
    }

    /// What a value is made of here; nothing for one that is owned as a whole.
    fn parts<'a>(&self, value: &'a Value) -> Option<BTreeMap<String, (Place, &'a Value)>> {
        match value {
            Value::Object(object) if !schema::is_atomic_object(self.resource, &self.path) => {
                let parts = object.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
                    let place = self.field(name);
                    (format!("f:{name}"), (place, value))
                });
                Some(parts.filter(|(_, (place, _))| !schema::is_ignored(&place.path)).collect())
            }
            Value::Array(items) => match schema::list(self.resource, &self.path) {
                List::Atomic => None,
                list => Some(
                    items
                        .iter()
                        .filter_map(|item| {
                            let element = schema::element(list, item)?;
                            Some((element.clone(), (self.item(element), item)))
                        })
                        .collect(),
                ),
            },
            _ => None,
        }
    }
}

/// The fields that an applied configuration names.
pub(crate) fn fields(resource: Resource, config: &Value) -> Fields {
    let mut set = Fields::default();
    name(&Place::top(resource), config, &mut set);
    set
}

fn name(place: &Place, value: &Value, set: &mut Fields) {
    let Some(parts) = place.parts(value) else {
        set.insert(&place.elements);
        return;
    };
    let items = value.is_array();
    for (place_below, below) in parts.values() {
        name(place_below, below, set);
        let empty = below.as_object().is_some_and(Map::is_empty);
        if items || empty || schema::is_free_map(&place.path) {
            set.insert(&place_below.elements);
        }
    }
}

/// What differs between an object and its successor.
pub(crate) fn compare(resource: Resource, old: &Value, new: &Value) -> Difference {
    let mut difference = Difference::default();
    differ(&Place::top(resource), old, new, &mut difference);
    difference
}

fn differ(place: &Place, old: &Value, new: &Value, difference: &mut Difference) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Null, _) => return all(place, new, &mut difference.changed),
        (_, Value::Null) => return all(place, old, &mut difference.removed),
        _ => {}
    }
    let (before, after) = match (place.parts(old), place.parts(new)) {
        (Some(before), Some(after)) => (before, after),
        _ => {
            difference.changed.insert(&place.elements);
            return;
        }
    };
    for (element, (place, old)) in &before {
        match after.get(element) {
            Some((_, new)) => differ(place, old, new, difference),
            None => all(place, old, &mut difference.removed),
        }
    }
    for (_, (place, new)) in after.iter().filter(|(element, _)| !before.contains_key(*element)) {
        all(place, new, &mut difference.changed);
    }
}

/// A part that is on one side only, with everything in it.
fn all(place: &Place, value: &Value, set: &mut Fields) {
    if !place.is_section() {
        set.insert(&place.elements);
    }
    for (place, below) in place.parts(value).unwrap_or_default().values() {
        all(place, below, set);
    }
}

/// Puts an applied configuration over an object.
pub(crate) fn merge(resource: Resource, live: &mut Value, config: &Value) {
    overlay(&Place::top(resource), live, config);
}

fn overlay(place: &Place, live: &mut Value, config: &Value) {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if !schema::is_atomic_object(place.resource, &place.path) => {
            for (name, value) in config {
                overlay(&place.field(name), live.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(live), Value::Array(config)) => match schema::list(place.resource, &place.path) {
            List::Atomic => live.clone_from(config),
            list => {
                for item in config {
                    let element = schema::element(list, item);
                    match live.iter_mut().find(|other| schema::element(list, other) == element) {
                        Some(other) => overlay(&place.item(element.unwrap_or_default()), other, item),
                        None => live.push(item.clone()),
                    }
                }
            }
        },
        (live, config) => *live = config.clone(),
    }
}

/// Removes from an object what is in `last` and nobody has in `kept`.
pub(crate) fn prune(resource: Resource, object: &mut Value, last: &Fields, kept: &Fields) {
    cut(&Place::top(resource), object, last, kept);
}

fn cut(place: &Place, value: &mut Value, last: &Fields, kept: &Fields) {
    match value {
        Value::Object(object) if !schema::is_atomic_object(place.resource, &place.path) => {
            for (element, last) in &last.children {
                let Some(name) = element.strip_prefix("f:") else { continue };
                match kept.children.get(element) {
                    Some(kept) => {
                        if let Some(below) = object.get_mut(name) {
                            cut(&place.field(name), below, last, kept);
                        }
                    }
                    // The sections stay, what is in them goes.
                    None if place.field(name).is_section() => {
                        if let Some(below) = object.get_mut(name) {
                            cut(&place.field(name), below, last, &Fields::default());
                        }
                    }
                    None => drop(object.remove(name)),
                }
            }
        }
        Value::Array(items) => {
            let list = schema::list(place.resource, &place.path);
            items.retain_mut(|item| {
                let Some(element) = schema::element(list, item) else { return true };
                let Some(last) = last.children.get(&element) else { return true };
                let kept = kept.children.get(&element);
                // Whoever owns only fields of an item does not keep the item.
                if last.member && kept.is_none_or(|kept| !kept.member) {
                    return false;
                }
                cut(&place.item(element), item, last, kept.unwrap_or(&Fields::default()));
                true
            });
        }
        _ => {}
    }
}
