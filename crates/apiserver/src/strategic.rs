//! Strategic merge patch: a merge patch that merges some lists item by item, by a key.

use drakkar_client::schema::{ListType, OBJECT_META};
use serde_json::{Map, Value};

use super::resource::Resource;
use super::rules;
use super::status::Failure;

const DIRECTIVE: &str = "$patch";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";
const RETAIN: &str = "$retainKeys";

/// The merge strategy of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// The list is replaced as a whole.
    Replace,
    /// Values are added.
    Set,
    /// Items with the same value of this field are merged.
    Keyed(&'static str),
}

/// Returns the merge strategy of the list at a path.
pub(crate) fn strategy(resource: Resource, path: &str) -> Strategy {
    let field = match (rules::type_of(resource), path.strip_prefix("metadata.")) {
        (Some(of), _) => of.at(path),
        (None, Some(path)) => OBJECT_META.at(path),
        (None, None) => return core_strategy(resource, path),
    };
    match field.filter(|field| field.patch_merge).map(|field| field.list_type) {
        Some(ListType::Set) => Strategy::Set,
        Some(ListType::Map([key, ..])) => Strategy::Keyed(key),
        _ => Strategy::Replace,
    }
}

/// Returns the merge strategy of a list of the core group. The name of the field decides: no two resources here disagree on one.
fn core_strategy(resource: Resource, path: &str) -> Strategy {
    let core = matches!(resource, Resource::Pod | Resource::Node | Resource::Namespace | Resource::Service);
    let field = path.rsplit('.').next().unwrap_or_default();
    match field {
        "conditions" | "addresses" if core => Strategy::Keyed("type"),
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "resourceClaimStatuses"
        | "schedulingGates"
            if core =>
        {
            Strategy::Keyed("name")
        }
        "volumeMounts" if core => Strategy::Keyed("mountPath"),
        "volumeDevices" if core => Strategy::Keyed("devicePath"),
        "ports" if resource == Resource::Service => Strategy::Keyed("port"),
        "ports" if core => Strategy::Keyed("containerPort"),
        "podIPs" | "hostIPs" | "hostAliases" if core => Strategy::Keyed("ip"),
        "taints" if resource == Resource::Node => Strategy::Keyed("key"),
        "topologySpreadConstraints" if core => Strategy::Keyed("topologyKey"),
        "podCIDRs" if core => Strategy::Set,
        _ => Strategy::Replace,
    }
}

pub(crate) fn merge(resource: Resource, object: &mut Value, patch: &Value) -> Result<(), Failure> {
    if !patch.is_object() {
        return Err(Failure::bad_request("a strategic merge patch must be a JSON object"));
    }
    merge_at(resource, "", object, patch)
}

fn merge_at(resource: Resource, path: &str, target: &mut Value, patch: &Value) -> Result<(), Failure> {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return Ok(());
    };
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            *target = patch.iter().filter(|(name, _)| *name != DIRECTIVE).map(owned).collect::<Map<_, _>>().into();
            return Ok(());
        }
        Some("delete") => {
            *target = Map::new().into();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(Failure::bad_request(format!("unknown patch directive {other:?} at {path:?}"))),
    }
    if !target.is_object() {
        *target = Map::new().into();
    }
    let Value::Object(fields) = target else { return Ok(()) };
    if let Some(Value::Array(kept)) = patch.get(RETAIN) {
        fields.retain(|name, _| kept.iter().any(|keep| keep == name));
    }
    for (name, value) in patch {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if name == DIRECTIVE || name == RETAIN || name.starts_with(ORDER) {
            // The order of items is ignored: nothing in this server depends on it.
        } else if let Some(list) = name.strip_prefix(DELETE_FROM) {
            if let (Some(Value::Array(items)), Value::Array(deleted)) = (fields.get_mut(list), value) {
                items.retain(|item| !deleted.contains(item));
            }
        } else if value.is_null() {
            fields.remove(name);
        } else {
            let target = fields.entry(name.clone()).or_insert(Value::Null);
            match value {
                Value::Array(items) => merge_list(resource, &below, target, items)?,
                value => merge_at(resource, &below, target, value)?,
            }
        }
    }
    Ok(())
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn merge_list(resource: Resource, path: &str, target: &mut Value, patch: &[Value]) -> Result<(), Failure> {
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Value::Array(items) = target else { return Ok(()) };
    match strategy(resource, path) {
        Strategy::Replace => *items = patch.to_vec(),
        Strategy::Set => {
            for value in patch {
                if !items.contains(value) {
                    items.push(value.clone());
                }
            }
        }
        Strategy::Keyed(key) => {
            if patch.iter().any(|item| item[DIRECTIVE] == "replace") {
                items.clear();
            }
            for item in patch.iter().filter(|item| item[DIRECTIVE] != "replace") {
                let id = item.get(key).ok_or_else(|| {
                    Failure::bad_request(format!("map: {item} does not contain declared merge key: {key}"))
                })?;
                if item[DIRECTIVE] == "delete" {
                    items.retain(|other| other[key] != *id);
                    continue;
                }
                match items.iter_mut().find(|other| other[key] == *id) {
                    Some(other) => merge_at(resource, path, other, item)?,
                    None => {
                        let mut new = Value::Null;
                        merge_at(resource, path, &mut new, item)?;
                        items.push(new);
                    }
                }
            }
        }
    }
    Ok(())
}
