//! Pauses between tries that fail: longer each time, and never the same for all who wait.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(20);
/// No pause is longer, but for its random part.
const LONGEST: Duration = Duration::from_secs(5);

/// How often something failed, and so how long to wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Something worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next pause, lengthened by up to half of it.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = (self.failures + 1).min(16);
        pause + pause.mul_f64(f64::from(u32::try_from(random() >> 40).unwrap_or(0)) / f64::from(1_u32 << 25))
    }

    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

/// A number that nobody can tell before; good for names, not for secrets.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random UUID, version 4.
pub(super) fn uuid() -> String {
    let bits = (u128::from(random()) << 64) | u128::from(random());
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::{Backoff, LONGEST, uuid};

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        let pauses: Vec<_> = (0..20).map(|_| backoff.next()).collect();
        assert!(first < pauses[2] && pauses[2] < pauses[6]);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST.mul_f64(1.5)));
        backoff.reset();
        assert!(backoff.next() < pauses[2]);
    }

    #[test]
    fn uuids_are_of_version_4_and_differ() {
        let (one, other) = (uuid(), uuid());
        assert_ne!(one, other);
        assert_eq!((one.len(), &one[14..15]), (36, "4"));
        assert!(matches!(&one[19..20], "8" | "9" | "a" | "b"), "{one}");
    }
}
