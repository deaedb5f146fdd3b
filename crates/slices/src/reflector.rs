//! A reflector of the driver's slices: one list, then a watch that is reconnected as often as needed.
//!
//! In a quiet cluster that is one request every few minutes. Lists are made at the start, when the server no longer knows the
//! history since the last event (410), and when the known state cannot be true: resource versions that go back, or writes that
//! conflict again and again.
//!
//! A list replaces the known state. So no list is made while a write is in progress, nothing is written while a list is
//! pending ([`Change::ListStarting`]), and a list is at least as new as everything that was written. That holds without a
//! comparison of the objects' versions, which go back in a cluster that was restored from a backup.
//!
//! A connection can die unnoticed. API servers send a bookmark every 60 to 75 s, so a watch that has received nothing for
//! longer ([`SILENCE_TIMEOUT`]) is reconnected from the last known version. With a server that sends no bookmarks this costs a
//! request now and then, and loses nothing.
//!
//! A server that ends takes the watches of all nodes with it, and one that has just started may not know the versions that they
//! have seen. So a reflector that lost its watch reconnects at a random time within [`SPREAD`], and lists at a random time
//! within another: with 5,000 nodes that is 500 requests per second, not 5,000. `docs/SCALE.md` has the figures.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::backoff::SPREAD;
use drakkar_client::{ApiError, Backoff, random};
use http::StatusCode;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use super::api::{Api, Event, Freshness, Listed};
use super::stored::{StoredSlice, is_newer};

/// The shortest and the longest duration of a watch in seconds. Random, so that nodes do not renew theirs together.
const WATCH_SECONDS: (u64, u64) = (300, 600);
/// The shortest and the longest silence of a watch in seconds before it is reconnected: more than the 75 s that may be between
/// two bookmarks.
const SILENCE_TIMEOUT: (u64, u64) = (85, 110);
/// The time within which a requested list is made.
const REQUESTED_SPREAD: Duration = Duration::from_secs(1);
/// How long after its end a watch may stay open before the connection counts as dead.
const GRACE: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// The number of changes that may wait for the publisher.
const QUEUE: usize = 64;

/// A change of the API server's slices.
#[derive(Debug)]
pub(super) enum Change {
    /// A list is about to be made: nothing may be written until it is there or has failed. The reply is the newest known
    /// resource version, which the list must include.
    ListStarting(oneshot::Sender<Option<String>>),
    /// All slices.
    Listed(Listed),
    /// A slice was created or changed.
    Applied(Box<StoredSlice>),
    /// A slice was deleted.
    Deleted(Box<StoredSlice>),
    /// The watch works again after a failure.
    Recovered,
    /// List or watch failed, and will be retried. Changes are not seen meanwhile.
    Failed { what: &'static str, error: ApiError },
}

/// Starts to follow the slices, until the receiver or the future is dropped. `relist` requests a list of the newest state.
pub(super) fn follow(api: Arc<Api>, relist: Arc<Notify>) -> (mpsc::Receiver<Change>, impl Future<Output = ()> + Send) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (receiver, run(api, sender, relist))
}

/// Why a watch ended.
enum End {
    /// It lasted as long as requested.
    Over,
    /// Nothing was received for too long.
    Silent,
    /// The server is behind what was seen: its storage was restored from a backup.
    Restored,
    /// A list was requested.
    Requested,
    /// The connection broke, or could not be made: the server is gone.
    Lost(Option<ApiError>),
    /// The server no longer knows the history since the last event.
    Expired,
    Failed(ApiError),
    /// The receiver was dropped.
    Closed,
}

async fn run(api: Arc<Api>, changes: mpsc::Sender<Change>, relist: Arc<Notify>) {
    let mut failures = 0;
    let mut freshness = Freshness::Any;
    loop {
        let Ok(written) = pause_writes(&changes).await else { return };
        if let (Freshness::Since(version), Some(written)) = (&mut freshness, written)
            && is_newer(&written, version)
        {
            *version = written;
        }
        let listed = match api.list(&freshness).await {
            Ok(listed) => listed,
            Err(error) => {
                failures += 1;
                let delay = error.retry_delay(BACKOFF.delay(failures));
                if is_expired(&error) || is_ahead(&error) {
                    freshness = Freshness::Now;
                } else if changes.send(Change::Failed { what: "list resourceslices", error }).await.is_err() {
                    return;
                }
                sleep(delay).await;
                continue;
            }
        };
        let mut version = listed.resource_version.clone();
        if changes.send(Change::Listed(listed)).await.is_err() {
            return;
        }
        let mut needs_newest = false;
        let mut spread = SPREAD;
        loop {
            let end = tokio::select! {
                biased;
                () = relist.notified() => End::Requested,
                end = watch(&api, &mut version, &mut failures, &changes) => end,
            };
            match end {
                End::Closed => return,
                End::Expired => break,
                End::Restored => {
                    tracing::warn!(version, "resource versions went back, listing slices");
                    needs_newest = true;
                    break;
                }
                End::Requested => {
                    needs_newest = true;
                    spread = REQUESTED_SPREAD;
                    break;
                }
                End::Silent => tracing::debug!(version, "watch is silent, reconnecting"),
                End::Over => failures = 0,
                End::Lost(error) => {
                    failures += 1;
                    // A single broken connection is not worth a report.
                    if let Some(error) = error.filter(|_| failures > 1)
                        && changes.send(Change::Failed { what: "watch resourceslices", error }).await.is_err()
                    {
                        return;
                    }
                    tokio::select! {
                        // The request comes from a write that the server answered, so it is back.
                        () = relist.notified() => {
                            needs_newest = true;
                            spread = REQUESTED_SPREAD;
                            break;
                        }
                        () = sleep(reconnect_delay(failures)) => {}
                    }
                }
                End::Failed(error) => {
                    failures += 1;
                    let delay = error.retry_delay(BACKOFF.delay(failures));
                    let is_not_found = matches!(&error, ApiError::Status { status: StatusCode::NOT_FOUND, .. });
                    if changes.send(Change::Failed { what: "watch resourceslices", error }).await.is_err() {
                        return;
                    }
                    sleep(delay).await;
                    if is_not_found {
                        // The server may have been upgraded and serve another API version, which a list discovers.
                        break;
                    }
                }
            }
        }
        // A list must include what has been seen. One of the newest state is expensive for the server, and only made if that
        // has not helped.
        let since = Freshness::Since(version);
        freshness = if needs_newest || freshness == since { Freshness::Now } else { since };
        sleep(spread.mul_f64(random())).await;
    }
}

