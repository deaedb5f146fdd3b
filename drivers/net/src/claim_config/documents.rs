//! The parameters in documents that users and administrators write: claims, claim templates, device classes, or parameters alone.

use serde_json::Value;

use super::{API_VERSION, ClaimConfig, FieldError, KIND, Layer, Merged};
use crate::DRIVER_NAME;

/// The parameters of a document for this driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// The kind and the name of the document.
    pub subject: String,
    /// The number of parameters for this driver.
    pub parameters: usize,
    /// All that is wrong.
    pub errors: Vec<FieldError>,
}

/// Checks a document. `None`: it is of a kind that has no parameters.
pub fn check_document(document: &Value) -> Option<Checked> {
    let kind = document["kind"].as_str().unwrap_or_default();
    let version = document["apiVersion"].as_str().unwrap_or_default();
    if kind == KIND || version.split('/').next() == Some(DRIVER_NAME) {
        return Some(check_parameters(document));
    }
    let path = match kind {
        "ResourceClaim" => "spec.devices.config",
        "ResourceClaimTemplate" => "spec.spec.devices.config",
        "DeviceClass" => "spec.config",
        _ => return None,
    };
    let name = ["name", "generateName"].into_iter().find_map(|field| document["metadata"][field].as_str());
    let mut checked =
        Checked { subject: format!("{kind} {}", name.unwrap_or_default()).trim_end().to_owned(), ..Checked::default() };
    let pointer = format!("/{}", path.replace('.', "/"));
    match document.pointer(&pointer) {
        None | Some(Value::Null) => {}
        Some(Value::Array(entries)) => check_entries(entries, path, &mut checked),
        Some(_) => checked.errors.push(FieldError { path: path.to_owned(), message: "must be a list".to_owned() }),
    }
    Some(checked)
}

fn check_parameters(document: &Value) -> Checked {
    let mut checked = Checked { subject: format!("{API_VERSION} {KIND}"), parameters: 1, errors: Vec::new() };
    match ClaimConfig::parse(document, "") {
        Ok(config) => checked.errors = config.validate(),
        Err(errors) => checked.errors = errors,
    }
    checked
}

fn check_entries(entries: &[Value], path: &str, checked: &mut Checked) {
    let mut layers: Vec<(Vec<&str>, Layer)> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry["opaque"]["driver"].as_str() != Some(DRIVER_NAME) {
            continue;
        }
        checked.parameters += 1;
        let path = format!("{path}[{index}].opaque.parameters");
        let requests = entry["requests"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match ClaimConfig::parse(&entry["opaque"]["parameters"], &path) {
            Ok(config) => layers.push((requests, Layer { path, config })),
            Err(errors) => checked.errors.extend(errors),
        }
    }
    // An entry may be completed by others of the same request, so each request is checked with all of its entries. What is
    // wrong in an entry for several requests is one error.
    let mut requests: Vec<Option<&str>> =
        layers.iter().flat_map(|(requests, _)| requests.iter().copied().map(Some)).collect();
    if layers.iter().any(|(requests, _)| requests.is_empty()) {
        requests.push(None);
    }
    requests.sort_unstable();
    requests.dedup();
    let mut found = Vec::new();
    for request in requests {
        let mut merged = Merged::default();
        let applies = |named: &[&str]| named.is_empty() || request.is_some_and(|request| is_for(named, request));
        layers.iter().filter(|(named, _)| applies(named)).for_each(|(_, layer)| merged.add(layer.clone()));
        found.extend(merged.validate());
    }
    for error in found {
        if !checked.errors.contains(&error) {
            checked.errors.push(error);
        }
    }
}

/// Returns whether an entry for these requests applies to a request: by its name, or by that of the request that it is a
/// subrequest of.
fn is_for(named: &[&str], request: &str) -> bool {
    let base = request.split('/').next().unwrap_or_default();
    named.iter().any(|name| *name == request || *name == base)
}
