//! Delays between retries: exponential, capped, with jitter.
//!
//! All nodes of a cluster lose an API server at the same moment. They must not all retry at the same moment again, so every
//! delay has a random part.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::random;

/// The time over which the nodes of a cluster spread their requests to a server that is back.
pub const SPREAD: Duration = Duration::from_secs(10);

/// The longest delay that gets jitter. A longer one means "never".
const MAX_JITTERED: Duration = Duration::from_secs(86_400);

/// Exponential backoff: the delay doubles with every consecutive failure, up to a maximum.
///
/// ```
/// # use std::time::Duration;
/// # use drakkar_client::Backoff;
/// const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// let delay = RETRY.delay(3);
/// assert!((Duration::from_millis(500)..=Duration::from_millis(1500)).contains(&delay));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    factor: f64,
    jitter: (f64, f64),
}

impl Backoff {
    /// A backoff from `first` to `max`. Jitter makes each delay up to a half shorter or longer.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, factor: 2.0, jitter: (0.5, 1.5) }
    }

    /// Sets the factor by which each delay is longer than the one before. The default is 2.
    #[must_use]
    pub const fn with_factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// Sets the range of the random factor of each delay. The default is 0.5 to 1.5.
    #[must_use]
    pub const fn with_jitter(self, least: f64, most: f64) -> Self {
        Self { jitter: (least, most), ..self }
    }

    /// Returns a counter of consecutive failures, starting at zero.
    pub const fn retry(self) -> Retry {
        Retry { backoff: self, failures: 0 }
    }

    /// Returns the delay after the n-th consecutive failure, starting from 1.
    pub fn delay(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * self.factor.max(1.0).powi(exponent);
        let delay = Duration::try_from_secs_f64(seconds).unwrap_or(self.max).min(self.max);
        jittered(delay, self.jitter.0..=self.jitter.1)
    }
}

/// A counter of consecutive failures, with the delay after each.
///
/// ```
/// # use std::time::Duration;
/// # use drakkar_client::Backoff;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let mut retry = Backoff::new(Duration::from_millis(1), Duration::from_millis(10)).retry();
/// let mut tries = 0;
/// loop {
///     tries += 1;
///     if tries == 3 {
///         retry.reset();
///         break;
///     }
///     retry.wait().await;
/// }
/// # });
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    backoff: Backoff,
    failures: u32,
}

impl Retry {
    /// Counts a failure and returns the delay before the next try.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures)
    }

    /// Counts a failure and waits before the next try.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Resets the counter after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Multiplies a delay by a random factor of the range. A delay of more than a day means "never" and stays as it is.
pub fn jittered(delay: Duration, factor: RangeInclusive<f64>) -> Duration {
    if delay > MAX_JITTERED {
        return delay;
    }
    delay.mul_f64(factor.start() + random() * (factor.end() - factor.start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));

    #[test]
    fn delays_double_up_to_a_maximum() {
        let delays: Vec<u128> =
            (1..=40).map(|failures| BACKOFF.with_jitter(1.0, 1.0).delay(failures).as_millis()).collect();
        assert_eq!(delays[..9], [20, 40, 80, 160, 320, 640, 1280, 2560, 5000]);
        assert!(delays[9..].iter().all(|delay| *delay == 5000));
        assert_eq!(BACKOFF.with_jitter(1.0, 1.0).delay(u32::MAX), Duration::from_secs(5));
        assert_eq!(BACKOFF.with_jitter(1.0, 1.0).delay(0), Duration::from_millis(20));
    }

    #[test]
    fn delays_grow_with_consecutive_failures_and_a_reset_starts_over() {
        let mut retry = BACKOFF.with_jitter(1.0, 1.5).retry();
        let first = retry.next_delay();
        let delays: Vec<_> = (0..20).map(|_| retry.next_delay()).collect();
        assert!(first < delays[2] && delays[2] < delays[6]);
        assert!(delays.iter().all(|delay| *delay <= Duration::from_millis(7500)));
        retry.reset();
        assert!(retry.next_delay() < delays[2]);
    }

    #[test]
    fn delays_differ_within_the_jitter() {
        let delays: Vec<Duration> = (0..1000).map(|_| BACKOFF.delay(1)).collect();
        let shortest = delays.iter().min().unwrap();
        let longest = delays.iter().max().unwrap();
        assert!(*shortest >= Duration::from_millis(10) && *longest <= Duration::from_millis(30));
        assert!(*longest - *shortest > Duration::from_millis(15), "from {shortest:?} to {longest:?}");
    }

    #[test]
    fn never_stays_never() {
        assert_eq!(jittered(Duration::MAX, 0.5..=1.5), Duration::MAX);
    }
}
