//! Campaigns: random attacks that go on for as long as they are told.
//!
//! Each is a short test by default. `DRAKKAR_CAMPAIGN_SECONDS` makes it go on for that long, and `DRAKKAR_CAMPAIGN_SEED` sets the
//! seed that it prints at its end.

mod calls_cut_off;
mod hostile_claims;
mod http_floods;
mod locked_files;

use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

/// How long a campaign goes on, and what its random choices come from.
pub struct Campaign {
    name: &'static str,
    pub seed: u64,
    begun: Instant,
    /// The time that was asked for; without it, a number of rounds is.
    time: Option<Duration>,
}

impl Campaign {
    pub fn new(name: &'static str) -> Self {
        let number = |variable: &str| std::env::var(variable).ok().map(|text| text.parse().expect("a number"));
        let seed =
            number("DRAKKAR_CAMPAIGN_SEED").unwrap_or_else(|| std::hash::RandomState::new().hash_one(name) >> 32);
        // For who has only the output of a failure.
        eprintln!("campaign {name}: seed {seed}");
        Self { name, seed, begun: Instant::now(), time: number("DRAKKAR_CAMPAIGN_SECONDS").map(Duration::from_secs) }
    }

    /// Whether there is another round after so many; by default there are this many.
    pub fn goes_on(&self, rounds: usize, default: usize) -> bool {
        self.time.map_or(rounds < default, |time| self.begun.elapsed() < time)
    }

    /// Whether it goes on for a time that was asked for.
    pub fn is_long(&self) -> bool {
        self.time.is_some()
    }

    /// Prints what was done.
    pub fn report(&self, counts: &str) {
        eprintln!(
            "campaign {}: seed {}, {counts} in {:.1} s",
            self.name,
            self.seed,
            self.begun.elapsed().as_secs_f64()
        );
    }
}

/// The middle, the 99th of 100 and the highest of some durations.
pub fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1))).copied();
    let [middle, high, highest] = [at(50), at(99), times.last().copied()].map(Option::unwrap_or_default);
    format!("p50 {middle:.1?}, p99 {high:.1?}, max {highest:.1?}")
}
