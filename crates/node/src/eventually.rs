//! Waiting in tests for what comes about by itself.

use std::time::Duration;

use tokio::time::Instant;

/// How long [`assert_eventually!`](crate::assert_eventually) waits if it is not told: far longer than anything on an
/// embedded node takes.
const PATIENCE: Duration = Duration::from_secs(30);
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

/// Asserts that something becomes true, within 30 seconds or what `within` says. The condition may `.await`.
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
        let patience = $crate::Patience::default();
        while !$condition {
            if let Err(waited) = patience.pause().await {
                panic!("not so after {waited:?}: {}", format_args!($($message)+));
            }
        }
    }};
}
