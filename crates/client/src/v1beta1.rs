//! Conversion between v1beta1 and v1 of `resource.k8s.io`, as JSON.
//!
//! In v1beta1 the content of a request is beside its name, in v1 under `exactly`. The content of a device is under `basic` in
//! v1beta1, and beside its name in v1. Nothing else differs.

use serde_json::{Map, Value};

/// Converts an object of v1beta1 to the form of v1.
///
/// `kind` is the object's kind; other kinds than claims, claim templates and slices stay as they are. `apiVersion` is not
/// changed.
///
/// ```
/// # use drakkar_client::to_v1;
/// # use serde_json::json;
/// let mut claim = json!({"spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpus"}]}}});
/// to_v1("ResourceClaim", &mut claim);
/// assert_eq!(claim["spec"]["devices"]["requests"][0], json!({"name": "gpu", "exactly": {"deviceClassName": "gpus"}}));
/// ```
pub fn to_v1(kind: &str, object: &mut Value) {
    match kind {
        "ResourceClaim" => objects_at(object, CLAIM_REQUESTS).for_each(nest_request),
        "ResourceClaimTemplate" => objects_at(object, TEMPLATE_REQUESTS).for_each(nest_request),
        "ResourceSlice" => objects_at(object, SLICE_DEVICES).for_each(|device| flatten(device, "basic")),
        _ => {}
    }
}

/// Converts an object of v1 to the form of v1beta1; the reverse of [`to_v1`].
pub fn from_v1(kind: &str, object: &mut Value) {
    match kind {
        "ResourceClaim" => objects_at(object, CLAIM_REQUESTS).for_each(|request| flatten(request, "exactly")),
        "ResourceClaimTemplate" => {
            objects_at(object, TEMPLATE_REQUESTS).for_each(|request| flatten(request, "exactly"));
        }
        "ResourceSlice" => objects_at(object, SLICE_DEVICES).for_each(|device| nest(device, "basic")),
        _ => {}
    }
}

const CLAIM_REQUESTS: &str = "/spec/devices/requests";
const TEMPLATE_REQUESTS: &str = "/spec/spec/devices/requests";
const SLICE_DEVICES: &str = "/spec/devices";

fn objects_at<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    object.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Nests the content of a request. One with alternatives has the same form in both versions.
fn nest_request(request: &mut Map<String, Value>) {
    if !request.contains_key("firstAvailable") {
        nest(request, "exactly");
    }
}

/// Moves all fields but the name into an object of their own.
fn nest(fields: &mut Map<String, Value>, into: &str) {
    let name = fields.remove_entry("name");
    let nested = std::mem::take(fields);
    fields.extend(name);
    fields.insert(into.to_owned(), Value::Object(nested));
}

/// Moves the fields of a nested object one level up.
fn flatten(fields: &mut Map<String, Value>, from: &str) {
    if let Some(Value::Object(nested)) = fields.remove(from) {
        fields.extend(nested);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_claims_and_templates_are_nested_and_flattened() {
        let alternatives = json!({"name": "any", "firstAvailable": [{"name": "small", "deviceClassName": "gpus"}]});
        let old = json!([{"name": "gpu", "deviceClassName": "gpus", "count": 2, "adminAccess": true}, alternatives]);
        let new = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpus", "count": 2, "adminAccess": true}}, alternatives]);
        let claim = |requests: &Value| json!({"spec": {"devices": {"requests": requests}}});
        let template = |requests: &Value| json!({"spec": claim(requests)});
        for (kind, old, new) in
            [("ResourceClaim", claim(&old), claim(&new)), ("ResourceClaimTemplate", template(&old), template(&new))]
        {
            let mut object = old.clone();
            to_v1(kind, &mut object);
            assert_eq!(object, new, "{kind}");
            from_v1(kind, &mut object);
            assert_eq!(object, old, "{kind}");
        }
    }

    #[test]
    fn devices_of_slices_are_flattened_and_nested() {
        let old =
            json!({"spec": {"devices": [{"name": "gpu-0", "basic": {"capacity": {"memory": {"value": "1Gi"}}}}]}});
        let new = json!({"spec": {"devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "1Gi"}}}]}});
        let mut object = old.clone();
        to_v1("ResourceSlice", &mut object);
        assert_eq!(object, new);
        from_v1("ResourceSlice", &mut object);
        assert_eq!(object, old);
    }

    #[test]
    fn objects_without_these_lists_stay_as_they_are() {
        for mut object in [json!(null), json!({"spec": {"devices": 7}}), json!({"spec": {"devices": [null, 1]}})] {
            let before = object.clone();
            to_v1("ResourceSlice", &mut object);
            from_v1("DeviceClass", &mut object);
            assert_eq!(object, before);
        }
    }
}
