//! Waiting for an object of the API to become something.

use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

/// How long the API server is left alone when a watch ended.
const PAUSE: Duration = Duration::from_millis(20);

/// The last state of an object that has not become what it was waited for; `None` if there is no such object.
pub(super) struct Waited<K> {
    pub(super) last: Option<K>,
    pub(super) waited: Duration,
}

/// Waits until an object, or that there is none, is as wanted. Faults of the API server are waited out.
pub(super) async fn until<K>(
    api: &Api<K>,
    name: &str,
    limit: Duration,
    wanted: impl Fn(Option<&K>) -> bool,
) -> Result<Option<K>, Waited<K>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let started = Instant::now();
    let deadline = started + limit;
    let mut last = None;
    let watching = async {
        loop {
            match api.get_opt(name).await {
                Ok(object) => last = object,
                Err(error) => {
                    tracing::debug!(name, %error, "waiting for an object: trying again");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
            if wanted(last.as_ref()) {
                return;
            }
            // From what was seen, or from all there is if there was nothing.
            let version = last.as_ref().and_then(ResourceExt::resource_version).unwrap_or_else(|| "0".to_owned());
            let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
            let Ok(events) = api.watch(&parameters, &version).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            futures::pin_mut!(events);
            // An error, or the end: everything is looked at anew.
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => last = Some(object),
                    WatchEvent::Deleted(_) => last = None,
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(_) => break,
                }
                if wanted(last.as_ref()) {
                    return;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let done = timeout_at(deadline, watching).await.is_ok();
    if done { Ok(last) } else { Err(Waited { last, waited: started.elapsed() }) }
}
