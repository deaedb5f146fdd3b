//! The paths of resources and their operations.

use serde_json::{Map, Value, json};

use crate::discovery;
use crate::resource::Resource;
use crate::version::Version;

/// A version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    V2,
    V3,
}

/// The parameters of writes: name, type and description.
const WRITE_PARAMETERS: [(&str, &str, &str); 3] = [
    ("dryRun", "string", "When present, nothing is stored. The only value is All."),
    ("fieldManager", "string", "The name of who makes the change."),
    ("fieldValidation", "string", "What happens with unknown and duplicate fields: Ignore, Warn or Strict."),
];
const FORCE: (&str, &str, &str) = ("force", "boolean", "Whether an apply takes fields from other managers.");
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Returns the paths of a version of the API.
pub(super) fn of(version: Version, format: Format) -> Map<String, Value> {
    let mut paths = Map::new();
    let root = format!("/{}", version.path());
    for resource in Resource::of_group(version.group()) {
        let plural = resource.plural();
        let describe = |verb: &'static str| Operation { version, resource, verb, format }.describe();
        let all = format!("{root}/{plural}");
        let base = if resource.namespaced() {
            paths.insert(all, json!({ "get": describe("list") }));
            format!("{root}/namespaces/{{namespace}}/{plural}")
        } else {
            all
        };
        let collection =
            json!({ "get": describe("list"), "post": describe("create"), "delete": describe("deletecollection") });
        let object = json!({
            "get": describe("get"), "put": describe("update"), "patch": describe("patch"), "delete": describe("delete"),
        });
        if resource.has_status() {
            let status = json!({ "get": describe("get"), "put": describe("update"), "patch": describe("patch") });
            paths.insert(format!("{base}/{{name}}/status"), status);
        }
        paths.insert(format!("{base}/{{name}}"), object);
        paths.insert(base, collection);
    }
    paths
}

struct Operation {
    version: Version,
    resource: Resource,
    verb: &'static str,
    format: Format,
}

impl Operation {
    fn describe(&self) -> Value {
        let mut operation = json!({
            "description": format!("{} {}", self.verb, self.resource.plural()),
            "responses": { "200": { "description": "OK" } },
            "x-kubernetes-action": self.verb,
            "x-kubernetes-group-version-kind": discovery::kind_of(self.version, self.resource.kind()),
        });
        if !matches!(self.verb, "create" | "update" | "patch") {
            return operation;
        }
        let mut parameters: Vec<Value> = WRITE_PARAMETERS.iter().map(|known| self.parameter(*known)).collect();
        if self.verb == "patch" {
            parameters.push(self.parameter(FORCE));
        }
        let media_types: &[&str] =
            if self.verb == "patch" { &PATCHES } else { &["application/json", "application/yaml"] };
        match self.format {
            Format::V2 => {
                parameters
                    .push(json!({ "name": "body", "in": "body", "required": true, "schema": { "type": "object" } }));
                operation["consumes"] = json!(media_types);
            }
            Format::V3 => {
                let content =
                    media_types.iter().map(|kind| ((*kind).to_owned(), json!({ "schema": { "type": "object" } })));
                operation["requestBody"] = json!({ "content": content.collect::<Map<_, _>>() });
            }
        }
        operation["parameters"] = parameters.into();
        operation
    }

    fn parameter(&self, (name, kind, description): (&str, &str, &str)) -> Value {
        let mut parameter = json!({ "name": name, "in": "query", "description": description });
        match self.format {
            Format::V2 => parameter["type"] = kind.into(),
            Format::V3 => parameter["schema"] = json!({ "type": kind }),
        }
        parameter
    }
}
