//! Requests to an API server, in the terms of its authorization.

use std::time::Instant;

use http::{Request, header};

/// A request that the proxy received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// `get`, `list`, `watch` and so on; empty if the request is not for objects.
    pub verb: &'static str,
    pub path: String,
    /// The media type of the body.
    pub media: String,
    pub time: Instant,
}

impl RecordedRequest {
    pub fn new<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let path = uri.path().to_owned();
        let time = Instant::now();
        let media = request.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
        let media = media.unwrap_or_default().to_owned();
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let rest = match segments.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        // In requests for a single object, its name follows the resource.
        let has_name = match rest {
            ["namespaces", _, _, rest @ ..] | [_, rest @ ..] => !rest.is_empty(),
            [] => return Self { verb: "", path, media, time },
        };
        let is_watch = uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let verb = match (request.method().as_str(), has_name) {
            ("GET", true) => "get",
            ("GET", false) if is_watch => "watch",
            ("GET", false) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => "",
        };
        Self { verb, path, media, time }
    }

    /// Whether the path has this resource or subresource.
    pub fn is_about(&self, resource: &str) -> bool {
        self.path.split('/').any(|segment| segment == resource)
    }

    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "" | "get" | "list" | "watch")
    }

    /// Whether the request is for resource.k8s.io in a version other than this.
    pub fn is_for_another_version(&self, version: &str) -> bool {
        let rest = self.path.strip_prefix("/apis/resource.k8s.io/");
        rest.is_some_and(|rest| rest.split('/').next() != Some(version))
    }
}
