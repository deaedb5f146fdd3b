//! Test doubles: a scripted monitor, and readers of streams.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::health::table::DeviceState;
use crate::health::*;

/// How a monitor is to end.
pub(super) enum Exit {
    Return,
    Fail(&'static str),
    Panic(&'static str),
}

/// A running monitor.
pub(super) struct Monitor {
    pub(super) reporter: HealthReporter,
    exit: oneshot::Sender<Exit>,
}

impl Monitor {
    pub(super) fn end(self, exit: Exit) {
        assert!(self.exit.send(exit).is_ok(), "the monitor has already ended");
    }

    pub(super) async fn report(&self, device: DeviceHealth) {
        self.reporter.report([device]).await;
    }
}

/// A hub and the driver that it belongs to.
pub(super) struct Double {
    pub(super) hub: Arc<HealthHub>,
    started: mpsc::UnboundedReceiver<Monitor>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Double {
    pub(super) fn new() -> Self {
        let (start, started) = mpsc::unbounded_channel();
        let errors = Arc::new(Mutex::new(vec![]));
        let reported = errors.clone();
        let hub = HealthHub::new(
            move |reporter| {
                let (exit, exits) = oneshot::channel();
                start.send(Monitor { reporter, exit }).ok();
                async {
                    match exits.await {
                        Ok(Exit::Return) => Ok(()),
                        Ok(Exit::Fail(error)) => Err(error.into()),
                        Ok(Exit::Panic(message)) => panic!("{message}"),
                        Err(_) => std::future::pending().await,
                    }
                }
                .boxed()
            },
            move |error| {
                assert!(!error.is_fatal());
                reported.lock().unwrap().push(error.to_string());
            },
        );
        Self { hub: Arc::new(hub), started, errors }
    }

    /// Creates a hub with an open stream, and returns the monitor that it started.
    pub(super) async fn running() -> (Self, Subscription, Monitor) {
        let mut double = Self::new();
        let stream = double.hub.subscribe().unwrap();
        let monitor = double.monitor().await;
        (double, stream, monitor)
    }

    /// Waits for the next start of the monitor.
    pub(super) async fn monitor(&mut self) -> Monitor {
        in_time(self.started.recv()).await.unwrap()
    }

    /// Whether a monitor was started that [`Self::monitor`] has not returned.
    pub(super) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Returns the errors that the driver got since the last call.
    pub(super) fn errors(&self) -> Vec<String> {
        std::mem::take(&mut self.errors.lock().unwrap())
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Waits for the next message of a stream and formats its devices as `device health message`.
pub(super) async fn next(stream: &mut Subscription) -> Vec<String> {
    in_time(stream.next()).await.unwrap().expect("the stream has ended").iter().map(text).collect()
}

/// Returns the pending message of a stream, if any, like [`next`].
pub(super) async fn pending(stream: &mut Subscription) -> Vec<String> {
    run_ready_tasks().await;
    let states = stream.next().now_or_never().map(|states| states.unwrap().expect("the stream has ended"));
    states.unwrap_or_default().iter().map(text).collect()
}

pub(super) fn text(state: &DeviceState) -> String {
    format!("{} {:?} {}", state.device_name, state.health, state.message).trim_end().to_owned()
}

/// Runs all tasks until they are idle. With paused time the clock advances only when all tasks are.
pub(super) async fn run_ready_tasks() {
    sleep(Duration::from_millis(1)).await;
}

/// Fails a test instead of letting it hang. With paused time this takes no time.
pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(seconds(60), future).await.expect("it took too long")
}

/// Polls a condition until it holds.
pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(seconds(60), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
