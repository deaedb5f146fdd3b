//! WATCH: the changes of selected objects as a stream of JSON lines.
//!
//! A watch is a cursor into the store's event window. The response body owns it: it ends with the connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use hyper::body::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::call::Call;
use super::codec;
use super::faults::WatchFaults;
use super::selector::Selector;
use super::status::Failure;
use super::store::{Event, Object};

/// The maximum number of events in one chunk.
const BATCH_SIZE: usize = 64;
/// The duration of a watch without `timeoutSeconds`; the kube-apiserver uses 30 to 60 minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// The limit of `timeoutSeconds`.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The time between the last bookmark of a watch and its end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// One watch.
struct Watch {
    call: Call,
    selector: Selector,
    /// The version up to which all events are sent.
    cursor: u64,
    /// The objects at the start of the watch, still to be sent.
    initial: Vec<Arc<Object>>,
    /// Whether a bookmark that marks the end of the initial events is still to be sent.
    marks_initial_end: bool,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    changed: watch::Receiver<u64>,
    faults: WatchFaults,
    done: bool,
}

/// Starts a watch.
pub(crate) fn start(call: Call) -> Result<impl Stream<Item = io::Result<Bytes>> + Send, Failure> {
    let selector = call.selector()?;
    let requested = call.query.version()?.filter(|version| *version > 0);
    let initial_events = match call.query.get("sendInitialEvents") {
        None => None,
        Some(_) if call.query.get("resourceVersionMatch") != Some("NotOlderThan") => {
            return Err(Failure::list_options(
                "resourceVersionMatch",
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        Some(flag) => Some(matches!(flag, "true" | "1")),
    };
    if initial_events.is_none() && call.query.get("resourceVersionMatch").is_some() {
        return Err(Failure::list_options(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    let bookmarks = call.query.flag("allowWatchBookmarks");
    // Subscribe before reading the store, so that no write in between is missed.
    let changed = call.core.store.subscribe(call.resource());
    let (cursor, initial) = match (initial_events, requested) {
        (Some(false), None) => (call.core.store.version(), Vec::new()),
        (Some(false) | None, Some(version)) => (version, Vec::new()),
        (Some(true), _) | (None, None) => call.core.store.list(call.resource(), call.target.namespace.as_deref()),
    };
    let timeout = call.query.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
    let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs).min(MAX_TIMEOUT);
    let now = Instant::now();
    let watch = Watch {
        faults: call.core.faults.watch_faults(),
        next_bookmark: next_bookmark(call.core.bookmark_interval, now + timeout),
        deadline: now + timeout,
        marks_initial_end: initial_events == Some(true) && bookmarks,
        selector,
        cursor,
        initial,
        bookmarks,
        changed,
        done: false,
        call,
    };
    Ok(stream::unfold(watch, |mut watch| async {
        let chunk = watch.next().await?;
        Some((chunk.map(Bytes::from), watch))
    }))
}

/// Returns the time of the next bookmark: after the interval, or shortly before the end of the watch.
fn next_bookmark(interval: Duration, deadline: Instant) -> Instant {
    let now = Instant::now();
    let last = deadline - LAST_BOOKMARK;
    if last > now { last.min(now + interval) } else { now + interval }
}

impl Watch {
    /// Returns the next lines, or `None` at the end of the watch.
    async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        loop {
            if self.done {
                return None;
            }
            let open = match self.faults.is_open(&self.call.core.faults, &self.call.user.name) {
                Ok(open) => open,
                Err(cut) => {
                    self.done = true;
                    return Some(Err(io::Error::other(cut)));
                }
            };
            if open && let Some(chunk) = self.lines() {
                return Some(Ok(chunk));
            }
            let wake = if self.bookmarks && open { self.next_bookmark.min(self.deadline) } else { self.deadline };
            tokio::select! {
                changed = self.changed.changed(), if open => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = self.faults.changed() => {}
                () = sleep_until(wake) => {
                    if Instant::now() >= self.deadline {
                        return None;
                    }
                }
            }
        }
    }

    /// Returns the lines that can be sent now.
    fn lines(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        if !self.initial.is_empty() {
            for object in std::mem::take(&mut self.initial) {
                if self.selects(&object) {
                    self.write_line("ADDED", &object, &mut out);
                }
            }
        }
        if std::mem::take(&mut self.marks_initial_end) {
            self.write_bookmark(true, &mut out);
        }
        if !out.is_empty() {
            return Some(out);
        }
        self.changed.borrow_and_update();
        match self.call.core.store.events_since(self.call.resource(), self.cursor, BATCH_SIZE) {
            Ok((upto, events)) => {
                for event in &events {
                    self.write_event(event, &mut out);
                }
                self.cursor = self.cursor.max(upto);
                // There may be more: do not wait for the next write.
                if events.len() == BATCH_SIZE {
                    self.changed.mark_changed();
                }
            }
            Err(expired) => {
                let message = format!("too old resource version: {} ({})", self.cursor, expired.oldest + 1);
                let status = Failure::expired(message).body();
                out.extend_from_slice(json!({ "type": "ERROR", "object": status }).to_string().as_bytes());
                out.push(b'\n');
                self.done = true;
            }
        }
        if self.bookmarks && !self.done && Instant::now() >= self.next_bookmark {
            self.write_bookmark(false, &mut out);
        }
        (!out.is_empty()).then_some(out)
    }

    fn selects(&self, object: &Object) -> bool {
        let wanted = self.call.target.namespace.as_deref();
        wanted.is_none_or(|wanted| object.value["metadata"]["namespace"] == wanted)
            && self.selector.matches(&object.value)
    }

    /// Writes the line of an event. An object that starts to match the selector is `ADDED`, one that ceases to is `DELETED`.
    fn write_event(&self, event: &Event, out: &mut Vec<u8>) {
        let before = event.before.as_ref().filter(|object| self.selects(object));
        let after = event.after.as_ref().filter(|object| self.selects(object));
        match (before, after) {
            (None, None) => {}
            (None, Some(object)) => self.write_line("ADDED", object, out),
            (Some(_), Some(object)) => self.write_line("MODIFIED", object, out),
            (Some(before), None) => match &event.deleted {
                Some(last) => self.write_line("DELETED", last, out),
                None => self.write_line("DELETED", &Object::new(before.value.clone(), event.version), out),
            },
        }
    }

    fn write_line(&self, kind: &str, object: &Object, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        codec::encode(self.call.resource(), self.call.target.version, object, out);
        out.extend_from_slice(b"}\n");
    }

    fn write_bookmark(&mut self, ends_initial: bool, out: &mut Vec<u8>) {
        // After a restore of an older snapshot the cursor can be ahead of the store.
        let version = self.cursor.min(self.call.core.store.version());
        let mut metadata = json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
        if ends_initial {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = json!({
            "kind": self.call.resource().kind(),
            "apiVersion": self.call.target.version.api_version(),
            "metadata": metadata,
        });
        out.extend_from_slice(json!({ "type": "BOOKMARK", "object": object }).to_string().as_bytes());
        out.push(b'\n');
        self.next_bookmark = next_bookmark(self.call.core.bookmark_interval, self.deadline);
    }
}
