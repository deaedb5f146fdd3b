//! Watching a collection: lists all its objects, then sends every change until the receiver is dropped.
//!
//! A watch that ends normally is resumed from its last version. After an expired version, an error or a lost connection the
//! collection is listed again, after a delay that grows with each failure.

use std::fmt::Debug;

use drakkar_client::Retry;
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::RETRY;

/// A change of a collection.
#[derive(Debug)]
pub(super) enum Change<K> {
    /// The collection was listed: these are all its objects.
    Listed(Vec<K>),
    /// An object was added or modified.
    Applied(K),
    /// An object was deleted.
    Deleted(K),
}

/// Sends all changes of a collection until the receiver is dropped.
pub(super) async fn watch_collection<K, E>(
    api: Api<K>,
    fields: Option<String>,
    events: mpsc::Sender<E>,
    wrap: fn(Change<K>) -> E,
) where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut retry = RETRY.retry();
    loop {
        match list_and_watch(&api, fields.as_deref(), &events, wrap, &mut retry).await {
            Ok(Ended::ReceiverDropped) => return,
            Ok(Ended::Expired) => tracing::debug!(resource = %K::plural(&()), "watch expired, listing again"),
            Err(error) => {
                tracing::warn!(resource = %K::plural(&()), %error, "watch failed, retrying");
            }
        }
        retry.wait().await;
    }
}

/// Why a watch ended without an error.
enum Ended {
    /// The resource version is too old (410).
    Expired,
    ReceiverDropped,
}

async fn list_and_watch<K, E>(
    api: &Api<K>,
    fields: Option<&str>,
    events: &mpsc::Sender<E>,
    wrap: fn(Change<K>) -> E,
    retry: &mut Retry,
) -> kube::Result<Ended>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let list = ListParams { field_selector: fields.map(str::to_owned), ..ListParams::default() };
    let watch = WatchParams { field_selector: fields.map(str::to_owned), bookmarks: true, ..WatchParams::default() };
    let all = api.list(&list).await?;
    let mut version = all.metadata.resource_version.unwrap_or_default();
    if events.send(wrap(Change::Listed(all.items))).await.is_err() {
        return Ok(Ended::ReceiverDropped);
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
                    Change::Deleted(object)
                }
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(Ended::Expired),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            };
            retry.reset();
            if events.send(wrap(change)).await.is_err() {
                return Ok(Ended::ReceiverDropped);
            }
        }
        // A server that ends every watch at once must not be asked without delay.
        retry.wait().await;
    }
}

fn version_of(metadata: &ObjectMeta, before: String) -> String {
    metadata.resource_version.clone().unwrap_or(before)
}
