//! The answer to an `AdmissionReview` of a launcher pod: [`mutate_launcher_pod`] as a mutating webhook.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::launcher_pod::mutate_launcher_pod;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Answers the review of a pod: its changes as a JSON patch, or a refusal that says what is wrong with its annotations.
/// Anything but the creation of a pod is allowed as it is.
///
/// # Errors
///
/// The body is not an `AdmissionReview` of `admission.k8s.io/v1` with a request that has a uid.
pub fn review_launcher_pod(body: &[u8]) -> Result<Vec<u8>, BadPodReview> {
    let review: Review = serde_json::from_slice(body).map_err(BadPodReview::Malformed)?;
    if review.kind != KIND || review.api_version != API_VERSION {
        return Err(BadPodReview::Kind { kind: review.kind, api_version: review.api_version });
    }
    let request = review.request.filter(|request| !request.uid.is_empty()).ok_or(BadPodReview::NoRequest)?;
    let is_creation = request.kind.kind == "Pod" && request.operation == "CREATE" && request.sub_resource.is_empty();
    let response = Response { uid: request.uid, allowed: true, status: None, patch_type: None, patch: None };
    let response = match request.object.filter(|_| is_creation).map(|pod| mutate_launcher_pod(&pod)) {
        None => response,
        Some(Ok(operations)) if operations.is_empty() => response,
        Some(Ok(operations)) => {
            let patch = serde_json::to_vec(&operations).map_err(BadPodReview::Malformed)?;
            Response { patch_type: Some("JSONPatch"), patch: Some(STANDARD.encode(patch)), ..response }
        }
        Some(Err(error)) => {
            let status = Status { message: error.to_string(), reason: "Invalid", code: 422 };
            Response { allowed: false, status: Some(status), ..response }
        }
    };
    let answer = ReviewResponse { api_version: API_VERSION, kind: KIND, response };
    serde_json::to_vec(&answer).map_err(BadPodReview::Malformed)
}

/// Why a request is no review of a pod that can be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadPodReview {
    /// The body is not JSON, or a field of the review has the wrong type.
    #[error("the request is not an AdmissionReview: {0}")]
    Malformed(#[source] serde_json::Error),
    /// The body is another object, or of another version.
    #[error("expected an {KIND} of {API_VERSION}, found kind {kind:?} of apiVersion {api_version:?}")]
    Kind {
        /// The kind found.
        kind: String,
        /// The version found.
        api_version: String,
    },
    /// The review has no request with a uid, which the answer must repeat.
    #[error("the AdmissionReview has no request with a uid")]
    NoRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    kind: ObjectKind,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    sub_resource: String,
    object: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectKind {
    kind: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
}

#[derive(Serialize)]
struct Status {
    message: String,
    reason: &'static str,
    code: u16,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(annotation: &str) -> Value {
        json!({
            "metadata": {"labels": {"kubevirt.io": "virt-launcher"}, "annotations": {"drakkar.dev/gpus": annotation}},
            "spec": {
                "resourceClaims": [{"name": "train", "resourceClaimName": "t"}],
                "containers": [
                    {"name": "compute", "resources": {}},
                    {"name": "hook-sidecar-0", "args": ["kubevirt", "hook"], "resources": {}},
                ],
            },
        })
    }

    fn review(operation: &str, object: &Value) -> Value {
        let review = json!({"apiVersion": API_VERSION, "kind": KIND, "request": {
            "uid": "u1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": operation,
            "object": object,
        }});
        serde_json::from_slice(&review_launcher_pod(review.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn the_changes_of_a_launcher_pod_are_answered_as_a_patch() {
        let answer = review("CREATE", &pod("g=train/gpus"));
        let response = &answer["response"];
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u1"), &json!(true)));
        assert_eq!(response["patchType"], "JSONPatch");
        let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        let operations: Value = serde_json::from_slice(&patch).unwrap();
        let expected = serde_json::to_value(mutate_launcher_pod(&pod("g=train/gpus")).unwrap()).unwrap();
        assert_eq!(operations, expected);
    }

    #[test]
    fn what_is_not_to_be_changed_is_allowed_without_a_patch() {
        for answer in [review("UPDATE", &pod("g=train/gpus")), review("CREATE", &json!({"spec": {}}))] {
            assert_eq!(answer["response"], json!({"uid": "u1", "allowed": true}));
        }
    }

    #[test]
    fn a_wrong_annotation_is_refused_with_its_reason() {
        let answer = review("CREATE", &pod("g"));
        assert_eq!(answer["response"]["allowed"], false);
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("must be NAME=CLAIM/REQUEST"), "{message}");
    }

    #[test]
    fn a_request_that_is_no_review_is_an_error() {
        assert!(matches!(review_launcher_pod(b"["), Err(BadPodReview::Malformed(_))));
        assert!(matches!(review_launcher_pod(b"{}"), Err(BadPodReview::Kind { .. })));
        let empty = json!({"apiVersion": API_VERSION, "kind": KIND}).to_string();
        assert!(matches!(review_launcher_pod(empty.as_bytes()), Err(BadPodReview::NoRequest)));
    }
}
