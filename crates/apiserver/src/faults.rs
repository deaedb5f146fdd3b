//! Trouble on demand: latency, refusals, dropped watches, partitions.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::identity::Identity;
use super::resource::Resource;
use super::status::Failure;

/// Which requests are meant; an empty filter means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    verb: Option<String>,
    resource: Option<Resource>,
    user: Option<String>,
}

impl Filter {
    /// All requests.
    pub fn any() -> Self {
        Self::default()
    }

    /// Only requests with this verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only requests for this resource.
    #[must_use]
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Only requests of this client.
    #[must_use]
    pub fn client(mut self, who: &Identity) -> Self {
        self.user = Some(who.user_name());
        self
    }

    fn matches(&self, verb: &str, resource: Option<Resource>, user: Option<&str>) -> bool {
        self.verb.as_deref().is_none_or(|wanted| wanted == verb)
            && self.resource.is_none_or(|wanted| resource == Some(wanted))
            && self.user.as_deref().is_none_or(|wanted| user == Some(wanted))
    }
}

/// The answer that a request gets in place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// 429 with `Retry-After`.
    TooManyRequests {
        /// Seconds after which the client should come back.
        retry_after: u32,
    },
    /// 500: the request is not done.
    InternalError,
    /// 503: the request is not done.
    Unavailable,
    /// 410 as the status of the response. For a watch that starts too far back, a server answers 200 and an `ERROR` event
    /// instead, and so does this one on its own.
    Gone,
    /// The connection ends without an answer; the request is not done.
    Disconnect,
    /// The request is done, and the connection ends before the answer is sent.
    LostAnswer,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The next so many requests.
    Next(usize),
    /// Until [`Faults::clear`].
    Always,
}

/// How a network partition looks to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Connections are cut, and new ones too, as soon as it is known whose they are.
    Cut,
    /// Nothing comes back: requests hang until [`Faults::heal`], watches are silent and stay open.
    Silent,
}

/// The faults of one server. All can be changed at any time, and apply at once.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<State>,
    changed: watch::Sender<Epoch>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    change: u64,
    /// Watches that began in an earlier one end.
    watches: u64,
}

#[derive(Debug, Default)]
struct State {
    latencies: Vec<(Filter, Duration)>,
    failures: Vec<(Filter, Trouble, Times)>,
    /// `None` is everybody.
    partitions: Vec<(Option<String>, Partition)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(Epoch::default()) }
    }
}

impl Faults {
    /// Delays requests by this long. The first filter that matches counts.
    pub fn delay(&self, filter: Filter, latency: Duration) {
        self.state().latencies.push((filter, latency));
    }

    /// Answers requests with trouble. The first filter that matches, and is not used up, counts.
    pub fn fail(&self, filter: Filter, trouble: Trouble, times: Times) {
        self.state().failures.push((filter, trouble, times));
    }

    /// Takes back all latencies and failures.
    pub fn clear(&self) {
        let mut state = self.state();
        state.latencies.clear();
        state.failures.clear();
    }

    /// Cuts the connections of all watches that there are now.
    pub fn drop_watches(&self) {
        self.changed.send_modify(|epoch| epoch.watches += 1);
    }

    /// Parts one client, or with `None` everybody, from the server.
    pub fn partition(&self, who: Option<&Identity>, how: Partition) {
        self.state().partitions.push((who.map(Identity::user_name), how));
        self.changed.send_modify(|epoch| epoch.change += 1);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.state().partitions.clear();
        self.changed.send_modify(|epoch| epoch.change += 1);
    }

    pub(crate) fn partitioned(&self, user: Option<&str>) -> Option<Partition> {
        let state = self.state();
        let mine = |who: &Option<String>| who.is_none() || who.as_deref() == user;
        state.partitions.iter().find(|(who, _)| mine(who)).map(|(_, how)| *how)
    }

    /// Waits until the client can be reached. The connection is not to be used after that if it was cut.
    pub(crate) async fn reachable(&self, user: Option<&str>) -> Result<(), Severed> {
        let mut changed = self.changed.subscribe();
        let mut waited = false;
        loop {
            match self.partitioned(user) {
                None if waited => return Err(Severed),
                None => return Ok(()),
                Some(Partition::Cut) => return Err(Severed),
                Some(Partition::Silent) => waited = true,
            }
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }

    pub(crate) fn latency(&self, verb: &str, resource: Option<Resource>, user: Option<&str>) -> Option<Duration> {
        let state = self.state();
        state.latencies.iter().find(|(filter, _)| filter.matches(verb, resource, user)).map(|(_, latency)| *latency)
    }

    pub(crate) fn trouble(&self, verb: &str, resource: Option<Resource>, user: Option<&str>) -> Option<Trouble> {
        let mut state = self.state();
        for (filter, trouble, times) in &mut state.failures {
            if !filter.matches(verb, resource, user) {
                continue;
            }
            match times {
                Times::Always => return Some(*trouble),
                Times::Next(0) => {}
                Times::Next(left) => {
                    *left -= 1;
                    return Some(*trouble);
                }
            }
        }
        None
    }

    /// What a watch of this client asks for its whole life.
    pub(crate) fn watch_line(&self) -> WatchLine {
        let changed = self.changed.subscribe();
        let began = changed.borrow().watches;
        WatchLine { changed, began }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    pub(crate) fn failure(self) -> Option<Failure> {
        match self {
            Self::TooManyRequests { retry_after } => Some(Failure::too_many_requests(retry_after)),
            Self::InternalError => Some(Failure::internal("as asked for by a fault")),
            Self::Unavailable => Some(Failure::unavailable()),
            Self::Gone => Some(Failure::expired("The resourceVersion for the provided watch is too old.".to_owned())),
            Self::Disconnect | Self::LostAnswer => None,
        }
    }
}

/// The connection is cut.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection was cut")]
pub(crate) struct Severed;

/// The line of one watch.
#[derive(Debug)]
pub(crate) struct WatchLine {
    changed: watch::Receiver<Epoch>,
    began: u64,
}

impl WatchLine {
    /// Whether something may be sent now.
    pub(crate) fn open(&mut self, faults: &Faults, user: &str) -> Result<bool, Severed> {
        if self.changed.borrow_and_update().watches != self.began {
            return Err(Severed);
        }
        match faults.partitioned(Some(user)) {
            None => Ok(true),
            Some(Partition::Cut) => Err(Severed),
            Some(Partition::Silent) => Ok(false),
        }
    }

    /// Waits until [`Self::open`] may have another answer.
    pub(crate) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            // The server is gone, and this connection goes with it.
            std::future::pending::<()>().await;
        }
    }
}
