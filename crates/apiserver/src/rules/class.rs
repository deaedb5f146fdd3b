//! Validation of device classes.

use serde_json::Value;

use super::claim::{configuration, selectors};
use super::field::{Errors, Path};
use super::names;
use super::value::{get, list, optional_text};

/// The maximum number of configurations of a class.
const MAX_CONFIGURATIONS: usize = 32;

pub(super) fn validate(class: &Value, errors: &mut Errors) {
    let path = Path::root("spec");
    let spec = get(class, "spec").unwrap_or(&Value::Null);
    selectors(spec, &path, errors);
    let configurations = list(spec, "config");
    let at_config = path.child("config");
    if !errors.too_many(&at_config, configurations.len(), MAX_CONFIGURATIONS) {
        for (index, config) in configurations.iter().enumerate() {
            configuration(config, &at_config.index(index), errors);
        }
    }
    if let Some(name) = optional_text(spec, "extendedResourceName") {
        extended_resource(name, &path.child("extendedResourceName"), errors);
    }
}

fn extended_resource(name: &str, path: &Path, errors: &mut Errors) {
    if !name.contains('/') {
        errors.invalid(path, name, "a name must be a domain-prefixed path, such as 'example.com/my-prop'");
    } else if name.contains("kubernetes.io/") {
        errors.invalid(path, name, "must not have \"kubernetes.io/\" domain");
    }
    if name.starts_with("requests.") {
        errors.invalid(path, name, "must not have \"requests.\" prefix");
    }
    // The name must be valid in a resource quota too.
    errors.invalid_each(path, name, names::label_key(&format!("requests.{name}")));
}
