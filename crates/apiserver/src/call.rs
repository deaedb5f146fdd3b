//! A request to a resource: the target in its URL, its user and its parameters.

use std::sync::Arc;

use drakkar_client::DraVersion;

use super::core::Core;
use super::query::{Query, decode};
use super::resource::Resource;
use super::rules::{self, AccessRequest, User};
use super::selector::Selector;
use super::status::Failure;
use super::store::Key;
use super::version::Version;

/// The resource, and the object if any, that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    pub(crate) version: Version,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<Subresource>,
}

/// A subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    Status,
    Binding,
    Log,
    Exec,
}

impl Subresource {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Binding => "binding",
            Self::Log => "log",
            Self::Exec => "exec",
        }
    }
}

impl Target {
    /// Parses a path of the form `/api/v1/…` or `/apis/GROUP/VERSION/…`.
    pub(crate) fn parse(segments: &[&str], served: &[DraVersion]) -> Option<Self> {
        let (group, version, rest) = match segments {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let version = Version::parse(group, version, served)?;
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if rest.first().is_some_and(|plural| *plural != "status") => {
                (Some(*namespace), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return None,
        };
        let resource = Resource::from_plural(group, plural)?;
        let subresource = match subresource {
            None => None,
            Some("status") if resource.has_status() => Some(Subresource::Status),
            Some("binding") if resource == Resource::Pod => Some(Subresource::Binding),
            Some("log") if resource == Resource::Pod => Some(Subresource::Log),
            Some("exec") if resource == Resource::Pod => Some(Subresource::Exec),
            Some(_) => return None,
        };
        let is_complete =
            if resource.namespaced() { namespace.is_some() || name.is_none() } else { namespace.is_none() };
        is_complete.then(|| Self {
            resource,
            version,
            namespace: namespace.map(|text| decode(text, false)),
            name: name.map(|text| decode(text, false)),
            subresource,
        })
    }

    /// Returns the RBAC verb of a method, or `None` if the method is not allowed.
    pub(crate) fn verb(&self, method: &http::Method, query: &Query) -> Option<&'static str> {
        use http::Method;
        match self.subresource {
            // Also for a GET, which a WebSocket begins with: it runs a program.
            Some(Subresource::Exec) => return matches!(*method, Method::GET | Method::POST).then_some("create"),
            Some(Subresource::Log) => return (*method == Method::GET).then_some("get"),
            Some(Subresource::Binding) => return (*method == Method::POST).then_some("create"),
            Some(Subresource::Status) | None => {}
        }
        match (method, self.name.is_some()) {
            (&Method::GET, true) => Some("get"),
            (&Method::GET, false) if query.flag("watch") => Some("watch"),
            (&Method::GET, false) => Some("list"),
            (&Method::POST, false) => Some("create"),
            (&Method::PUT, true) => Some("update"),
            (&Method::PATCH, true) => Some("patch"),
            (&Method::DELETE, true) if self.subresource.is_none() => Some("delete"),
            (&Method::DELETE, false) => Some("deletecollection"),
            _ => None,
        }
    }
}

/// An authenticated request to a resource.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) core: Arc<Core>,
    pub(crate) user: Arc<User>,
    pub(crate) target: Target,
    pub(crate) verb: &'static str,
    pub(crate) query: Query,
    /// The field manager if the request names none: the first part of the user agent.
    pub(crate) agent: String,
    pub(crate) content_type: String,
}

impl Call {
    pub(crate) fn resource(&self) -> Resource {
        self.target.resource
    }

    /// Returns the name in the path; empty if there is none.
    pub(crate) fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn key(&self) -> Key {
        self.key_of(self.name())
    }

    pub(crate) fn key_of(&self, name: &str) -> Key {
        (self.target.namespace.clone().unwrap_or_default(), name.to_owned())
    }

    pub(crate) fn is_status(&self) -> bool {
        self.target.subresource == Some(Subresource::Status)
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.query.get("dryRun").is_some()
    }

    /// Returns the field manager.
    pub(crate) fn manager(&self) -> &str {
        self.query.get("fieldManager").unwrap_or(&self.agent)
    }

    fn access_request(&self) -> AccessRequest<'_> {
        AccessRequest {
            verb: self.verb,
            resource: self.resource(),
            subresource: self.target.subresource.map(Subresource::name),
            namespace: self.target.namespace.as_deref(),
            name: self.target.name.as_deref(),
        }
    }

    fn forbidden(&self, message: String) -> Failure {
        Failure::forbidden(self.resource(), self.target.name.as_deref(), message)
    }

    pub(crate) fn authorize(&self) -> Result<(), Failure> {
        rules::authorize(&self.user, &self.access_request(), &self.core.policy())
            .map_err(|message| self.forbidden(message))
    }

    /// Checks the node restrictions that depend on the object: the new one for a create, the stored one otherwise.
    pub(crate) fn authorize_object(&self, object: &serde_json::Value) -> Result<(), Failure> {
        let subresource = self.target.subresource.map(Subresource::name);
        rules::authorize_object(&self.user, self.resource(), subresource, self.verb, object)
            .map_err(|message| self.forbidden(message))
    }

    /// Returns the selector of a list, watch or collection delete. A kubelet must select its own node for some resources.
    pub(crate) fn selector(&self) -> Result<Selector, Failure> {
        let query = &self.query;
        let selector = Selector::parse(self.resource(), query.get("labelSelector"), query.get("fieldSelector"))?;
        let node = selector.required_value("spec.nodeName");
        rules::authorize_selection(&self.user, &self.access_request(), node, &self.core.policy())
            .map_err(|message| self.forbidden(message))?;
        Ok(selector)
    }

    /// Validates the query parameters of a write.
    pub(crate) fn check_options(&self) -> Result<(), Failure> {
        let kind = match self.verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            // The options of a delete can be in the body, which then replaces the query.
            _ => return Ok(()),
        };
        let refused = |reason, field, message: &str| Err(Failure::options(kind, reason, field, message));
        if let Some(value) = self.query.get("dryRun").filter(|value| *value != "All") {
            let message = format!("Unsupported value: [\"{value}\"]: supported values: \"All\"");
            return refused("FieldValueNotSupported", "dryRun", &message);
        }
        let is_apply = self.content_type.starts_with("application/apply-patch");
        if self.verb == "patch" && !is_apply && self.query.get("force").is_some() {
            return refused("FieldValueForbidden", "force", "Forbidden: may not be specified for non-apply patch");
        }
        if self.query.get("fieldManager").is_some_and(|manager| manager.len() > 128) {
            return refused("FieldValueTooLong", "fieldManager", "Too long: may not be more than 128 bytes");
        }
        match self.query.get("fieldValidation") {
            None | Some("Ignore" | "Strict" | "Warn") => Ok(()),
            Some(value) => {
                let known = r#""", "Ignore", "Strict", "Warn""#;
                let message = format!("Unsupported value: \"{value}\": supported values: {known}");
                refused("FieldValueNotSupported", "fieldValidation", &message)
            }
        }
    }

    /// Refuses unknown fields with `fieldValidation=Strict`. Otherwise they are dropped.
    pub(crate) fn check_strict(&self, unknown: &[String]) -> Result<(), Failure> {
        if unknown.is_empty() || self.query.get("fieldValidation") != Some("Strict") {
            return Ok(());
        }
        let unknown: Vec<String> = unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect();
        Err(Failure::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: strict decoding error: {}",
            self.resource().kind(),
            self.target.version.api_version().rsplit('/').next().unwrap_or_default(),
            self.resource().kind(),
            unknown.join(", "),
        )))
    }
}
