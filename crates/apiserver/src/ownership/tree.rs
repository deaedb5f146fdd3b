//! Objects as trees of owned fields: listing, comparing, merging and pruning them.

use std::collections::BTreeMap;

use drakkar_client::schema::ListType;
use serde_json::{Map, Value};

use super::schema::{self, Schema};
use super::set::Fields;
use crate::resource::Resource;

/// The difference between two states of an object.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Fields that are new or have another value.
    pub(crate) changed: Fields,
    /// Fields that are gone.
    pub(crate) removed: Fields,
}

/// A position in an object.
#[derive(Clone, Debug)]
struct Position {
    schema: Schema,
    /// The path as elements of a field set.
    elements: Vec<String>,
}

impl Position {
    fn top(resource: Resource) -> Self {
        Self { schema: Schema::object(resource), elements: Vec::new() }
    }

    fn field(&self, name: &str) -> Self {
        self.below(self.schema.field(name), format!("f:{name}"))
    }

    fn item(&self, element: String) -> Self {
        self.below(self.schema.item(), element)
    }

    fn below(&self, schema: Schema, element: String) -> Self {
        let mut elements = self.elements.clone();
        elements.push(element);
        Self { schema, elements }
    }

    /// Returns the parts of a value at this position by their elements; `None` for a value that is owned as a whole.
    fn parts<'a>(&self, value: &'a Value) -> Option<BTreeMap<String, (Position, &'a Value)>> {
        match value {
            Value::Object(object) if !self.schema.is_atomic_object() => {
                let parts = object.iter().filter(|(_, value)| !value.is_null());
                let parts = parts.map(|(name, value)| (format!("f:{name}"), (self.field(name), value)));
                Some(parts.filter(|(_, (position, _))| !schema::is_unowned(&position.elements)).collect())
            }
            Value::Array(items) => match self.schema.list_type() {
                ListType::Atomic => None,
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

/// Returns the fields that an applied configuration names.
pub(crate) fn fields(resource: Resource, config: &Value) -> Fields {
    let mut set = Fields::default();
    list_fields(&Position::top(resource), config, &mut set);
    set
}

fn list_fields(position: &Position, value: &Value, set: &mut Fields) {
    let Some(parts) = position.parts(value) else {
        set.insert(&position.elements);
        return;
    };
    let is_list = value.is_array();
    for (position_below, below) in parts.values() {
        list_fields(position_below, below, set);
        let is_empty = below.as_object().is_some_and(Map::is_empty);
        if is_list || is_empty || position.schema.is_map() {
            set.insert(&position_below.elements);
        }
    }
}

/// Compares an object with its successor.
pub(crate) fn compare(resource: Resource, old: &Value, new: &Value) -> Difference {
    let mut difference = Difference::default();
    compare_at(&Position::top(resource), old, new, &mut difference);
    difference
}

fn compare_at(position: &Position, old: &Value, new: &Value, difference: &mut Difference) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Null, _) => return insert_all(position, new, &mut difference.changed),
        (_, Value::Null) => return insert_all(position, old, &mut difference.removed),
        _ => {}
    }
    let (before, after) = match (position.parts(old), position.parts(new)) {
        (Some(before), Some(after)) => (before, after),
        _ => {
            difference.changed.insert(&position.elements);
            return;
        }
    };
    for (element, (position, old)) in &before {
        match after.get(element) {
            Some((_, new)) => compare_at(position, old, new, difference),
            None => insert_all(position, old, &mut difference.removed),
        }
    }
    for (_, (position, new)) in after.iter().filter(|(element, _)| !before.contains_key(*element)) {
        insert_all(position, new, &mut difference.changed);
    }
}

/// Inserts a value that only one of two objects has, with everything in it.
fn insert_all(position: &Position, value: &Value, set: &mut Fields) {
    if !position.schema.is_always_present() {
        set.insert(&position.elements);
    }
    for (position, below) in position.parts(value).unwrap_or_default().values() {
        insert_all(position, below, set);
    }
}

/// Merges an applied configuration into an object.
pub(crate) fn merge(resource: Resource, live: &mut Value, config: &Value) {
    merge_at(&Position::top(resource), live, config);
}

fn merge_at(position: &Position, live: &mut Value, config: &Value) {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if !position.schema.is_atomic_object() => {
            for (name, value) in config {
                merge_at(&position.field(name), live.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(live), Value::Array(config)) => match position.schema.list_type() {
            ListType::Atomic => live.clone_from(config),
            list => {
                for item in config {
                    let element = schema::element(list, item);
                    match live.iter_mut().find(|other| schema::element(list, other) == element) {
                        Some(other) => merge_at(&position.item(element.unwrap_or_default()), other, item),
                        None => live.push(item.clone()),
                    }
                }
            }
        },
        (live, config) => *live = config.clone(),
    }
}

/// Removes the fields of `last` from an object that are not in `kept`.
pub(crate) fn prune(resource: Resource, object: &mut Value, last: &Fields, kept: &Fields) {
    prune_at(&Position::top(resource), object, last, kept);
}

fn prune_at(position: &Position, value: &mut Value, last: &Fields, kept: &Fields) {
    match value {
        Value::Object(object) if !position.schema.is_atomic_object() => {
            for (element, last) in &last.children {
                let Some(name) = element.strip_prefix("f:") else { continue };
                match kept.children.get(element) {
                    Some(kept) => {
                        if let Some(below) = object.get_mut(name) {
                            prune_at(&position.field(name), below, last, kept);
                        }
                    }
                    // What is always present stays; only what is in it is removed.
                    None if position.field(name).schema.is_always_present() => {
                        if let Some(below) = object.get_mut(name) {
                            prune_at(&position.field(name), below, last, &Fields::default());
                        }
                    }
                    None => drop(object.remove(name)),
                }
            }
        }
        Value::Array(items) => {
            let list = position.schema.list_type();
            items.retain_mut(|item| {
                let Some(element) = schema::element(list, item) else { return true };
                let Some(last) = last.children.get(&element) else { return true };
                let kept = kept.children.get(&element);
                // Managers that own only fields of an item do not keep the item.
                if last.member && kept.is_none_or(|kept| !kept.member) {
                    return false;
                }
                prune_at(&position.item(element), item, last, kept.unwrap_or(&Fields::default()));
                true
            });
        }
        _ => {}
    }
}
