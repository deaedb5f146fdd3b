//! Saves system calls when time limits are set.
//!
//! A new timer that is earlier than all others wakes the runtime's driver, which may be asleep until a later one: that costs a
//! write to a descriptor and a wait that returns at once. The time limit of a request usually is the only timer of a plugin, so
//! every request would pay for that. It does not while there is an earlier timer, so one is kept while requests are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Shorter than any time limit of a request.
const EARLY: Duration = Duration::from_secs(5);

/// A timer that is earlier than the time limits of all requests. Holds whether it is set.
#[derive(Debug, Clone, Default)]
pub(super) struct EarlyTimer(Arc<AtomicBool>);

impl EarlyTimer {
    /// Sets the timer, unless it is set. Must be called within a runtime.
    pub(super) fn ensure_set(&self) {
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

    /// Otherwise sleeping tasks would pile up.
    #[tokio::test(start_paused = true)]
    async fn there_is_one_timer_while_it_is_needed_and_none_afterwards() {
        let timer = EarlyTimer::default();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for _ in 0..100 {
            timer.ensure_set();
        }
        assert_eq!(tasks(), before + 1);
        tokio::time::sleep(2 * EARLY).await;
        assert_eq!(tasks(), before);
        timer.ensure_set();
        assert_eq!(tasks(), before + 1);
    }
}
