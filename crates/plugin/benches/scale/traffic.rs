//! The requests that an API server received: by kind, on average, and in the busiest second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use drakkar_node::ApiServer;

/// The capacity of the server's log.
const LOG: usize = 100_000;

/// The requests of a phase.
pub(crate) struct Traffic {
    /// The number of each kind.
    pub(crate) kinds: BTreeMap<String, usize>,
    /// The time from the first to the last.
    pub(crate) lasted: Duration,
    /// The number in the busiest second.
    pub(crate) peak: usize,
}

impl Traffic {
    /// Returns the requests of drivers since the log was cleared.
    pub(crate) fn of_drivers(server: &ApiServer) -> Self {
        let requests = server.requests();
        assert!(requests.len() < LOG, "the server's log is full: use fewer nodes or less time");
        let ours: Vec<_> = requests.iter().filter(|line| line.user.starts_with("system:serviceaccount:")).collect();
        let mut kinds = BTreeMap::new();
        for line in &ours {
            *kinds.entry(kind(line.verb, &line.path, line.status)).or_default() += 1;
        }
        let mut times: Vec<Instant> = ours.iter().map(|line| line.time).collect();
        times.sort_unstable();
        let lasted = times.first().zip(times.last()).map_or(Duration::ZERO, |(first, last)| *last - *first);
        Self { kinds, lasted, peak: peak(&times) }
    }

    pub(crate) fn total(&self) -> usize {
        self.kinds.values().sum()
    }

    /// Returns the number of requests of a kind.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).copied().unwrap_or_default()
    }
}

/// Returns the kind of a request, such as `get resourceclaims`. A watch that is refused because the history has expired is a
/// kind of its own.
fn kind(verb: &str, path: &str, status: u16) -> String {
    let resources = ["resourceclaims", "resourceslices", "nodes"];
    let resource = resources.iter().find(|resource| path.contains(*resource)).copied().unwrap_or(path);
    let note = match status {
        410 => " (410)",
        200 | 201 => "",
        _ => " (failed)",
    };
    format!("{verb} {resource}{note}")
}

/// Returns the largest number of requests within any second.
fn peak(times: &[Instant]) -> usize {
    let within = |first: usize| times[first..].partition_point(|time| *time - times[first] < Duration::from_secs(1));
    (0..times.len()).map(within).max().unwrap_or_default()
}
