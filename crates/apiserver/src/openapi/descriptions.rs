//! Descriptions of types and fields, and which fields are required: what Kubernetes' own documents say, which `k8s-openapi` has.

use k8s_openapi::schemars::SchemaGenerator;
use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::kinds::{self, Kind};
use crate::resource::Resource;
use crate::version::Version;

/// Adds descriptions to the types of these versions.
pub(super) fn add(definitions: &mut Map<String, Value>, versions: &[Version]) {
    let mut described = Describe(SchemaSettings::draft07().into_generator());
    for version in versions {
        for resource in Resource::of_group(version.group()) {
            kinds::visit(*version, resource, &mut described);
        }
    }
    for (name, mut from) in described.0.take_definitions(false) {
        let Some(definition) = definitions.get_mut(&name) else { continue };
        for key in ["description", "required"] {
            copy(&mut from, definition, key);
        }
        let properties = definition.get_mut("properties").and_then(Value::as_object_mut);
        for (field, property) in properties.into_iter().flatten() {
            copy(&mut from["properties"][field], property, "description");
        }
    }
}

/// Copies a value of an object, if it has one.
fn copy(from: &mut Value, to: &mut Value, key: &str) {
    if let Some(value) = from.get_mut(key) {
        to[key] = value.take();
    }
}

/// Adds the types that it visits.
struct Describe(SchemaGenerator);

impl kinds::Visitor for Describe {
    fn visit<T: Kind>(&mut self) {
        self.0.subschema_for::<T>();
    }
}
