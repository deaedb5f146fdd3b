//! Requests about slices to the API server, in the newest version of `resource.k8s.io` that it has.

mod lines;
mod object;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drakkar_client::{ApiError, DraClient, DraVersion, escape, protobuf};
use http::{Method, Response, StatusCode};
use kube::client::Body;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::timeout;

pub(super) use self::lines::{Event, Lines};
pub(super) use self::object::{Owner, SliceObject};
use super::stored::Stored;

/// How long the API server may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How many slices are asked for at once, where a server gives them in parts.
const PAGE: usize = 50;
/// The media type of all else than slices.
const JSON: &str = "application/json";
/// More than all slices of a node need.
const MAX_BODY: usize = 256 * 1024 * 1024;

/// Which slices are the driver's business.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    pub(super) driver: String,
    /// The node that slices name; none means those that name no node.
    pub(super) node: Option<String>,
    /// The only pool.
    pub(super) pool: Option<String>,
}

/// How new a list has to be. A server has all but the newest state at hand; for that one older servers ask `etcd`, which reads
/// the slices of all nodes to find those of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Whatever the server has at hand.
    Any,
    /// Not older than this version.
    Since(String),
    /// As of now.
    Now,
}

/// All slices at one time.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) slices: Vec<Stored>,
    pub(super) resource_version: String,
    /// Whether it is the newest state, and not one that the server had at hand.
    pub(super) is_current: bool,
}

/// Where slices are.
pub(super) struct Api {
    client: DraClient,
    scope: Scope,
    /// Whether the server is asked for the pool alone, in lists and in watches: older ones cannot.
    lists_pool: AtomicBool,
    watches_pool: AtomicBool,
    /// Whether slices are sent in protobuf: not to a server that would not have it.
    sends_protobuf: AtomicBool,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("scope", &self.scope).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct List<'a> {
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl Api {
    pub(super) fn new(client: DraClient, scope: Scope) -> Self {
        let has_pool = scope.pool.is_some();
        Self {
            client,
            scope,
            lists_pool: AtomicBool::new(has_pool),
            watches_pool: AtomicBool::new(has_pool),
            sends_protobuf: AtomicBool::new(true),
        }
    }

    /// The version of the API that is used.
    pub(super) fn version(&self) -> DraVersion {
        self.client.version()
    }

    fn path(&self) -> String {
        format!("/apis/{}/resourceslices", self.version().api_version())
    }

    fn selector(&self, with_pool: bool) -> String {
        let Scope { driver, node, pool } = &self.scope;
        let mut selector = format!("spec.driver={driver},spec.nodeName={}", node.as_deref().unwrap_or_default());
        if let Some(pool) = pool.as_ref().filter(|_| with_pool) {
            selector.push_str(",spec.pool.name=");
            selector.push_str(pool);
        }
        escape(&selector).to_string()
    }

    /// Whether a slice is the driver's business. Servers that cannot select by pool send more.
    pub(super) fn is_ours(&self, slice: &Stored) -> bool {
        self.scope.pool.as_ref().is_none_or(|pool| slice.pool == *pool)
    }

    /// All slices.
    pub(super) async fn list(&self, freshness: &Freshness) -> Result<Listed, ApiError> {
        loop {
            let version = self.version();
            match self.list_pages(freshness).await {
                Err(ApiError::Status { status: StatusCode::BAD_REQUEST, message })
                    if self.lists_pool.swap(false, Ordering::Relaxed) =>
                {
                    tracing::debug!(message, "the API server cannot select slices by pool");
                }
                Err(ApiError::Status { status: StatusCode::NOT_FOUND, .. }) => {
                    self.client.rediscover(version).await?;
                }
                listed => return listed,
            }
        }
    }

    async fn list_pages(&self, freshness: &Freshness) -> Result<Listed, ApiError> {
        let selector = self.selector(self.lists_pool.load(Ordering::Relaxed));
        let is_current = *freshness == Freshness::Now;
        let mut listed = Listed { slices: Vec::new(), resource_version: String::new(), is_current };
        let mut next: Option<String> = None;
        loop {
            let more = match (&next, freshness) {
                (Some(token), _) => format!("&continue={}", escape(token)),
                (None, Freshness::Any) => "&resourceVersion=0".to_owned(),
                (None, Freshness::Since(version)) => {
                    format!("&resourceVersion={}&resourceVersionMatch=NotOlderThan", escape(version))
                }
                (None, Freshness::Now) => String::new(),
            };
            let path = format!("{}?fieldSelector={selector}&limit={PAGE}{more}", self.path());
            let body = self.ask(Method::GET, &path, Vec::new(), JSON).await?;
            let page: List<'_> = serde_json::from_slice(&body).map_err(ApiError::Decode)?;
            for item in page.items {
                let slice = Stored::read(item.get().as_bytes(), self.version()).map_err(ApiError::Decode)?;
                if self.is_ours(&slice) {
                    listed.slices.push(slice);
                }
            }
            listed.resource_version = page.metadata.resource_version;
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(listed);
            }
        }
    }

