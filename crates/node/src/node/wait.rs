//! Waiting for an API object to reach a state.

use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

/// The delay before the next request after an error or the end of a watch.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The object did not reach the state in time. `last` is what was seen last; `None` if the object does not exist.
pub(super) struct TimedOut<K> {
    pub(super) last: Option<K>,
    pub(super) waited: Duration,
}

/// Waits until the condition holds for an object, or for its absence. Retries when the API server fails.
pub(super) async fn wait_until<K>(
    api: &Api<K>,
    name: &str,
    timeout: Duration,
    condition: impl Fn(Option<&K>) -> bool,
) -> Result<Option<K>, TimedOut<K>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let started = Instant::now();
    let deadline = started + timeout;
    let mut last = None;
    let watching = async {
        loop {
            match api.get_opt(name).await {
                Ok(object) => last = object,
                Err(error) => {
                    tracing::debug!(name, %error, "getting the object failed, retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            }
            if condition(last.as_ref()) {
                return;
            }
            // From the version that was seen, or from the beginning if the object does not exist.
            let version = last.as_ref().and_then(ResourceExt::resource_version).unwrap_or_else(|| "0".to_owned());
            let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
            let Ok(events) = api.watch(&parameters, &version).await else {
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            };
            futures::pin_mut!(events);
            // After an error or the end of the watch, the object is read again.
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => last = Some(object),
                    WatchEvent::Deleted(_) => last = None,
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(_) => break,
                }
                if condition(last.as_ref()) {
                    return;
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    };
    let done = timeout_at(deadline, watching).await.is_ok();
    if done { Ok(last) } else { Err(TimedOut { last, waited: started.elapsed() }) }
}
