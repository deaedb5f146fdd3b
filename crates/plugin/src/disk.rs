//! Where file work runs: right where it is asked for while the disk answers at once, and on a thread that may wait when it
//! does not.
//!
//! Nothing on the way of a call syncs, so the files of a claim are a few system calls into the page cache, which take less
//! time than waking another thread and being woken by it. A disk that is in trouble can hold any of these calls up for
//! seconds, though, and with it everything else on the runtime. So the time is watched: after a piece of work that waited for
//! long, the next ones go to the runtime's threads for blocking work, until the disk has had time to recover. Work that only
//! took long because others had the processor has not waited, and says nothing of the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::driver::Panicked;

/// File work of one claim that waits and takes longer than this is slow: a hundred times what it needs on a disk that is well.
const SLOW: Duration = Duration::from_millis(5);
/// How long the disk is not trusted after that.
const DISTRUST: Duration = Duration::from_secs(2);

/// Runs file work.
#[derive(Debug)]
pub(crate) struct Disk {
    since: Instant,
    /// Until when it is not trusted, in milliseconds after `since`.
    distrusted_until: AtomicU64,
}

/// File work did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("file work of the claim panicked: {0}")]
    Panicked(#[source] Panicked),
    #[error("file work of the claim: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Default for Disk {
    fn default() -> Self {
        Self { since: Instant::now(), distrusted_until: AtomicU64::new(0) }
    }
}

impl Disk {
    /// Runs work to its end, also if the caller goes away meanwhile.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DiskError> {
        let timed = move || {
            let (begun, waits) = (Instant::now(), waits());
            let done =
                catch_unwind(AssertUnwindSafe(work)).map_err(|panic| DiskError::Panicked(Panicked::from(&*panic)));
            let took = begun.elapsed();
            (done, (took > SLOW && self::waits() != waits).then_some(took))
        };
        let (done, waited) =
            if self.is_trusted(Instant::now()) { timed() } else { tokio::task::spawn_blocking(timed).await? };
        if let Some(took) = waited {
            self.distrust(took);
        }
        // Many claims in one call do not keep everybody else waiting.
        tokio::task::consume_budget().await;
        done
    }

    fn is_trusted(&self, now: Instant) -> bool {
        self.millis(now) >= self.distrusted_until.load(Ordering::Relaxed)
    }

    fn distrust(&self, took: Duration) {
        let now = Instant::now();
        if self.is_trusted(now) {
            let millis = took.as_millis();
            tracing::debug!(millis, "file work had to wait: for a while it runs on other threads");
        }
        self.distrusted_until.fetch_max(self.millis(now + DISTRUST), Ordering::Relaxed);
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from((at - self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

/// How often this thread has waited for something. The call cannot fail on Linux; if it did, nothing would be seen to wait.
fn waits() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::thread;

    use super::*;

    /// While the disk is well, no other thread is asked; after a slow piece of work the next one does not hold the runtime up.
    #[tokio::test]
    async fn slow_work_moves_to_other_threads() {
        let (disk, here) = (Disk::default(), thread::current().id());
        assert_eq!(disk.run(|| thread::current().id()).await.unwrap(), here);
        // Not a wait for something: work that takes its time.
        disk.run(|| thread::sleep(SLOW * 2)).await.unwrap();
        assert_ne!(disk.run(|| thread::current().id()).await.unwrap(), here);

        disk.distrusted_until.store(0, Ordering::Relaxed);
        assert_eq!(disk.run(|| thread::current().id()).await.unwrap(), here, "it is trusted again");
    }

    /// Others may have the processor for long. That is no reason to distrust the disk.
    #[tokio::test]
    async fn work_that_only_takes_long_stays() {
        let (disk, here) = (Disk::default(), thread::current().id());
        let spin = || {
            let begun = Instant::now();
            while begun.elapsed() < SLOW * 2 {
                std::hint::spin_loop();
            }
        };
        disk.run(spin).await.unwrap();
        assert_eq!(disk.run(|| thread::current().id()).await.unwrap(), here);
    }

    /// A panic in file work is an error, wherever it runs.
    #[tokio::test]
    async fn a_panic_is_an_error() {
        let disk = Disk::default();
        for _ in 0..2 {
            let error = disk.run(|| panic!("a bad sector")).await.unwrap_err().to_string();
            assert!(error.contains("panicked"), "{error}");
            disk.distrusted_until.store(u64::MAX, Ordering::Relaxed);
        }
    }
}
