//! The entries of `metadata.managedFields`.

use serde_json::{Value, json};

use super::set::Fields;
use super::tree;
use crate::call::{Call, Subresource};
use crate::prepare;

/// The fields that one manager owns by one kind of write.
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
    /// Creates an entry of the client of this call, without fields.
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

    /// Returns whether both entries are of the same manager and the same kind of write.
    pub(crate) fn is_same_manager(&self, other: &Self) -> bool {
        (&self.manager, self.apply, &self.api_version, &self.subresource)
            == (&other.manager, other.apply, &other.api_version, &other.subresource)
    }

    /// Describes the manager as conflict messages do.
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

/// Reads the entries of an object.
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

/// Encodes entries as `managedFields`: applies before updates, then by time and name. Entries without fields are dropped.
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

/// Records in `new` that the client of this call owns the fields that it changed.
pub(crate) fn record_update(call: &Call, old: Option<&Value>, new: &mut Value) {
    let empty = json!({});
    let mut difference = tree::compare(call.resource(), old.unwrap_or(&empty), new);
    // A client cannot change the status here; what changed of it the server set itself.
    if call.resource().has_status() && call.target.subresource.is_none() {
        difference.changed.children.remove("f:status");
    }
    if difference.changed.is_empty() && difference.removed.is_empty() {
        return;
    }
    let mut own = Entry::of(call, false);
    let mut entries = parse(new);
    let mut before = None;
    entries.retain_mut(|entry| {
        if entry.is_same_manager(&own) {
            before = Some(entry.clone());
            return false;
        }
        entry.fields = entry.fields.difference(&difference.changed).difference(&difference.removed);
        true
    });
    if let Some(before) = before {
        own.fields = before.fields.difference(&difference.removed);
        own.fields.union(&difference.changed);
        if own.fields == before.fields {
            own.time = before.time;
        }
    } else {
        own.fields = difference.changed;
    }
    entries.push(own);
    new["metadata"]["managedFields"] = encode(entries);
}
