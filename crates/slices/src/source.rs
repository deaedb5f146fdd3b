//! What happens to the driver's slices: a list once, then a watch, whose connection is made again as often as needed.
//!
//! In a quiet cluster that is one request every few minutes. Lists are for the start, and for when the server no longer knows
//! what happened since (410), or what is known here cannot be true: versions that go back, writes that conflict again and again.
//!
//! A list replaces all that is known. So no list is made while a write is under way, no write while a list is awaited
//! ([`Change::Listing`]), and a list is at least as new as everything that was written. That holds without comparing versions
//! of objects, which go back in a cluster that was restored from a backup.
//!
//! A connection can die without a word. API servers send a bookmark every 60 to 75 s, so a watch on which nothing at all
//! came for longer ([`SILENCE`]) is made again from where it was. With a server that sends no bookmarks that costs a request
//! now and then, and loses nothing.
//!
//! A server that ends takes the watches of all nodes with it, and one that has just come up may know of no state that they
//! have seen. So who has lost a watch comes back some time within [`SPREAD`], and lists some time within another: with 5,000
//! nodes that is 500 requests in a second, not 5,000. `docs/SCALE.md` has the figures.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use super::api::{Api, Event, Freshness, Listed};
use super::stored::{Stored, is_newer};
use drakkar_client::backoff::SPREAD;
use drakkar_client::{ApiError, Backoff, random};

/// How long a watch lasts, at least and at most: not the same on all nodes.
const WATCH: (u64, u64) = (300, 600);
/// How long a watch may be silent, at least and at most, in seconds: more than the 75 s that may be between two bookmarks.
const SILENCE: (u64, u64) = (85, 110);
/// Within what time a list is made that was asked for.
const REQUESTED: Duration = Duration::from_secs(1);
/// How much longer than it should a watch may take before the connection is taken for dead.
const GRACE: Duration = Duration::from_secs(30);
/// Between tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// How many changes may wait for the publisher.
const QUEUE: usize = 64;

/// News of slices.
#[derive(Debug)]
pub(super) enum Change {
    /// A list is about to be made: nothing may be written until it is there, or cannot be had. The answer is the newest
    /// version that is known, which the list must have.
    Listing(oneshot::Sender<Option<String>>),
    /// These are all.
    All(Listed),
    /// One is like this now.
    Put(Box<Stored>),
    /// One is gone.
    Gone(Box<Stored>),
    /// All that happens is seen again, after there was trouble.
    Fine,
    /// Nothing can be known for now.
    Trouble { what: &'static str, error: ApiError },
}

/// Follows what happens, until the receiver or the future is dropped. `relist` asks for a list of the newest state.
pub(super) fn follow(api: Arc<Api>, relist: Arc<Notify>) -> (mpsc::Receiver<Change>, impl Future<Output = ()> + Send) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (receiver, run(api, sender, relist))
}

/// How a watch ended.
enum End {
    /// When it should.
    Over,
    /// Nothing came for too long.
    Silent,
    /// The server is behind what was seen: its storage was restored from a backup.
    Restored,
    /// A list was asked for.
    Requested,
    /// Too early, or before it began: the server is gone.
    Lost(Option<ApiError>),
    /// The server does not know any more what happened since.
    Expired,
    Failed(ApiError),
    /// Nobody listens.
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
                let pause = error.retry_delay(PAUSES.delay(failures));
                if is_expired(&error) || is_ahead(&error) {
                    freshness = Freshness::Now;
                } else if changes.send(Change::Trouble { what: "list resourceslices", error }).await.is_err() {
                    return;
                }
                sleep(pause).await;
                continue;
            }
        };
        let mut version = listed.resource_version.clone();
        if changes.send(Change::All(listed)).await.is_err() {
            return;
        }
        let mut is_doubtful = false;
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
                    tracing::warn!(version, "resource versions of the API server went back, listing slices");
                    is_doubtful = true;
                    break;
                }
                End::Requested => {
                    is_doubtful = true;
                    spread = REQUESTED;
                    break;
                }
                End::Silent => tracing::debug!(version, "watch of slices is silent, connecting again"),
                End::Over => failures = 0,
                End::Lost(error) => {
                    failures += 1;
                    // That a connection breaks is nothing to tell, unless the next one does too.
                    if let Some(error) = error.filter(|_| failures > 1)
                        && changes.send(Change::Trouble { what: "watch resourceslices", error }).await.is_err()
                    {
                        return;
                    }
                    tokio::select! {
                        // Whoever asks has had an answer from the server.
                        () = relist.notified() => {
                            is_doubtful = true;
                            spread = REQUESTED;
                            break;
                        }
                        () = sleep(until_back(failures)) => {}
                    }
                }
                End::Failed(error) => {
                    failures += 1;
                    let pause = error.retry_delay(PAUSES.delay(failures));
                    let is_gone = matches!(&error, ApiError::Status { status: StatusCode::NOT_FOUND, .. });
                    if changes.send(Change::Trouble { what: "watch resourceslices", error }).await.is_err() {
                        return;
                    }
                    sleep(pause).await;
                    if is_gone {
                        // Another version of the API, perhaps: a list finds out.
                        break;
                    }
                }
            }
        }
        // What has been seen is the least that a list must have. Only where that leads nowhere is it to be the newest.
        let since = Freshness::Since(version);
        freshness = if is_doubtful || freshness == since { Freshness::Now } else { since };
        sleep(spread.mul_f64(random())).await;
    }
}