/// Waits until no write is in progress, and returns the newest known resource version.
async fn pause_writes(changes: &mpsc::Sender<Change>) -> Result<Option<String>, Closed> {
    let (paused, known) = oneshot::channel();
    changes.send(Change::ListStarting(paused)).await.map_err(|_closed| Closed)?;
    known.await.map_err(|_dropped| Closed)
}

/// The receiver was dropped.
struct Closed;

/// Returns whether the requested resource version is ahead of the server's, perhaps because its storage was restored from a
/// backup.
fn is_ahead(error: &ApiError) -> bool {
    match error {
        ApiError::RetryAfter { error, .. } => is_ahead(error),
        ApiError::ResourceVersionTooLarge { .. } => true,
        _ => false,
    }
}

/// Returns the delay before a reconnect after the n-th consecutive loss of the watch.
fn reconnect_delay(losses: u32) -> Duration {
    let least = if losses > 1 { BACKOFF.delay(losses - 1) } else { Duration::ZERO };
    least.max(SPREAD.mul_f64(random()))
}

fn is_expired(error: &ApiError) -> bool {
    matches!(error, ApiError::Status { status: StatusCode::GONE, .. })
}

/// Returns whether the version of a bookmark is older than one that was seen before.
fn is_behind(bookmark: &str, seen: &str) -> bool {
    matches!((bookmark.parse::<u64>(), seen.parse::<u64>()), (Ok(bookmark), Ok(seen)) if bookmark < seen)
}

async fn watch(api: &Api, version: &mut String, failures: &mut u32, changes: &mpsc::Sender<Change>) -> End {
    let duration = random_between(WATCH_SECONDS);
    let end = Instant::now() + duration;
    let silence_timeout = random_between(SILENCE_TIMEOUT);
    let mut events = match api.watch(version, duration).await {
        Ok(events) => events,
        Err(error) if is_expired(&error) => return End::Expired,
        Err(error @ (ApiError::Send(_) | ApiError::Timeout { .. })) => return End::Lost(Some(error)),
        Err(error) => return End::Failed(error),
    };
    if *failures > 0 && changes.send(Change::Recovered).await.is_err() {
        return End::Closed;
    }
    loop {
        let until = (end + GRACE).min(Instant::now() + silence_timeout);
        let event = tokio::select! {
            event = timeout_at(until, events.next()) => event,
            () = changes.closed() => return End::Closed,
        };
        let change = match event {
            Err(_) | Ok(Ok(None)) if Instant::now() + GRACE >= end => return End::Over,
            Err(_) => return End::Silent,
            Ok(Ok(None)) => return End::Lost(None),
            Ok(Err(error @ ApiError::Send(_))) => return End::Lost(Some(error)),
            Ok(Err(error)) => return End::Failed(error),
            Ok(Ok(Some(Event::Bookmark(bookmark)))) if is_behind(&bookmark, version) => return End::Restored,
            Ok(Ok(Some(Event::Bookmark(seen) | Event::Echo(seen)))) => {
                *version = seen;
                *failures = 0;
                continue;
            }
            Ok(Ok(Some(Event::Error { code: 410, .. }))) => return End::Expired,
            Ok(Ok(Some(Event::Error { code, message }))) => {
                let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return End::Failed(ApiError::Status { status, message });
            }
            Ok(Ok(Some(Event::Applied(slice)))) => {
                version.clone_from(&slice.resource_version);
                Change::Applied(slice)
            }
            Ok(Ok(Some(Event::Deleted(slice)))) => {
                version.clone_from(&slice.resource_version);
                Change::Deleted(slice)
            }
        };
        *failures = 0;
        let is_in_scope = match &change {
            Change::Applied(slice) | Change::Deleted(slice) => api.is_in_scope(slice),
            _ => true,
        };
        if is_in_scope && changes.send(change).await.is_err() {
            return End::Closed;
        }
    }
}

fn random_between((least, most): (u64, u64)) -> Duration {
    Duration::from_secs(least) + Duration::from_secs(most - least).mul_f64(random())
}
