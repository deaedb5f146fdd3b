//! POST of a `Binding`, with which the scheduler binds a pod to a node.

use serde_json::{Value, json};

use super::call::Call;
use super::codec;
use super::prepare;
use super::resource::Resource;
use super::status::Failure;

pub(crate) fn bind(call: &Call, body: &[u8]) -> Result<Value, Failure> {
    let binding = codec::parse(body, call.content_type.contains("yaml"), "Binding")?;
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Err(Failure::internal_plain("target.name: Required value".to_owned()));
    }
    let key = call.key();
    loop {
        let old =
            call.core.store.get(Resource::Pod, &key).ok_or_else(|| Failure::not_found(Resource::Pod, call.name()))?;
        let refuse = |cause: &str| Err(Failure::binding_conflict(call.name(), cause));
        let metadata = &old.value["metadata"];
        if let Some(uid) = binding["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty() && metadata["uid"] != **uid)
        {
            let found = metadata["uid"].as_str().unwrap_or_default();
            return Err(Failure::wrong_uid(Resource::Pod, &key, uid, found));
        }
        if metadata["deletionTimestamp"].is_string() {
            return refuse(&format!("pod {} is being deleted, cannot be assigned to a host", call.name()));
        }
        if let Some(bound) = old.value["spec"]["nodeName"].as_str().filter(|bound| !bound.is_empty()) {
            return refuse(&format!("pod {} is already assigned to node \"{bound}\"", call.name()));
        }
        let mut new = old.value.clone();
        new["spec"]["nodeName"] = node.into();
        for field in ["annotations", "labels"] {
            for (name, value) in binding["metadata"][field].as_object().into_iter().flatten() {
                new["metadata"][field][name] = value.clone();
            }
        }
        mark_scheduled(&mut new);
        // Retry if the pod has changed.
        if call.core.store.replace(Resource::Pod, &key, old.version, new).is_ok() {
            return Ok(
                json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }),
            );
        }
    }
}

fn mark_scheduled(pod: &mut Value) {
    let scheduled = json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": prepare::now() });
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    if let Some(conditions) = pod["status"]["conditions"].as_array_mut() {
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(scheduled);
    }
}
