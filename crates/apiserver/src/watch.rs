//! Watches: the changes of a selection of objects as a stream of JSON lines.
//!
//! A watch is a cursor into the store's memory of events. It lives inside the body of its response: when the connection
//! goes, it is gone.

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
use super::faults::WatchLine;
use super::selector::Selector;
use super::status::Failure;
use super::store::{Event, Object};

/// How many events go into one chunk.
const BATCH: usize = 64;
/// How long a watch lasts if the client does not say: a server ends each between half an hour and an hour.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// How long it lasts at most, whatever the client says.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long before its end a watch gets a bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// One watch.
struct Watch {
    call: Call,
    selector: Selector,
    /// Everything up to this version was sent.
    cursor: u64,
    /// What there was when the watch began, still to be sent.
    initial: Vec<Arc<Object>>,
    /// Whether the client wants to know when it has seen all of that.
    marks_initial_end: bool,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    changed: watch::Receiver<u64>,
    line: WatchLine,
    done: bool,
}

/// Begins a watch.
pub(crate) fn start(call: Call) -> Result<impl Stream<Item = io::Result<Bytes>> + Send, Failure> {
    let selector = call.selector()?;
    let wanted = call.query.version()?.filter(|version| *version > 0);
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
    // The subscription comes first: what happens from here on wakes the watch.
    let changed = call.core.store.subscribe(call.resource());
    let (cursor, initial) = match (initial_events, wanted) {
        (Some(false), None) => (call.core.store.version(), Vec::new()),
        (Some(false) | None, Some(version)) => (version, Vec::new()),
        (Some(true), _) | (None, None) => call.core.store.list(call.resource(), call.target.namespace.as_deref()),
    };
    let timeout = call.query.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
    let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs).min(LONGEST_TIMEOUT);
    let now = Instant::now();
    let watch = Watch {
        line: call.core.faults.watch_line(),
        next_bookmark: next_bookmark(call.core.bookmarks, now + timeout),
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

/// Bookmarks come at their interval, and one just before the end.
fn next_bookmark(interval: Duration, deadline: Instant) -> Instant {
    let now = Instant::now();
    let last = deadline - LAST_BOOKMARK;
    if last > now { last.min(now + interval) } else { now + interval }
}

impl Watch {
    /// The next lines, or nothing at the end.
    async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        loop {
            if self.done {
                return None;
            }
            let open = match self.line.open(&self.call.core.faults, &self.call.user.name) {
                Ok(open) => open,
                Err(severed) => {
                    self.done = true;
                    return Some(Err(io::Error::other(severed)));
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
                () = self.line.changed() => {}
                () = sleep_until(wake) => {
                    if Instant::now() >= self.deadline {
                        return None;
                    }
                }
            }
        }
    }

    /// What can be sent now.
    fn lines(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        if !self.initial.is_empty() {
            for object in std::mem::take(&mut self.initial) {
                if self.selects(&object) {
                    self.line("ADDED", &object, &mut out);
                }
            }
        }
        if std::mem::take(&mut self.marks_initial_end) {
            self.bookmark(true, &mut out);
        }
        if !out.is_empty() {
            return Some(out);
        }
        self.changed.borrow_and_update();
        match self.call.core.store.since(self.call.resource(), self.cursor, BATCH) {
            Ok((upto, events)) => {
                for event in &events {
                    self.event(event, &mut out);
                }
                self.cursor = self.cursor.max(upto);
                // More than a batch: come back without waiting.
                if events.len() == BATCH {
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
            self.bookmark(false, &mut out);
        }
        (!out.is_empty()).then_some(out)
    }

    fn selects(&self, object: &Object) -> bool {
        let wanted = self.call.target.namespace.as_deref();
        wanted.is_none_or(|wanted| object.value["metadata"]["namespace"] == wanted)
            && self.selector.matches(&object.value)
    }

    /// An object that enters the selection is added to it, one that leaves it is deleted from it.
    fn event(&self, event: &Event, out: &mut Vec<u8>) {
        let before = event.before.as_ref().filter(|object| self.selects(object));
        let after = event.after.as_ref().filter(|object| self.selects(object));
        match (before, after) {
            (None, None) => {}
            (None, Some(object)) => self.line("ADDED", object, out),
            (Some(_), Some(object)) => self.line("MODIFIED", object, out),
            (Some(before), None) => match &event.deleted {
                Some(last) => self.line("DELETED", last, out),
                None => self.line("DELETED", &Object::new(before.value.clone(), event.version), out),
            },
        }
    }

    fn line(&self, kind: &str, object: &Object, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        codec::encode(self.call.resource(), self.call.target.version, object, out);
        out.extend_from_slice(b"}\n");
    }

    fn bookmark(&mut self, ends_initial: bool, out: &mut Vec<u8>) {
        // Where the storage was restored from a backup, a watch can be ahead of it.
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
        self.next_bookmark = next_bookmark(self.call.core.bookmarks, self.deadline);
    }
}
