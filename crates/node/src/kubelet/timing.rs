//! How long this kubelet waits for what: every interval and deadline of a real one, in one place.

use std::time::Duration;

use drakkar_client::Backoff;
use drakkar_client::backoff::jittered;

/// The intervals and deadlines of a kubelet. The default has those of a real kubelet.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// How often the sockets in the registry are compared with what is registered.
    pub registration_loop: Duration,
    /// How long a registration socket may take to accept a connection.
    pub dial_deadline: Duration,
    /// How long `GetInfo` may take.
    pub get_info_deadline: Duration,
    /// How long `NotifyRegistrationStatus` may take.
    pub notify_deadline: Duration,
    /// The pauses after failed registrations of one socket path.
    pub registration_backoff: Backoff,
    /// The pauses between tries to connect to a socket that refuses, of either kind.
    pub connect_backoff: Backoff,
    /// How long a prepare or unprepare call may take; the plugin is told.
    pub call_deadline: Duration,
    /// When a pod is looked at again though nothing happened, and when a failed prepare is tried again.
    pub pod_sync: Jittered,
    /// When a failed unprepare, or a container that could not be created, is tried again.
    pub pod_retry: Jittered,
    /// How often claims of pods that are gone are looked for.
    pub orphan_loop: Duration,
    /// How long a driver may be without a connection before its slices are deleted.
    pub slice_grace: Duration,
    /// The pauses after slices could not be deleted.
    pub slice_backoff: Backoff,
    /// When a health stream that ended is opened again.
    pub health_reconnect: Duration,
    /// How long a health report holds that does not say it.
    pub health_lease: Duration,
    /// The pauses between an exit of a container and its restart; the first restart has none.
    pub container_backoff: Backoff,
    /// A container that ran for this long starts without a pause again.
    pub container_backoff_reset: Duration,
    /// The pauses after the API server could not be reached.
    pub api_backoff: Backoff,
}

impl Default for Timing {
    fn default() -> Self {
        let (millis, secs) = (Duration::from_millis, Duration::from_secs);
        Self {
            registration_loop: secs(1),
            dial_deadline: secs(10),
            get_info_deadline: secs(1),
            notify_deadline: secs(5),
            registration_backoff: Backoff::new(millis(500), secs(122)).with_jitter(1.0, 1.0),
            connect_backoff: Backoff::new(secs(1), secs(120)).with_factor(1.6).with_jitter(1.0, 1.2),
            call_deadline: secs(45),
            pod_sync: Jittered { least: secs(60), jitter: 0.5 },
            pod_retry: Jittered { least: secs(10), jitter: 0.5 },
            orphan_loop: secs(60),
            slice_grace: secs(30),
            slice_backoff: Backoff::new(secs(1), secs(300)).with_jitter(1.0, 1.2),
            health_reconnect: secs(5),
            health_lease: secs(30),
            container_backoff: Backoff::new(secs(10), secs(300)).with_jitter(1.0, 1.0),
            container_backoff_reset: secs(600),
            api_backoff: Backoff::new(millis(800), secs(30)).with_jitter(1.0, 1.5),
        }
    }
}

impl Timing {
    /// For tests: deadlines and the default lease are the real ones, everything that is merely waited for comes soon.
    pub fn fast() -> Self {
        let millis = Duration::from_millis;
        let soon = |max| Backoff::new(millis(20), millis(max)).with_jitter(1.0, 1.2);
        Self {
            registration_loop: millis(20),
            registration_backoff: soon(500),
            connect_backoff: soon(200),
            pod_sync: Jittered { least: millis(150), jitter: 0.5 },
            pod_retry: Jittered { least: millis(50), jitter: 0.5 },
            orphan_loop: millis(100),
            slice_grace: millis(600),
            slice_backoff: soon(500),
            health_reconnect: millis(100),
            container_backoff: soon(500),
            api_backoff: soon(500),
            ..Self::default()
        }
    }
}

/// A wait of at least so long, and of up to that part of it more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jittered {
    /// The shortest wait.
    pub least: Duration,
    /// How much of [`least`](Self::least) may be added; 0.5 is half.
    pub jitter: f64,
}

impl Jittered {
    pub(super) fn pick(self) -> Duration {
        jittered(self.least, 1.0..=1.0 + self.jitter.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_registration_is_tried_again_after_half_a_second_doubling_up_to_122_seconds() {
        let mut retry = Timing::default().registration_backoff.retry();
        let seconds: Vec<f64> = std::iter::repeat_with(|| retry.next_delay().as_secs_f64()).take(11).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0]);
        retry.reset();
        assert_eq!(retry.next_delay(), Duration::from_millis(500));
    }

    #[test]
    fn a_failed_prepare_is_tried_again_after_60_to_90_seconds_and_a_failed_unprepare_after_10_to_15() {
        let timing = Timing::default();
        for _ in 0..100 {
            assert!((60.0..90.0).contains(&timing.pod_sync.pick().as_secs_f64()));
            assert!((10.0..15.0).contains(&timing.pod_retry.pick().as_secs_f64()));
        }
    }

    #[test]
    fn tests_wait_less_but_have_the_same_deadlines() {
        let (real, fast) = (Timing::default(), Timing::fast());
        let deadlines = |timing: &Timing| {
            [
                timing.dial_deadline,
                timing.get_info_deadline,
                timing.notify_deadline,
                timing.call_deadline,
                timing.health_lease,
            ]
        };
        assert_eq!(deadlines(&real), deadlines(&fast));
        assert_eq!(deadlines(&real).map(|deadline| deadline.as_secs()), [10, 1, 5, 45, 30]);
        assert!(fast.slice_grace < real.slice_grace);
    }
}
