//! Coming back when the API server says: `Retry-After`, which it sends when it has more to do than it can.
//!
//! It says the same to everybody, so who comes back exactly then comes back with everybody else. A pause is therefore up to
//! twice as long, by chance.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::response::Parts;

use super::{ApiError, failure};

/// In what time the nodes of a cluster come back to a server that was gone: all have lost it at once.
pub(crate) const SPREAD: Duration = Duration::from_secs(10);
/// No pause is longer because of what a server says. What it wants to keep away for longer it can tell again.
const LONGEST: Duration = Duration::from_secs(60);

/// The error of an answer that says when to come back, if it does.
pub(crate) fn busy(head: &Parts, body: &[u8]) -> Option<ApiError> {
    // A date, which the header may also have, is not what API servers send.
    let seconds = head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    let (error, after) = (failure(head.status, body), Duration::from_secs(seconds).min(LONGEST));
    error.passes().then(|| ApiError::Busy { error: Box::new(error), after })
}

/// A number from 0 to 1 that differs from time to time and from process to process.
pub(crate) fn random() -> f64 {
    // Every `RandomState` has other keys.
    let hash = RandomState::new().hash_one(0);
    f64::from(u32::try_from(hash >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

impl ApiError {
    /// The pause after this error where one of that length was meant: not shorter than the server wants it.
    pub(crate) fn pause(&self, meant: Duration) -> Duration {
        match self {
            Self::Busy { after, .. } => meant.max(after.mul_f64(1.0 + random())),
            _ => meant,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::Response;

    use super::*;

    fn answer(status: u16, after: Option<&str>) -> Option<ApiError> {
        let mut answer = Response::builder().status(status);
        if let Some(after) = after {
            answer = answer.header(RETRY_AFTER, after);
        }
        let (head, ()) = answer.body(()).unwrap().into_parts();
        busy(&head, b"Too many requests, please try again later.")
    }

    #[test]
    fn a_pause_is_as_long_as_the_server_wants_it_and_not_the_same_for_all() {
        let busy = answer(429, Some("4")).unwrap();
        assert!(busy.passes() && busy.to_string().contains("429") && busy.to_string().contains("try again later"));
        let seconds = Duration::from_secs;
        let pauses: Vec<Duration> = (0..1000).map(|_| busy.pause(seconds(1))).collect();
        assert!(pauses.iter().all(|pause| (seconds(4)..=seconds(8)).contains(pause)), "{pauses:?}");
        let (first, second) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(*second - *first > seconds(3), "from {first:?} to {second:?}");
        assert_eq!(busy.pause(seconds(30)), seconds(30), "what is longer anyway stays so");
    }

    #[test]
    fn what_is_said_is_not_taken_to_extremes_and_not_from_everybody() {
        let longest = answer(503, Some("86400")).unwrap().pause(Duration::ZERO);
        assert!((LONGEST..=2 * LONGEST).contains(&longest), "{longest:?}");
        for (status, after) in [(429, None), (429, Some("soon")), (404, Some("1")), (200, Some("1"))] {
            assert!(answer(status, after).is_none(), "{status} {after:?}");
        }
    }
}
