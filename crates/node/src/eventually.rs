//! Waiting in tests for what comes about by itself.

use std::time::Duration;

use tokio::time::Instant;

/// How long a node waits for a driver or an object: far longer than anything on an embedded node takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long [`assert_eventually!`](crate::assert_eventually) waits by default. Only a test that fails waits for so
/// long; on a busy machine one that passes can take far longer than usual.
const ASSERTION: Duration = Duration::from_secs(180);
/// How often it looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What is left of somebody's patience.
#[doc(hidden)]
#[derive(Debug)]
pub struct Patience {
    started: Instant,
    limit: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self::of(PATIENCE)
    }
}

impl Patience {
    /// Patience for so long.
    pub fn of(limit: Duration) -> Self {
        Self { started: Instant::now(), limit }
    }

    /// Patience of an assertion without one of its own.
    pub fn of_assertion() -> Self {
        Self::of(ASSERTION)
    }

    /// Pauses before the next look. If the patience is at its end, says how long it was.
    pub async fn pause(&self) -> Result<(), Duration> {
        let waited = self.started.elapsed();
        if waited >= self.limit {
            return Err(waited);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Asserts that something becomes true, within three minutes or what `within` says. The condition may `.await`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::{Duration, Instant};
///
/// let started = Instant::now();
/// drakkar_node::assert_eventually!(started.elapsed() > Duration::from_millis(20));
/// drakkar_node::assert_eventually!(within Duration::from_secs(5), started.elapsed().as_millis() > 30, "it is {started:?}");
/// # }
/// ```
#[macro_export]
macro_rules! assert_eventually {
    (within $limit:expr, $condition:expr $(,)?) => {
        $crate::assert_eventually!(within $limit, $condition, "{}", stringify!($condition))
    };
    (within $limit:expr, $condition:expr, $($message:tt)+) => {{
        let patience = $crate::Patience::of($limit);
        while !$condition {
            if let Err(waited) = patience.pause().await {
                panic!("not so after {waited:?}: {}", format_args!($($message)+));
            }
        }
    }};
    ($condition:expr $(,)?) => {
        $crate::assert_eventually!($condition, "{}", stringify!($condition))
    };
    ($condition:expr, $($message:tt)+) => {{
        let patience = $crate::Patience::of_assertion();
        while !$condition {
            if let Err(waited) = patience.pause().await {
                panic!("not so after {waited:?}: {}", format_args!($($message)+));
            }
        }
    }};
}