/// Waits until nothing is being written, and gives the newest version that is known then.
async fn pause_writes(changes: &mpsc::Sender<Change>) -> Result<Option<String>, Closed> {
    let (paused, known) = oneshot::channel();
    changes.send(Change::Listing(paused)).await.map_err(|_closed| Closed)?;
    known.await.map_err(|_dropped| Closed)
}

/// Nobody listens.
struct Closed;

/// Whether the server is behind what was asked for: its storage has been restored, perhaps, and will never have that.
fn is_ahead(error: &ApiError) -> bool {
    match error {
        ApiError::RetryAfter { error, .. } => is_ahead(error),
        ApiError::Status { status: StatusCode::GATEWAY_TIMEOUT, message } => {
            message.contains("Too large resource version")
        }
        _ => false,
    }
}

/// How long to stay away from a server after a watch broke, for the so many-th time without anything in between.
fn until_back(losses: u32) -> Duration {
    let least = if losses > 1 { PAUSES.delay(losses - 1) } else { Duration::ZERO };
    least.max(SPREAD.mul_f64(random()))
}

fn is_expired(error: &ApiError) -> bool {
    matches!(error, ApiError::Status { status: StatusCode::GONE, .. })
}

/// Whether a server that is at one version has lost another that was seen.
fn is_behind(marked: &str, seen: &str) -> bool {
    matches!((marked.parse::<u64>(), seen.parse::<u64>()), (Ok(marked), Ok(seen)) if marked < seen)
}

async fn watch(api: &Api, version: &mut String, failures: &mut u32, changes: &mpsc::Sender<Change>) -> End {
    let seconds = (WATCH.1 - WATCH.0) as f64 * random();
    let lasting = Duration::from_secs(WATCH.0) + Duration::from_secs_f64(seconds);
    let end = Instant::now() + lasting;
    let silence = Duration::from_secs(SILENCE.0) + Duration::from_secs(SILENCE.1 - SILENCE.0).mul_f64(random());
    let mut lines = match api.watch(version, lasting).await {
        Ok(lines) => lines,
        Err(error) if is_expired(&error) => return End::Expired,
        Err(error @ (ApiError::Send(_) | ApiError::Timeout(_))) => return End::Lost(Some(error)),
        Err(error) => return End::Failed(error),
    };
    if *failures > 0 && changes.send(Change::Fine).await.is_err() {
        return End::Closed;
    }
    loop {
        let until = (end + GRACE).min(Instant::now() + silence);
        let event = tokio::select! {
            event = timeout_at(until, lines.next()) => event,
            () = changes.closed() => return End::Closed,
        };
        let change = match event {
            Err(_) | Ok(Ok(None)) if Instant::now() + GRACE >= end => return End::Over,
            Err(_) => return End::Silent,
            Ok(Ok(None)) => return End::Lost(None),
            Ok(Err(error @ ApiError::Send(_))) => return End::Lost(Some(error)),
            Ok(Err(error)) => return End::Failed(error),
            Ok(Ok(Some(Event::Bookmark(marked)))) if is_behind(&marked, version) => return End::Restored,
            Ok(Ok(Some(Event::Bookmark(marked)))) => {
                *version = marked;
                *failures = 0;
                continue;
            }
            Ok(Ok(Some(Event::Failed { code: 410, .. }))) => return End::Expired,
            Ok(Ok(Some(Event::Failed { code, message }))) => {
                let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return End::Failed(ApiError::Status { status, message });
            }
            Ok(Ok(Some(Event::Put(slice)))) => {
                version.clone_from(&slice.resource_version);
                Change::Put(slice)
            }
            Ok(Ok(Some(Event::Gone(slice)))) => {
                version.clone_from(&slice.resource_version);
                Change::Gone(slice)
            }
        };
        *failures = 0;
        let is_ours = match &change {
            Change::Put(slice) | Change::Gone(slice) => api.is_ours(slice),
            _ => true,
        };
        if is_ours && changes.send(change).await.is_err() {
            return End::Closed;
        }
    }
}
