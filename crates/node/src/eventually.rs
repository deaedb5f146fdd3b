//! Waiting in tests for a condition.

use std::time::Duration;

use tokio::time::Instant;

/// How long a node waits for a driver or an object: far longer than anything on an embedded node takes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long [`assert_eventually!`](crate::assert_eventually) waits by default. Only a failing test waits that long; a
/// passing test on a loaded machine can take far longer than usual.
const ASSERTION_TIMEOUT: Duration = Duration::from_secs(180);
/// The delay between two evaluations of the condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A point in time at which a wait ends.
#[doc(hidden)]
#[derive(Debug)]
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Default for Deadline {
    fn default() -> Self {
        Self::after(DEFAULT_TIMEOUT)
    }
}

impl Deadline {
    /// Returns a deadline this long from now.
    pub fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// Returns the deadline of an assertion without a timeout of its own.
    pub fn of_assertion() -> Self {
        Self::after(ASSERTION_TIMEOUT)
    }

    /// Sleeps until the next evaluation. Fails with the time waited if the deadline has passed.
    pub async fn pause(&self) -> Result<(), Duration> {
        let waited = self.started.elapsed();
        if waited >= self.timeout {
            return Err(waited);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        Ok(())
    }
}

/// Asserts that a condition becomes true within three minutes, or within the given timeout. The condition may `.await`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::{Duration, Instant};
///
/// let started = Instant::now();
/// drakkar_node::assert_eventually!(started.elapsed() > Duration::from_millis(20));
/// drakkar_node::assert_eventually!(within Duration::from_secs(5), started.elapsed().as_millis() > 30, "started {started:?}");
/// # }
/// ```
#[macro_export]
macro_rules! assert_eventually {
        (within $timeout:expr, $condition:expr $(,)?) => {
            $crate::assert_eventually!(within $timeout, $condition, "{}", stringify!($condition))
        };
        (within $timeout:expr, $condition:expr, $($message:tt)+) => {{
            let deadline = $crate::Deadline::after($timeout);
            while !$condition {
                if let Err(waited) = deadline.pause().await {
                    panic!("condition not met after {waited:?}: {}", format_args!($($message)+));
            }
        }
    }};
    ($condition:expr $(,)?) => {
        $crate::assert_eventually!($condition, "{}", stringify!($condition))
    };
    ($condition:expr, $($message:tt)+) => {{
                let deadline = $crate::Deadline::of_assertion();
                while !$condition {
                    if let Err(waited) = deadline.pause().await {
                        panic!("condition not met after {waited:?}: {}", format_args!($($message)+));
            }
        }
    }};
}
