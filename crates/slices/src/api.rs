//! Requests about slices, in the newest version of `resource.k8s.io` that the API server serves.

mod echoes;
mod object;
#[cfg(test)]
mod tests;
mod watch_stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drakkar_client::{AnswerBody, ApiError, Bytes, DraClient, DraVersion, escape, protobuf};
use http::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::timeout;

use self::echoes::Echoes;
pub(super) use self::object::{Owner, SliceObject};
pub(super) use self::watch_stream::{Event, WatchStream};
use super::stored::{Expected, StoredSlice};

/// The time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The number of slices per page of a list.
const PAGE_SIZE: usize = 50;
const JSON: &str = "application/json";
/// The largest body of an answer: more than all slices of a node need.
const MAX_BODY: usize = 256 * 1024 * 1024;

/// The slices that a publisher owns.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    pub(super) driver: String,
    /// The node that slices name; `None` for slices that name no node.
    pub(super) node: Option<String>,
    /// The pool, if it is only one.
    pub(super) pool: Option<String>,
}

/// How new a list has to be. API servers answer from their cache, except for the newest state: for that one older servers ask
/// `etcd`, which reads the slices of all nodes to find those of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Whatever the server has in its cache.
    Any,
    /// At least as new as this resource version.
    Since(String),
    /// The newest state.
    Now,
}

/// A complete list of slices.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) slices: Vec<StoredSlice>,
    pub(super) resource_version: String,
    /// Whether it is the newest state, and not one from the server's cache.
    pub(super) is_current: bool,
}