    /// What happens to slices from that state on, for so long.
    pub(super) async fn watch(&self, resource_version: &str, lasting: Duration) -> Result<Lines, ApiError> {
        loop {
            let selector = self.selector(self.watches_pool.load(Ordering::Relaxed));
            let path = format!(
                "{}?watch=true&allowWatchBookmarks=true&fieldSelector={selector}&resourceVersion={}&timeoutSeconds={}",
                self.path(),
                escape(resource_version),
                lasting.as_secs()
            );
            let response = self.open(&path).await?;
            if response.status() == StatusCode::OK {
                return Ok(Lines::new(response.into_body(), self.version()));
            }
            let (status, body) = DraClient::collect(response, MAX_BODY).await?;
            if status == StatusCode::BAD_REQUEST && self.watches_pool.swap(false, Ordering::Relaxed) {
                continue;
            }
            return Err(ApiError::from_answer(status, &body));
        }
    }

    /// Creates a slice, and gives what the server made of it, also as text.
    pub(super) async fn create(&self, object: &SliceObject<'_>) -> Result<(Stored, Vec<u8>), ApiError> {
        self.write(Method::POST, &self.path(), object).await
    }

    /// Replaces a slice, if it is still as it was known.
    pub(super) async fn update(&self, name: &str, object: &SliceObject<'_>) -> Result<(Stored, Vec<u8>), ApiError> {
        self.write(Method::PUT, &format!("{}/{name}", self.path()), object).await
    }

    async fn write(&self, method: Method, path: &str, object: &SliceObject<'_>) -> Result<(Stored, Vec<u8>), ApiError> {
        let json = object.encode().map_err(ApiError::Decode)?;
        let answer = match self.protobuf(&json) {
            Some(body) => match self.ask(method.clone(), path, body, protobuf::MEDIA_TYPE).await {
                Err(ApiError::Status { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message }) => {
                    tracing::debug!(message, "the API server does not take slices in protobuf");
                    self.sends_protobuf.store(false, Ordering::Relaxed);
                    self.ask(method, path, json, JSON).await?
                }
                answer => answer?,
            },
            None => self.ask(method, path, json, JSON).await?,
        };
        Ok((Stored::read(&answer, self.version()).map_err(ApiError::Decode)?, answer))
    }

    /// A slice in protobuf, which is smaller than JSON and less work for the server; none where only JSON will do.
    fn protobuf(&self, json: &[u8]) -> Option<Vec<u8>> {
        if !self.version().has_v1_form() || !self.sends_protobuf.load(Ordering::Relaxed) {
            return None;
        }
        let encoded = protobuf::from_json(json);
        encoded.inspect_err(|error| tracing::warn!(%error, "a slice is sent as JSON")).ok()
    }

    /// Deletes a slice, if it is still as it was known. One that is gone is deleted.
    pub(super) async fn delete(&self, slice: &Stored) -> Result<(), ApiError> {
        let preconditions = json!({"uid": slice.uid, "resourceVersion": slice.resource_version});
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        let path = format!("{}/{}", self.path(), slice.name);
        match self.ask(Method::DELETE, &path, body.to_string().into_bytes(), JSON).await {
            Ok(_) | Err(ApiError::Status { status: StatusCode::NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The UID of a node.
    pub(super) async fn node_uid(&self, name: &str) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Node {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            uid: String,
        }
        let body = self.ask(Method::GET, &format!("/api/v1/nodes/{name}"), Vec::new(), JSON).await?;
        let node: Node = serde_json::from_slice(&body).map_err(ApiError::Decode)?;
        Ok(node.metadata.uid)
    }

    /// Sends a request and returns the body of a successful answer.
    async fn ask(&self, method: Method, path: &str, body: Vec<u8>, media: &'static str) -> Result<Vec<u8>, ApiError> {
        let request = self.client.request(method, path, media, body)?;
        let answer = timeout(TIMEOUT, self.client.exchange(request, MAX_BODY)).await;
        match answer.unwrap_or(Err(ApiError::Timeout(TIMEOUT)))? {
            (status, body) if status.is_success() => Ok(body),
            (status, body) => Err(ApiError::from_answer(status, &body)),
        }
    }

    /// Sends a GET and returns when the head of the answer is there.
    async fn open(&self, path: &str) -> Result<Response<Body>, ApiError> {
        let request = self.client.request(Method::GET, path, JSON, Vec::new())?;
        timeout(TIMEOUT, self.client.send(request)).await.unwrap_or(Err(ApiError::Timeout(TIMEOUT)))
    }
}
