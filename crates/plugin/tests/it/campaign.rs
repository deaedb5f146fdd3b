//! Campaigns: randomized attacks of configurable duration.
//!
//! Each is a short test by default. `DRAKKAR_CAMPAIGN_SECONDS` sets its duration, and `DRAKKAR_CAMPAIGN_SEED` its seed, which it
//! prints at the start and at the end.

mod cancelled_calls;
mod hostile_claims;
mod http_floods;
mod locked_files;

use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

/// The duration and the seed of a campaign.
pub struct Campaign {
    name: &'static str,
    pub seed: u64,
    started: Instant,
    /// The configured duration; without it, the campaign has a fixed number of rounds.
    time: Option<Duration>,
}

impl Campaign {
    pub fn new(name: &'static str) -> Self {
        let number = |variable: &str| std::env::var(variable).ok().map(|text| text.parse().expect("a number"));
        let seed =
            number("DRAKKAR_CAMPAIGN_SEED").unwrap_or_else(|| std::hash::RandomState::new().hash_one(name) >> 32);
        // Printed at the start too, because a failed campaign does not reach its report.
        eprintln!("campaign {name}: seed {seed}");
        Self { name, seed, started: Instant::now(), time: number("DRAKKAR_CAMPAIGN_SECONDS").map(Duration::from_secs) }
    }

    /// Whether there is another round after `rounds`: until the duration is over, or up to `default` rounds without one.
    pub fn has_next(&self, rounds: usize, default: usize) -> bool {
        self.time.map_or(rounds < default, |time| self.started.elapsed() < time)
    }

    /// Whether a duration is configured.
    pub fn is_long(&self) -> bool {
        self.time.is_some()
    }

    /// Prints a summary.
    pub fn report(&self, counts: &str) {
        eprintln!(
            "campaign {}: seed {}, {counts} in {:.1} s",
            self.name,
            self.seed,
            self.started.elapsed().as_secs_f64()
        );
    }
}

/// Formats the median, the 99th percentile and the maximum of some durations.
pub fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1))).copied();
    let [median, p99, max] = [at(50), at(99), times.last().copied()].map(Option::unwrap_or_default);
    format!("p50 {median:.1?}, p99 {p99:.1?}, max {max:.1?}")
}
