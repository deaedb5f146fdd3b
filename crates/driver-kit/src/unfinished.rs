//! Claims that could not be taken back, tried again without waiting for the kubelet.

use std::sync::{Arc, Mutex, PoisonError};

use drakkar_client::ClaimRef;
use drakkar_metadata::name::ClaimUid;
use tokio::task::JoinHandle;

use crate::logged::Logged;

/// What became of unfinished claims in one attempt.
#[derive(Debug, Default)]
pub struct Attempt {
    /// The claims that are taken back.
    pub taken_back: Vec<ClaimRef>,
    /// The claims that are not.
    pub failed: Vec<Failure>,
}

/// A claim that could not be taken back.
#[derive(Debug)]
pub struct Failure {
    /// The claim.
    pub claim: ClaimRef,
    /// The error.
    pub error: String,
    /// The error without what differs from one attempt to the next: it is logged when this changes.
    pub reason: String,
}

/// Attempts to take back claims, one at a time.
#[derive(Debug, Default)]
pub struct Unfinished {
    log: Arc<Mutex<AttemptLog>>,
    attempt: Option<JoinHandle<()>>,
}

impl Unfinished {
    /// Begins an attempt on a thread that may block, unless the last one is still going on.
    pub fn retry(&mut self, attempt: impl FnOnce() -> Attempt + Send + 'static) {
        if self.attempt.as_ref().is_some_and(|attempt| !attempt.is_finished()) {
            return;
        }
        let log = self.log.clone();
        self.attempt = Some(tokio::task::spawn_blocking(move || {
            let outcome = attempt();
            log.lock().unwrap_or_else(PoisonError::into_inner).log(&outcome);
        }));
    }
}

/// What was logged of each claim, so that it is logged once.
#[derive(Debug, Default)]
struct AttemptLog {
    reasons: Logged<ClaimUid>,
}

impl AttemptLog {
    /// Logs what is new. Returns how many lines that were.
    fn log(&mut self, attempt: &Attempt) -> usize {
        for claim in &attempt.taken_back {
            tracing::info!(%claim, "unfinished claim taken back");
        }
        let mut lines = attempt.taken_back.len();
        self.reasons.retain(|uid| attempt.failed.iter().any(|failure| failure.claim.uid == *uid));
        for Failure { claim, error, reason } in &attempt.failed {
            if self.reasons.is_new(claim.uid.clone(), reason) {
                tracing::warn!(%claim, %error, "unfinished claim cannot be taken back yet, trying again");
                lines += 1;
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    fn claim() -> ClaimRef {
        ClaimRef {
            namespace: "default".parse().unwrap(),
            name: "a".parse().unwrap(),
            uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
        }
    }

    fn failed(error: &str, reason: &str) -> Attempt {
        let failure = Failure { claim: claim(), error: error.to_owned(), reason: reason.to_owned() };
        Attempt { failed: vec![failure], ..Attempt::default() }
    }

    #[test]
    fn a_failure_is_logged_once_until_it_changes() {
        let mut log = AttemptLog::default();
        let lines = [
            log.log(&failed("hung for 1 s", "hung")),
            log.log(&failed("hung for 11 s", "hung")),
            log.log(&failed("disk full", "disk full")),
            log.log(&failed("disk full", "disk full")),
            log.log(&Attempt { taken_back: vec![claim()], ..Attempt::default() }),
            log.log(&Attempt::default()),
            log.log(&failed("disk full", "disk full")),
        ];
        assert_eq!(lines, [1, 0, 1, 0, 1, 0, 1]);
    }

    #[tokio::test]
    async fn there_is_one_attempt_at_a_time() {
        let mut unfinished = Unfinished::default();
        let (release, released) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let attempt = |begun: mpsc::Sender<u32>, number| {
            move || {
                begun.send(number).unwrap();
                Attempt::default()
            }
        };
        let first = attempt(begun.clone(), 1);
        unfinished.retry(move || {
            let _ = released.recv();
            first()
        });
        unfinished.retry(attempt(begun.clone(), 2));
        release.send(()).unwrap();
        assert_eq!(begins.recv_timeout(Duration::from_secs(60)), Ok(1));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !unfinished.attempt.as_ref().unwrap().is_finished() {
            assert!(Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
        unfinished.retry(attempt(begun, 3));
        assert_eq!(begins.recv_timeout(Duration::from_secs(60)), Ok(3));
    }
}