/// A client for the slices of one publisher.
pub(super) struct Api {
    client: DraClient,
    scope: Scope,
    /// Whether lists select by pool. Older servers cannot.
    lists_pool: AtomicBool,
    /// Whether watches select by pool.
    watches_pool: AtomicBool,
    /// Whether slices are sent as protobuf, until the server refuses it.
    sends_protobuf: AtomicBool,
    /// The answers to writes, which a watch repeats.
    echoes: Arc<Echoes>,
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
            echoes: Arc::default(),
        }
    }

    /// Returns the API version in use.
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

    /// Returns whether a slice is one of the publisher's. Servers that cannot select by pool send others too.
    pub(super) fn is_in_scope(&self, slice: &StoredSlice) -> bool {
        self.scope.pool.as_ref().is_none_or(|pool| slice.pool == *pool)
    }

    /// Lists all slices in scope.
    pub(super) async fn list(&self, freshness: &Freshness) -> Result<Listed, ApiError> {
        // The list has them, or replaces them.
        self.echoes.clear();
        loop {
            let version = self.version();
            match self.list_pages(freshness).await {
                Err(ApiError::Status { status: StatusCode::BAD_REQUEST, message })
                    if self.lists_pool.swap(false, Ordering::Relaxed) =>
                {
                    tracing::debug!(message, "API server cannot select slices by pool");
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
            let path = format!("{}?fieldSelector={selector}&limit={PAGE_SIZE}{more}", self.path());
            let body = self.request(Method::GET, &path, Vec::new(), JSON).await?;
            let page: List<'_> = serde_json::from_slice(&body).map_err(ApiError::Decode)?;
            for item in page.items {
                let slice = StoredSlice::read(item.get().as_bytes(), self.version()).map_err(ApiError::Decode)?;
                if self.is_in_scope(&slice) {
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

    /// Watches slices from a resource version on, for this time.
    pub(super) async fn watch(&self, resource_version: &str, duration: Duration) -> Result<WatchStream, ApiError> {
        loop {
            let selector = self.selector(self.watches_pool.load(Ordering::Relaxed));
            let path = format!(
                "{}?watch=true&allowWatchBookmarks=true&fieldSelector={selector}&resourceVersion={}&timeoutSeconds={}",
                self.path(),
                escape(resource_version),
                duration.as_secs()
            );
            let response = self.open(&path).await?;
            if response.status() == StatusCode::OK {
                let echoes = self.echoes.clone();
                return Ok(WatchStream::new(
                    response.into_body(),
                    self.version(),
                    self.client.server().clone(),
                    echoes,
                ));
            }
            let collected = timeout(TIMEOUT, self.client.collect(response, MAX_BODY)).await;
            let (status, body) = collected.unwrap_or_else(|_elapsed| Err(self.client.timeout(TIMEOUT)))?;
            if status == StatusCode::BAD_REQUEST && self.watches_pool.swap(false, Ordering::Relaxed) {
                continue;
            }
            return Err(ApiError::from_answer(status, &body));
        }
    }

    /// Creates a slice. Returns what the server stored, also as JSON.
    pub(super) async fn create(&self, object: &SliceObject<'_>) -> Result<(StoredSlice, Bytes), ApiError> {
        self.write(Method::POST, &self.path(), object).await
    }

    /// Replaces a slice, unless another client has changed it.
    pub(super) async fn update(&self, name: &str, object: &SliceObject<'_>) -> Result<(StoredSlice, Bytes), ApiError> {
        self.write(Method::PUT, &format!("{}/{name}", self.path()), object).await
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        object: &SliceObject<'_>,
    ) -> Result<(StoredSlice, Bytes), ApiError> {
        let json = object.encode().map_err(ApiError::Decode)?;
        let answer = match self.protobuf(&json) {
            Some(body) => match self.request(method.clone(), path, body, protobuf::MEDIA_TYPE).await {
                Err(ApiError::Status { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message }) => {
                    tracing::debug!(message, "API server refuses protobuf, sending JSON");
                    self.sends_protobuf.store(false, Ordering::Relaxed);
                    self.request(method, path, json, JSON).await?
                }
                answer => answer?,
            },
            None => self.request(method, path, json, JSON).await?,
        };
        let expected = Expected { sent: Some(object.devices), before: object.target.as_ref().ok().copied() };
        let stored = StoredSlice::read_expected(&answer, self.version(), expected).map_err(ApiError::Decode)?;
        tracing::debug!(slice = stored.name, decoded = stored.decoded, "slice written");
        self.echoes.expect(&stored);
        Ok((stored, answer))
    }

    /// Encodes a slice as protobuf, which is smaller than JSON and less work for the server. `None` if JSON has to be sent.
    fn protobuf(&self, json: &[u8]) -> Option<Vec<u8>> {
        if !self.version().has_v1_form() || !self.sends_protobuf.load(Ordering::Relaxed) {
            return None;
        }
        let encoded = protobuf::from_json(json);
        encoded.inspect_err(|error| tracing::warn!(%error, "encoding a slice as protobuf failed, sending JSON")).ok()
    }

    /// Deletes a slice, unless another client has changed it. One that does not exist is no error.
    pub(super) async fn delete(&self, slice: &StoredSlice) -> Result<(), ApiError> {
        let preconditions = json!({"uid": slice.uid, "resourceVersion": slice.resource_version});
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        let path = format!("{}/{}", self.path(), slice.name);
        match self.request(Method::DELETE, &path, body.to_string().into_bytes(), JSON).await {
            Ok(_) | Err(ApiError::Status { status: StatusCode::NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the UID of a node.
    pub(super) async fn node_uid(&self, name: &str) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Node {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            uid: String,
        }
        let body = self.request(Method::GET, &format!("/api/v1/nodes/{name}"), Vec::new(), JSON).await?;
        let node: Node = serde_json::from_slice(&body).map_err(ApiError::Decode)?;
        Ok(node.metadata.uid)
    }

    /// Sends a request and returns the body of a successful answer.
    async fn request(&self, method: Method, path: &str, body: Vec<u8>, media: &'static str) -> Result<Bytes, ApiError> {
        let request = self.client.request(method, path, media, body)?;
        let answer = timeout(TIMEOUT, self.client.exchange(request, MAX_BODY)).await;
        match answer.unwrap_or_else(|_elapsed| Err(self.client.timeout(TIMEOUT)))? {
            (status, body) if status.is_success() => Ok(body),
            (status, body) => Err(ApiError::from_answer(status, &body)),
        }
    }

    /// Sends a GET and returns its answer as soon as the headers have arrived.
    async fn open(&self, path: &str) -> Result<Response<AnswerBody>, ApiError> {
        let request = self.client.request(Method::GET, path, JSON, Vec::new())?;
        let opened = timeout(TIMEOUT, self.client.send(request)).await;
        opened.unwrap_or_else(|_elapsed| Err(self.client.timeout(TIMEOUT)))
    }
}
