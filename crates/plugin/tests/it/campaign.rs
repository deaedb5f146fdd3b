//! Long randomized attacks. Each runs for a moment by default; `DRAKKAR_CAMPAIGN_SECONDS` makes it go on for that long, and
//! `DRAKKAR_CAMPAIGN_SEED` repeats one.

mod calls_cut_off;

use std::time::{Duration, Instant, SystemTime};

/// How long a campaign goes on, and where its random numbers begin.
struct Budget {
    seed: u64,
    begun: Instant,
    lasts: Option<Duration>,
    /// How many rounds there are if no time is set.
    rounds: u64,
}

impl Budget {
    fn of_rounds(rounds: u64) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos().into();
        let seed = number("DRAKKAR_CAMPAIGN_SEED").unwrap_or_else(now);
        let lasts = number("DRAKKAR_CAMPAIGN_SECONDS").map(Duration::from_secs);
        Self { seed, begun: Instant::now(), lasts, rounds }
    }

    /// Whether there is another round after so many.
    fn allows(&self, done: u64) -> bool {
        self.lasts.map_or(done < self.rounds, |lasts| self.begun.elapsed() < lasts)
    }

    /// Whether it goes on for a time that was set.
    fn is_long(&self) -> bool {
        self.lasts.is_some()
    }

    fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}
