//! The log: what was sent to which plugin, with the answers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::faults::Call;

/// The number of entries that are kept.
const MAX_ENTRIES: usize = 100_000;

/// A call to a plugin, or the end of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Index and name of the plugin, as in `10-example`; empty if it has not registered.
    pub plugin: String,
    /// The call; `None` for the end of the connection.
    pub call: Option<Call>,
    /// Whether the event was sent as `StateChange`.
    pub state_change: bool,
    /// Namespace and name of the pod.
    pub pod: String,
    /// The id of the pod's sandbox.
    pub sandbox: String,
    /// The name of the container.
    pub container: String,
    /// The answer.
    pub answer: Answer,
}

/// How a call to a plugin ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The plugin has not answered yet.
    Pending,
    /// The plugin succeeded.
    Success,
    /// The plugin answered with an error.
    Error {
        /// A code of gRPC.
        code: i32,
        /// The plugin's text.
        message: String,
    },
    /// The connection ended, for this reason: the answer came too late, or the plugin hung up or broke the protocol.
    Closed(String),
    /// The call was not sent: [`Fault::NotSent`](super::Fault::NotSent).
    NotSent,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("pending"),
            Self::Success => f.write_str("success"),
            Self::Error { code, message } => write!(f, "error {code}: {message}"),
            Self::Closed(reason) => write!(f, "closed: {reason}"),
            Self::NotSent => f.write_str("not sent"),
        }
    }
}

/// One line, for messages of failed assertions: `10-example RunPodSandbox default/web: success`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugin, call, state_change, pod, container, answer, .. } = self;
        f.write_str(plugin)?;
        if let Some(call) = call {
            write!(f, " {call}{}", if *state_change { " (StateChange)" } else { "" })?;
        }
        for name in [pod, container].into_iter().filter(|name| !name.is_empty()) {
            write!(f, " {name}")?;
        }
        write!(f, ": {answer}")
    }
}

/// The entries, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
}

/// The number of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryId(u64);

impl Log {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, entry: Entry) -> EntryId {
        let mut log = self.entries();
        if log.entries.len() == MAX_ENTRIES {
            log.entries.pop_front();
            log.first += 1;
        }
        log.entries.push_back(entry);
        EntryId(log.first + log.entries.len() as u64 - 1)
    }

    /// Sets the answer of an entry, unless the entry is gone.
    pub(super) fn answer(&self, id: EntryId, answer: Answer) {
        let mut log = self.entries();
        let at = id.0.checked_sub(log.first).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| log.entries.get_mut(at)) {
            entry.answer = answer;
        }
    }

    pub(super) fn all(&self) -> Vec<Entry> {
        self.entries().entries.iter().cloned().collect()
    }

    pub(super) fn clear(&self) {
        let mut log = self.entries();
        log.first += log.entries.len() as u64;
        log.entries.clear();
    }
}
