//! The types of objects.

use std::collections::BTreeSet;

use drakkar_client::schema::ListType;
use serde_json::{Map, Value, json};

use super::kinds::{self, Kind};
use super::trace::{self, Shape, Types};
use crate::discovery;
use crate::ownership::Schema;
use crate::resource::Resource;
use crate::strategic::{self, Strategy};
use crate::version::Version;

/// The prefix of references to types.
pub(super) const PREFIX: &str = "#/components/schemas/";

/// The packages of types that are not of the group of their object.
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const CORE: &str = "io.k8s.api.core.v1";

/// Returns the types of the objects of these versions by their names, with the types of all that is in them.
pub(super) fn of(versions: &[Version]) -> Map<String, Value> {
    let mut definitions = Map::new();
    for version in versions {
        let mut types = Types::new();
        let resources: Vec<Resource> = Resource::of_group(version.group()).collect();
        for resource in &resources {
            kinds::visit(*version, *resource, &mut Trace(&mut types));
        }
        for (name, fields) in &types {
            definitions.insert(full_name(*version, name), describe(*version, fields));
        }
        for resource in resources {
            let name = full_name(*version, resource.kind());
            if let Some(definition) = definitions.get_mut(&name) {
                definition["description"] = resource.description().into();
                definition["x-kubernetes-group-version-kind"] = json!([discovery::kind_of(*version, resource.kind())]);
            }
            let walk = Walk { resource, definitions: &mut definitions, seen: BTreeSet::new() };
            walk.start(&name);
        }
    }
    #[cfg(feature = "descriptions")]
    super::descriptions::add(&mut definitions, versions);
    definitions
}

/// Adds the types that it visits.
struct Trace<'a>(&'a mut Types);

impl kinds::Visitor for Trace<'_> {
    fn visit<T: Kind>(&mut self) {
        if let Err(error) = trace::add::<T>(self.0) {
            tracing::error!(kind = T::KIND, %error, "describing a type failed");
        }
    }
}

/// Returns the name of a type with its package.
fn full_name(version: Version, name: &str) -> String {
    let package = match (name, version) {
        (
            "Condition"
            | "LabelSelector"
            | "LabelSelectorRequirement"
            | "ManagedFieldsEntry"
            | "ObjectMeta"
            | "OwnerReference",
            _,
        ) => META,
        ("NodeSelector" | "NodeSelectorRequirement" | "NodeSelectorTerm" | "ObjectReference" | "EventSource", _)
        | (_, Version::Core) => CORE,
        (_, version) => {
            let group = version.group().split('.').next().unwrap_or_default();
            return format!("io.k8s.api.{group}.{}.{name}", version.name());
        }
    };
    format!("{package}.{name}")
}

/// Describes a type by its fields.
fn describe(version: Version, fields: &[(&'static str, Shape)]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|(name, shape)| ((*name).to_owned(), schema(version, shape))).collect();
    json!({ "type": "object", "properties": properties })
}

/// Describes a value.
fn schema(version: Version, shape: &Shape) -> Value {
    match shape {
        Shape::Text(None) => json!({ "type": "string" }),
        Shape::Text(Some(format)) => json!({ "type": "string", "format": format }),
        Shape::Int(format) => json!({ "type": "integer", "format": format }),
        Shape::Number => json!({ "type": "number" }),
        Shape::Bool => json!({ "type": "boolean" }),
        Shape::IntOrText => json!({ "type": "string", "format": "int-or-string" }),
        Shape::Quantity => json!({ "type": "string", "format": "quantity" }),
        Shape::Any => json!({ "type": "object" }),
        Shape::List(item) => json!({ "type": "array", "items": schema(version, item) }),
        Shape::Map(item) => json!({ "type": "object", "additionalProperties": schema(version, item) }),
        Shape::Object(name) => json!({ "$ref": format!("{PREFIX}{}", full_name(version, name)) }),
    }
}

/// Adds to the types of a resource how their lists and maps are merged.
struct Walk<'a> {
    resource: Resource,
    definitions: &'a mut Map<String, Value>,
    seen: BTreeSet<String>,
}

impl Walk<'_> {
    fn start(mut self, name: &str) {
        self.definition(name, &Schema::object(self.resource), "");
    }

    fn definition(&mut self, name: &str, schema: &Schema, path: &str) {
        if !self.seen.insert(name.to_owned()) {
            return;
        }
        let Some(mut definition) = self.definitions.get_mut(name).map(Value::take) else { return };
        if schema.is_atomic_object() {
            definition["x-kubernetes-map-type"] = "atomic".into();
        }
        let properties = definition.get_mut("properties").and_then(Value::as_object_mut);
        for (field, property) in properties.into_iter().flatten() {
            let schema = schema.field(field);
            let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
            if property["type"] == "array" {
                self.list(property, &schema, &path);
                self.reference(&property["items"], &schema.item(), &path);
            } else {
                self.reference(property, &schema, &path);
                self.reference(&property["additionalProperties"], &schema.field(""), &path);
            }
        }
        self.definitions.insert(name.to_owned(), definition);
    }

    /// Goes on with the type that a property refers to.
    fn reference(&mut self, property: &Value, schema: &Schema, path: &str) {
        if let Some(name) = property.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(PREFIX)) {
            self.definition(name, schema, path);
        }
    }

    fn list(&self, property: &mut Value, schema: &Schema, path: &str) {
        match schema.list_type() {
            ListType::Atomic => property["x-kubernetes-list-type"] = "atomic".into(),
            ListType::Set => property["x-kubernetes-list-type"] = "set".into(),
            ListType::Map(keys) => {
                property["x-kubernetes-list-type"] = "map".into();
                property["x-kubernetes-list-map-keys"] = json!(keys);
            }
        }
        match strategic::strategy(self.resource, path) {
            Strategy::Replace => {}
            Strategy::Set => property["x-kubernetes-patch-strategy"] = "merge".into(),
            Strategy::Keyed(key) => {
                property["x-kubernetes-patch-strategy"] = "merge".into();
                property["x-kubernetes-patch-merge-key"] = key.into();
            }
        }
    }
}
