//! Says in the log that the driver still waits for a kubelet.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use drakkar_client::Backoff;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::RegistrationStatus;

/// The intervals of the lines.
const REMINDERS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300)).with_jitter(1.0, 1.0);

/// Logs in growing intervals that no kubelet has come to the registration socket, until one does.
pub(crate) async fn log_waiting(status: watch::Receiver<RegistrationStatus>, socket: PathBuf) {
    remind(status, |waited| {
        let socket = socket.display();
        tracing::info!(seconds = waited.as_secs(), "still waiting for the kubelet to come to {socket}");
    })
    .await;
}

/// Calls a function in growing intervals, with the time since the first call of this one, until the kubelet has reported a
/// status or the registration service ends.
async fn remind(mut status: watch::Receiver<RegistrationStatus>, mut say: impl FnMut(Duration)) {
    let started = Instant::now();
    let mut intervals = REMINDERS.retry();
    let mut reported = pin!(status.wait_for(|status| *status != RegistrationStatus::Waiting));
    loop {
        tokio::select! {
            _ = &mut reported => return,
            () = sleep(intervals.next_delay()) => say(started.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_driver_without_a_kubelet_says_so_in_growing_intervals_until_one_comes() {
        let status = watch::Sender::new(RegistrationStatus::Waiting);
        let mut waited = Vec::new();
        let reminding = remind(status.subscribe(), |time| waited.push(time.as_secs()));
        let kubelet = async {
            sleep(Duration::from_secs(100)).await;
            status.send_replace(RegistrationStatus::Registered);
        };
        let ((), ()) = tokio::join!(reminding, kubelet);
        assert_eq!(waited, [10, 30, 70], "and nothing after 100 s, when it is registered");
    }
}
