//! The entries of `metadata.managedFields`.

use serde_json::{Value, json};

use super::set::Fields;
use super::tree;
use crate::call::{Call, Subresource};
use crate::prepare;

/// What one manager owns by one kind of write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) manager: String,
    pub(crate) apply: bool,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    pub(crate) time: String,
    pub(crate) fields: Fields,
}

impl Entry {
    /// An entry of the client of this call, with nothing in it.
    pub(crate) fn of(call: &Call, apply: bool) -> Self {
        Self {
            manager: call.manager().to_owned(),
            apply,
            api_version: call.target.version.api_version().to_owned(),
            subresource: call.target.subresource.map_or("", Subresource::name).to_owned(),
            time: prepare::now(),
            fields: Fields::default(),
        }
    }

    pub(crate) fn is_same_manager(&self, other: &Self) -> bool {
        (&self.manager, self.apply, &self.api_version, &self.subresource)
            == (&other.manager, other.apply, &other.api_version, &other.subresource)
    }

    /// The manager in the words of conflict messages.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if !self.apply {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

pub(crate) fn parse(object: &Value) -> Vec<Entry> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            Entry {
                manager: text("manager"),
                apply: entry["operation"] == "Apply",
                api_version: text("apiVersion"),
                subresource: text("subresource"),
                time: text("time"),
                fields: Fields::parse(&entry["fieldsV1"]),
            }
        })
        .collect()
}

/// The entries as they are in an object: appliers first, then by time and name.
pub(crate) fn encode(mut entries: Vec<Entry>) -> Value {
    entries.retain(|entry| !entry.fields.is_empty());
    let order = |entry: &Entry| (!entry.apply, entry.time.clone(), entry.manager.clone(), entry.subresource.clone());
    entries.sort_by_cached_key(order);
    let encode = |entry: Entry| {
        let mut value = json!({
            "manager": entry.manager,
            "operation": if entry.apply { "Apply" } else { "Update" },
            "apiVersion": entry.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": entry.fields.to_value(),
        });
        if !entry.subresource.is_empty() {
            value["subresource"] = entry.subresource.into();
        }
        value
    };
    entries.into_iter().map(encode).collect::<Vec<Value>>().into()
}

/// Notes in `new` that the client of this call owns what it changed.
pub(crate) fn record_update(call: &Call, old: Option<&Value>, new: &mut Value) {
    let nothing = json!({});
    let mut difference = tree::compare(call.resource(), old.unwrap_or(&nothing), new);
    // What a path does not reach is nobody's by it; but for what a server sets itself, it is not changed either.
    if call.resource().has_status() && call.target.subresource.is_none() {
        difference.changed.children.remove("f:status");
    }
    if difference.changed.is_empty() && difference.removed.is_empty() {
        return;
    }
    let mut me = Entry::of(call, false);
    let mut entries = parse(new);
    let mut before = None;
    entries.retain_mut(|entry| {
        if entry.is_same_manager(&me) {
            before = Some(entry.clone());
            return false;
        }
        entry.fields = entry.fields.difference(&difference.changed).difference(&difference.removed);
        true
    });
    if let Some(before) = before {
        me.fields = before.fields.difference(&difference.removed);
        me.fields.union(&difference.changed);
        if me.fields == before.fields {
            me.time = before.time;
        }
    } else {
        me.fields = difference.changed;
    }
    entries.push(me);
    new["metadata"]["managedFields"] = encode(entries);
}
