//! Following a collection: all its objects once, then every change, for as long as somebody listens.
//!
//! A watch that ends is taken up where it ended. Anything else (a version that is too old, an error, a server that is away)
//! means listing anew, after a pause that grows with each failure.

use std::fmt::Debug;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::RETRY;
use drakkar_client::Retry;

/// Something that happened to a collection.
#[derive(Debug)]
pub(super) enum Change<K> {
    /// These are all objects that there are.
    All(Vec<K>),
    /// This object is new, or is now so.
    Applied(K),
    /// This object is gone.
    Gone(K),
}

/// Sends all changes, until nobody listens.
pub(super) async fn follow<K, E>(api: Api<K>, fields: Option<String>, events: mpsc::Sender<E>, wrap: fn(Change<K>) -> E)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut retry = RETRY.retry();
    loop {
        match follow_once(&api, fields.as_deref(), &events, wrap, &mut retry).await {
            Ok(Listener::Gone) => return,
            Ok(Listener::There) => tracing::debug!(resource = %K::plural(&()), "the watch is too old, listing anew"),
            Err(error) => {
                tracing::warn!(resource = %K::plural(&()), %error, "watching failed, and is tried again");
            }
        }
        retry.wait().await;
    }
}

enum Listener {
    There,
    Gone,
}

async fn follow_once<K, E>(
    api: &Api<K>,
    fields: Option<&str>,
    events: &mpsc::Sender<E>,
    wrap: fn(Change<K>) -> E,
    retry: &mut Retry,
) -> kube::Result<Listener>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let list = ListParams { field_selector: fields.map(str::to_owned), ..ListParams::default() };
    let watch = WatchParams { field_selector: fields.map(str::to_owned), bookmarks: true, ..WatchParams::default() };
    let all = api.list(&list).await?;
    let mut version = all.metadata.resource_version.unwrap_or_default();
    if events.send(wrap(Change::All(all.items))).await.is_err() {
        return Ok(Listener::Gone);
    }
    loop {
        let stream = api.watch(&watch, &version).await?;
        pin_mut!(stream);
        while let Some(event) = stream.next().await {
            let change = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = version_of(object.meta(), version);
                    Change::Applied(object)
                }
                WatchEvent::Deleted(object) => {
                    version = version_of(object.meta(), version);
                    Change::Gone(object)
                }
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(Listener::There),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            };
            retry.reset();
            if events.send(wrap(change)).await.is_err() {
                return Ok(Listener::Gone);
            }
        }
        // A server that ends every watch at once must not be asked without pause.
        retry.wait().await;
    }
}

fn version_of(metadata: &ObjectMeta, before: String) -> String {
    metadata.resource_version.clone().unwrap_or(before)
}
