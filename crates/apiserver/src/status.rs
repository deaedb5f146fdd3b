//! Responses to failed requests: `Status` objects, worded as the kube-apiserver words them.

use serde_json::{Value, json};

use super::resource::Resource;
use super::rules::FieldError;
use super::store::Key;

/// A `Status` with `status: Failure`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    /// The value of `Retry-After`, in seconds.
    pub(crate) retry_after: Option<u32>,
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: None, retry_after: None }
    }

    fn about(mut self, resource: Resource, name: Option<&str>) -> Self {
        self.details = Some(details(resource, name));
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    pub(crate) fn forbidden(resource: Resource, name: Option<&str>, message: String) -> Self {
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    pub(crate) fn not_found(resource: Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", resource.qualified())).about(resource, Some(name))
    }

    /// The path names no resource.
    pub(crate) fn no_resource() -> Self {
        let mut failure = Self::new(404, "NotFound", "the server could not find the requested resource".to_owned());
        failure.details = Some(json!({}));
        failure
    }

    /// A kubelet has no such container.
    pub(crate) fn no_container(message: String) -> Self {
        Self::new(404, "NotFound", message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        let mut failure = Self::new(405, "MethodNotAllowed", message);
        failure.details = Some(json!({}));
        failure
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/yaml".to_owned();
        Self::new(406, "NotAcceptable", message)
    }

    pub(crate) fn already_exists(resource: Resource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", resource.qualified()))
            .about(resource, Some(name))
    }

    pub(crate) fn conflict(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(resource, Some(name))
    }

    /// A pod cannot be bound to the node.
    pub(crate) fn binding_conflict(name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods/binding \"{name}\": {why}");
        let mut failure = Self::new(409, "Conflict", message);
        failure.details = Some(json!({ "name": name, "kind": "pods/binding" }));
        failure
    }

    /// The object has another resource version than the request names.
    pub(crate) fn modified(resource: Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// The object has another UID than the write names.
    pub(crate) fn wrong_uid(resource: Resource, key: &Key, wanted: &str, found: &str) -> Self {
        let (namespace, name) = key;
        let slash = if namespace.is_empty() { "" } else { "/" };
        let plural = if resource == Resource::Node { "minions" } else { resource.plural() };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{plural}{slash}{namespace}/{name}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
        );
        Self::conflict(resource, name, &why)
    }

    /// The object does not meet the preconditions of a delete.
    pub(crate) fn precondition(resource: Resource, name: &str, why: std::fmt::Arguments<'_>) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified_kind());
        let mut failure = Self::new(409, "Conflict", message).about(resource, Some(name));
        if let Some(details) = &mut failure.details {
            details["kind"] = resource.kind().into();
        }
        failure
    }

    pub(crate) fn apply_conflict(message: String, causes: &[Value]) -> Self {
        let mut failure = Self::new(409, "Conflict", message);
        failure.details = Some(json!({ "causes": causes }));
        failure
    }

    /// The resource version is older than the event window.
    pub(crate) fn expired(message: String) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn too_large() -> Self {
        Self::new(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728".to_owned())
    }

    pub(crate) fn media_type() -> Self {
        let mut failure = Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type".to_owned());
        failure.details = Some(json!({}));
        failure
    }

    pub(crate) fn invalid(resource: Resource, name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        let text = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut failure =
            Self::new(422, "Invalid", format!("{} \"{name}\" is invalid: {text}", resource.qualified_kind()));
        let causes: Vec<Value> = errors
            .iter()
            .map(|error| json!({ "reason": error.reason, "message": error.message, "field": error.field }))
            .collect();
        let mut details = details(resource, Some(name));
        details["kind"] = resource.kind().into();
        details["causes"] = causes.into();
        failure.details = Some(details);
        failure
    }

    /// Parameters of a list or watch contradict each other.
    pub(crate) fn list_options(field: &str, message: &str) -> Self {
        Self::options("ListOptions", "FieldValueForbidden", field, message)
    }

    /// A required parameter of a patch is missing.
    pub(crate) fn patch_options(field: &str, message: &str) -> Self {
        Self::options("PatchOptions", "FieldValueRequired", field, message)
    }

    /// A parameter of a request is invalid.
    pub(crate) fn options(kind: &str, reason: &str, field: &str, message: &str) -> Self {
        let text = format!("{kind}.meta.k8s.io \"\" is invalid: {field}: {message}");
        let mut failure = Self::new(422, "Invalid", text);
        failure.details = Some(json!({
            "group": "meta.k8s.io",
            "kind": kind,
            "causes": [{ "reason": reason, "message": message, "field": field }],
        }));
        failure
    }

    /// A patch is well-formed but cannot be applied. The kube-apiserver does not report the cause.
    pub(crate) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        let mut failure = Self::new(422, "Invalid", message);
        failure.details = Some(json!({}));
        failure
    }

    pub(crate) fn too_many_requests(seconds: u32) -> Self {
        let mut failure = Self::new(429, "TooManyRequests", "too many requests, please try again later".to_owned());
        failure.details = Some(json!({ "retryAfterSeconds": seconds }));
        failure.retry_after = Some(seconds);
        failure
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let mut failure = Self::new(500, "InternalError", format!("Internal error occurred: {message}"));
        failure.details = Some(json!({ "causes": [{ "message": message.to_string() }] }));
        failure
    }

    /// A failure without a reason, as the kube-apiserver reports some client errors.
    pub(crate) fn internal_plain(message: String) -> Self {
        Self::new(500, "", message)
    }

    pub(crate) fn unavailable() -> Self {
        Self::new(503, "ServiceUnavailable", "the server is currently unable to handle the request".to_owned())
    }

    /// The request names a resource version that does not exist yet.
    pub(crate) fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut failure = Self::new(504, "Timeout", message);
        failure.details = Some(json!({
            "retryAfterSeconds": 1,
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
        }));
        failure.retry_after = Some(1);
        failure
    }

    pub(crate) fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            body["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            body["details"] = details.clone();
        }
        body
    }
}

/// Returns the `Status` of a successful request that returns no object.
pub(crate) fn success(resource: Resource, name: &str, uid: &Value) -> Value {
    let mut details = details(resource, Some(name));
    details["uid"] = uid.clone();
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}

fn details(resource: Resource, name: Option<&str>) -> Value {
    let mut details = json!({ "kind": resource.plural() });
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        details["name"] = name.into();
    }
    if !resource.group().is_empty() {
        details["group"] = resource.group().into();
    }
    details
}
