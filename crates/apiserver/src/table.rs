//! Tables: what `kubectl get` prints. The server decides on columns and cells, the client only aligns them.
//!
//! Columns, their order and the words in them are those of Kubernetes 1.37.

mod age;
mod columns;
mod pod;
#[cfg(test)]
mod tests;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::resource::Resource;
use columns::Column;

/// How much of an object its row contains besides the cells (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    None,
    /// Its metadata, which is the default.
    Metadata,
    /// All of it.
    Object,
}

/// A table to show objects in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) resource: Resource,
    /// The `apiVersion` of the table.
    pub(crate) api_version: &'static str,
    pub(crate) include: Include,
}

impl Table {
    /// Shows objects in the form in which they are stored. `whole` returns the object for a row that includes all of it.
    pub(crate) fn show<'a>(
        &self,
        metadata: &Value,
        headers: bool,
        objects: impl IntoIterator<Item = &'a Value>,
        whole: impl Fn(&Value) -> Value,
    ) -> Value {
        let columns = columns::of(self.resource);
        let now = Timestamp::now();
        let rows: Vec<Value> = objects.into_iter().map(|object| self.row(columns, object, now, &whole)).collect();
        let definitions: Vec<Value> = columns.iter().filter(|_| headers).map(Column::definition).collect();
        json!({
            "kind": "Table",
            "apiVersion": self.api_version,
            "metadata": list_metadata(metadata),
            "columnDefinitions": definitions,
            "rows": rows,
        })
    }

    fn row(&self, columns: &[Column], object: &Value, now: Timestamp, whole: impl Fn(&Value) -> Value) -> Value {
        let cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object, now)).collect();
        let mut row = json!({ "cells": cells });
        if let Some(reason) = completed(self.resource, object) {
            let message =
                format!("The pod {}.", if reason == "Failed" { "failed" } else { "has completed successfully" });
            row["conditions"] =
                json!([{ "type": "Completed", "status": "True", "reason": reason, "message": message }]);
        }
        row["object"] = match self.include {
            Include::None => Value::Null,
            Include::Metadata => metadata_only(self.api_version, object),
            Include::Object => whole(object),
        };
        row
    }
}

/// Returns the metadata of an object as an object of its own.
pub(crate) fn metadata_only(api_version: &str, object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": object["metadata"] })
}

/// Returns the metadata of a table: that of a list, or the resource version of an object.
fn list_metadata(metadata: &Value) -> Value {
    let fields = ["resourceVersion", "continue", "remainingItemCount"];
    fields
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), metadata.get(field)?.clone())))
        .collect::<Map<_, _>>()
        .into()
}

/// Returns the phase of a pod that has ended.
fn completed(resource: Resource, object: &Value) -> Option<&str> {
    let phase = object["status"]["phase"].as_str()?;
    (resource == Resource::Pod && matches!(phase, "Succeeded" | "Failed")).then_some(phase)
}
