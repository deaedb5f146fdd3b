//! The intervals and timeouts of a kubelet, in one place.

use std::time::Duration;

use drakkar_client::Backoff;
use drakkar_client::backoff::jittered;

/// The intervals and timeouts of a kubelet. The default has those of a real kubelet.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// The interval between comparisons of the sockets in the registry with the registered plugins.
    pub registration_interval: Duration,
    /// The timeout for a connection to a registration socket.
    pub dial_timeout: Duration,
    /// The timeout of `GetInfo`.
    pub get_info_timeout: Duration,
    /// The timeout of `NotifyRegistrationStatus`.
    pub notify_timeout: Duration,
    /// The delays after failed registrations of one socket path.
    pub registration_backoff: Backoff,
    /// The delays between attempts to connect to a registration or DRA socket.
    pub connect_backoff: Backoff,
    /// The timeout of a prepare or unprepare call, which is sent to the plugin.
    pub call_timeout: Duration,
    /// The delay before a pod is synced again without an event, and before a failed prepare is retried.
    pub pod_sync: JitteredDelay,
    /// The delay before a failed unprepare, or the creation of a container, is retried.
    pub pod_retry: JitteredDelay,
    /// The interval between searches for claims of deleted pods.
    pub orphan_interval: Duration,
    /// How long a driver may be disconnected before its slices are deleted.
    pub slice_grace: Duration,
    /// The delays after slices could not be deleted.
    pub slice_backoff: Backoff,
    /// The delay before a health stream that ended is opened again.
    pub health_reconnect_delay: Duration,
    /// The lease of a health report that has none.
    pub health_lease: Duration,
    /// The delays between the exit of a container and its restart; the first restart has none.
    pub container_backoff: Backoff,
    /// The time that a container must run before its restart backoff is reset.
    pub container_backoff_reset: Duration,
    /// The delays after failed requests to the API server.
    pub api_backoff: Backoff,
}

impl Default for Timing {
    fn default() -> Self {
        let millis = Duration::from_millis;
        let secs = Duration::from_secs;
        Self {
            registration_interval: secs(1),
            dial_timeout: secs(10),
            get_info_timeout: secs(1),
            notify_timeout: secs(5),
            registration_backoff: Backoff::new(millis(500), secs(122)).with_jitter(1.0, 1.0),
            connect_backoff: Backoff::new(secs(1), secs(120)).with_factor(1.6).with_jitter(1.0, 1.2),
            call_timeout: secs(45),
            pod_sync: JitteredDelay { min: secs(60), jitter: 0.5 },
            pod_retry: JitteredDelay { min: secs(10), jitter: 0.5 },
            orphan_interval: secs(60),
            slice_grace: secs(30),
            slice_backoff: Backoff::new(secs(1), secs(300)).with_jitter(1.0, 1.2),
            health_reconnect_delay: secs(5),
            health_lease: secs(30),
            container_backoff: Backoff::new(secs(10), secs(300)).with_jitter(1.0, 1.0),
            container_backoff_reset: secs(600),
            api_backoff: Backoff::new(millis(800), secs(30)).with_jitter(1.0, 1.5),
        }
    }
}

impl Timing {
    /// Returns the timing for tests: timeouts and the default lease are the real ones, intervals and delays are short.
    pub fn fast() -> Self {
        let millis = Duration::from_millis;
        let soon = |max| Backoff::new(millis(20), millis(max)).with_jitter(1.0, 1.2);
        Self {
            registration_interval: millis(20),
            registration_backoff: soon(500),
            connect_backoff: soon(200),
            pod_sync: JitteredDelay { min: millis(150), jitter: 0.5 },
            pod_retry: JitteredDelay { min: millis(50), jitter: 0.5 },
            orphan_interval: millis(100),
            slice_grace: millis(600),
            slice_backoff: soon(500),
            health_reconnect_delay: millis(100),
            container_backoff: soon(500),
            api_backoff: soon(500),
            ..Self::default()
        }
    }
}

/// A delay with random jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JitteredDelay {
    /// The shortest delay.
    pub min: Duration,
    /// The largest part of [`min`](Self::min) that is added; 0.5 is half.
    pub jitter: f64,
}

impl JitteredDelay {
    pub(super) fn pick(self) -> Duration {
        jittered(self.min, 1.0..=1.0 + self.jitter.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_registration_is_retried_after_half_a_second_doubling_up_to_122_seconds() {
        let mut retry = Timing::default().registration_backoff.retry();
        let seconds: Vec<f64> = std::iter::repeat_with(|| retry.next_delay().as_secs_f64()).take(11).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0]);
        retry.reset();
        assert_eq!(retry.next_delay(), Duration::from_millis(500));
    }

    #[test]
    fn a_failed_prepare_is_retried_after_60_to_90_seconds_and_a_failed_unprepare_after_10_to_15() {
        let timing = Timing::default();
        for _ in 0..100 {
            assert!((60.0..90.0).contains(&timing.pod_sync.pick().as_secs_f64()));
            assert!((10.0..15.0).contains(&timing.pod_retry.pick().as_secs_f64()));
        }
    }

    #[test]
    fn fast_timing_has_shorter_delays_but_the_same_timeouts() {
        let real = Timing::default();
        let fast = Timing::fast();
        let timeouts = |timing: &Timing| {
            [
                timing.dial_timeout,
                timing.get_info_timeout,
                timing.notify_timeout,
                timing.call_timeout,
                timing.health_lease,
            ]
        };
        assert_eq!(timeouts(&real), timeouts(&fast));
        assert_eq!(timeouts(&real).map(|timeout| timeout.as_secs()), [10, 1, 5, 45, 30]);
        assert!(fast.slice_grace < real.slice_grace);
    }
}
