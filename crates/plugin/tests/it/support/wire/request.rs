//! What is asked of an API server, in the words of its authorization.

use std::time::Instant;

use http::{Request, header};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `get`, `list`, `watch` and so on; empty for what is not about objects.
    pub verb: &'static str,
    pub path: String,
    /// The media type of what is sent with it.
    pub media: String,
    pub time: Instant,
}

impl Asked {
    pub fn new<B>(request: &Request<B>) -> Self {
        let (method, uri) = (request.method(), request.uri());
        let (path, time) = (uri.path().to_owned(), Instant::now());
        let media = request.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
        let media = media.unwrap_or_default().to_owned();
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let rest = match segments.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        // Behind the resource there is the name, if there is one.
        let has_name = match rest {
            ["namespaces", _, _, rest @ ..] | [_, rest @ ..] => !rest.is_empty(),
            [] => return Self { verb: "", path, media, time },
        };
        let is_watch = uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let verb = match (method.as_str(), has_name) {
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

    pub fn is_about(&self, resource: &str) -> bool {
        self.path.split('/').any(|segment| segment == resource)
    }

    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "" | "get" | "list" | "watch")
    }

    /// Whether it is for resource.k8s.io in another version than this.
    pub fn is_of_another_version(&self, version: &str) -> bool {
        let rest = self.path.strip_prefix("/apis/resource.k8s.io/");
        rest.is_some_and(|rest| rest.split('/').next() != Some(version))
    }
}
