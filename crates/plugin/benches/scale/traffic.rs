//! What an API server was asked: by kind, on the average, and in the worst second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use drakkar_node::ApiServer;

/// How many requests a server's log holds.
const LOG: usize = 100_000;

/// The requests of a time.
pub(crate) struct Traffic {
    /// How many of each kind.
    pub(crate) kinds: BTreeMap<String, usize>,
    /// From the first to the last.
    pub(crate) lasted: Duration,
    /// How many arrived in the second in which most did.
    pub(crate) peak: usize,
}

impl Traffic {
    /// What drivers asked since the log began.
    pub(crate) fn of_drivers(server: &ApiServer) -> Self {
        let requests = server.requests();
        assert!(requests.len() < LOG, "the server's log is full: fewer nodes, or less time");
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

    /// How many of a kind.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).copied().unwrap_or_default()
    }
}

/// For example `get resourceclaims`. A watch that is refused because the server has lost what came before is one of its own kind.
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

/// The most that arrived within one second, whenever it began.
fn peak(times: &[Instant]) -> usize {
    let within = |first: usize| times[first..].partition_point(|time| *time - times[first] < Duration::from_secs(1));
    (0..times.len()).map(within).max().unwrap_or_default()
}
