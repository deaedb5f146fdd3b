//! Time limits that are set without a system call.
//!
//! A timer that is earlier than all others wakes the runtime, which may be asleep until a later one: a write to a descriptor,
//! and a wait that returns at once. The time limit of a request is mostly the only timer of a driver, so every request would
//! pay for that. While there is an earlier timer none does. So there is one for as long as requests come, and none after that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Less than any time limit of a request.
const EARLY: Duration = Duration::from_secs(5);

/// Whether there is such a timer.
#[derive(Debug, Clone, Default)]
pub(super) struct EarlyTimer(Arc<AtomicBool>);

impl EarlyTimer {
    /// Sees to it that there is one. To be called within a runtime.
    pub(super) fn keep(&self) {
        if self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_set = self.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(EARLY).await;
            is_set.store(false, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleepers that nobody needs any more would pile up.
    #[tokio::test(start_paused = true)]
    async fn there_is_one_while_it_is_needed_and_none_after_that() {
        let (timer, tasks) = (EarlyTimer::default(), || tokio::runtime::Handle::current().metrics().num_alive_tasks());
        let before = tasks();
        for _ in 0..100 {
            timer.keep();
        }
        assert_eq!(tasks(), before + 1);
        tokio::time::sleep(2 * EARLY).await;
        assert_eq!(tasks(), before);
        timer.keep();
        assert_eq!(tasks(), before + 1);
    }
}
