//! Fault injection: latency, error responses, dropped watches, network partitions.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::identity::Identity;
use super::resource::Resource;
use super::status::Failure;

/// Selects the requests that a fault applies to. Conditions are combined with "and".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    verb: Option<String>,
    resource: Option<Resource>,
    user: Option<String>,
}

impl Filter {
    /// Selects all requests.
    pub fn any() -> Self {
        Self::default()
    }

    /// Selects requests with this verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Selects requests for this resource.
    #[must_use]
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Selects requests of this client.
    #[must_use]
    pub fn client(mut self, identity: &Identity) -> Self {
        self.user = Some(identity.user_name());
        self
    }

    fn matches(&self, verb: &str, resource: Option<Resource>, user: Option<&str>) -> bool {
        self.verb.as_deref().is_none_or(|wanted| wanted == verb)
            && self.resource.is_none_or(|wanted| resource == Some(wanted))
            && self.user.as_deref().is_none_or(|wanted| user == Some(wanted))
    }
}

/// The failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// 429 with `Retry-After`: the request is not processed.
    TooManyRequests {
        /// The value of `Retry-After`, in seconds.
        retry_after: u32,
    },
    /// 500: the request is not processed.
    InternalError,
    /// 503: the request is not processed.
    Unavailable,
    /// 410 as the status of the response. A watch that starts at a version that is too old gets 200 and an `ERROR` event
    /// instead; the server does that without a fault.
    Gone,
    /// The connection is closed without a response; the request is not processed.
    Disconnect,
    /// The request is processed, and the connection is closed before the response is sent.
    LostResponse,
}

/// The number of requests that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The next n requests that the filter selects.
    Next(usize),
    /// All requests until [`Faults::clear`].
    Always,
}

/// The kind of a network partition, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Connections are closed: open ones at once, new ones as soon as the client is known.
    Cut,
    /// Nothing is answered: requests hang until [`Faults::heal`], watches stay open without events.
    Silent,
}

/// The injected faults of one server. Changes apply at once.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<State>,
    changed: watch::Sender<Epoch>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    change: u64,
    /// Incremented to end all open watches.
    watches: u64,
}

#[derive(Debug, Default)]
struct State {
    latencies: Vec<(Filter, Duration)>,
    failures: Vec<(Filter, Fault, Times)>,
    /// `None` is all clients.
    partitions: Vec<(Option<String>, Partition)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(Epoch::default()) }
    }
}

impl Faults {
    /// Delays requests. If several filters match a request, the first added applies.
    pub fn delay(&self, filter: Filter, latency: Duration) {
        self.state().latencies.push((filter, latency));
    }

    /// Fails requests. If several filters match a request, the first added that is not used up applies.
    pub fn fail(&self, filter: Filter, fault: Fault, times: Times) {
        self.state().failures.push((filter, fault, times));
    }

    /// Removes all delays and failures; partitions stay.
    pub fn clear(&self) {
        let mut state = self.state();
        state.latencies.clear();
        state.failures.clear();
    }

    /// Closes the connections of all open watches.
    pub fn drop_watches(&self) {
        self.changed.send_modify(|epoch| epoch.watches += 1);
    }

    /// Separates one client, or all with `None`, from the server.
    pub fn partition(&self, client: Option<&Identity>, partition: Partition) {
        self.state().partitions.push((client.map(Identity::user_name), partition));
        self.changed.send_modify(|epoch| epoch.change += 1);
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.state().partitions.clear();
        self.changed.send_modify(|epoch| epoch.change += 1);
    }

    pub(crate) fn partitioned(&self, user: Option<&str>) -> Option<Partition> {
        let state = self.state();
        let applies = |client: &Option<String>| client.is_none() || client.as_deref() == user;
        state.partitions.iter().find(|(client, _)| applies(client)).map(|(_, partition)| *partition)
    }

    /// Waits until no silent partition separates the client. Fails if the connection must be closed: on a cut, and also
    /// after a wait, as the client would have lost it.
    pub(crate) async fn reachable(&self, user: Option<&str>) -> Result<(), ConnectionCut> {
        let mut changed = self.changed.subscribe();
        let mut waited = false;
        loop {
            match self.partitioned(user) {
                None if waited => return Err(ConnectionCut),
                None => return Ok(()),
                Some(Partition::Cut) => return Err(ConnectionCut),
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

    /// Returns the fault of a request, and counts it.
    pub(crate) fn next_fault(&self, verb: &str, resource: Option<Resource>, user: Option<&str>) -> Option<Fault> {
        let mut state = self.state();
        for (filter, fault, times) in &mut state.failures {
            if !filter.matches(verb, resource, user) {
                continue;
            }
            match times {
                Times::Always => return Some(*fault),
                Times::Next(0) => {}
                Times::Next(remaining) => {
                    *remaining -= 1;
                    return Some(*fault);
                }
            }
        }
        None
    }

    /// Returns the state of faults for a watch that starts now.
    pub(crate) fn watch_faults(&self) -> WatchFaults {
        let changed = self.changed.subscribe();
        let epoch = changed.borrow().watches;
        WatchFaults { changed, epoch }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fault {
    /// Returns the response, unless the fault is a closed connection.
    pub(crate) fn failure(self) -> Option<Failure> {
        match self {
            Self::TooManyRequests { retry_after } => Some(Failure::too_many_requests(retry_after)),
            Self::InternalError => Some(Failure::internal("injected fault")),
            Self::Unavailable => Some(Failure::unavailable()),
            Self::Gone => Some(Failure::expired("The resourceVersion for the provided watch is too old.".to_owned())),
            Self::Disconnect | Self::LostResponse => None,
        }
    }
}

/// The connection must be closed because of a fault.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("connection closed by an injected fault")]
pub(crate) struct ConnectionCut;

/// The faults of one watch.
#[derive(Debug)]
pub(crate) struct WatchFaults {
    changed: watch::Receiver<Epoch>,
    /// The epoch in which the watch started.
    epoch: u64,
}

impl WatchFaults {
    /// Whether the watch may send events now.
    pub(crate) fn is_open(&mut self, faults: &Faults, user: &str) -> Result<bool, ConnectionCut> {
        if self.changed.borrow_and_update().watches != self.epoch {
            return Err(ConnectionCut);
        }
        match faults.partitioned(Some(user)) {
            None => Ok(true),
            Some(Partition::Cut) => Err(ConnectionCut),
            Some(Partition::Silent) => Ok(false),
        }
    }

    /// Waits until the result of [`Self::is_open`] may have changed.
    pub(crate) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            // The server is dropped, and this connection with it.
            std::future::pending::<()>().await;
        }
    }
}
