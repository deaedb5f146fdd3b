//! The peers of a hub in these tests: a monitor on a lead, and streams.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::health::table::Told;
use crate::health::*;

/// How a monitor shall end.
pub(super) enum Order {
    Return,
    Fail(&'static str),
    Panic(&'static str),
}

/// A monitor that runs.
pub(super) struct Monitor {
    pub(super) reporter: HealthReporter,
    order: oneshot::Sender<Order>,
}

impl Monitor {
    pub(super) fn end(self, order: Order) {
        assert!(self.order.send(order).is_ok(), "the monitor has ended already");
    }

    pub(super) async fn report(&self, device: DeviceHealth) {
        self.reporter.report([device]).await;
    }
}

/// A hub, and its driver.
pub(super) struct Double {
    pub(super) hub: Arc<HealthHub>,
    started: mpsc::UnboundedReceiver<Monitor>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Double {
    pub(super) fn new() -> Self {
        let (start, started) = mpsc::unbounded_channel();
        let errors = Arc::new(Mutex::new(vec![]));
        let told = errors.clone();
        let hub = HealthHub::new(
            move |reporter| {
                let (order, orders) = oneshot::channel();
                start.send(Monitor { reporter, order }).ok();
                async {
                    match orders.await {
                        Ok(Order::Return) => Ok(()),
                        Ok(Order::Fail(error)) => Err(error.into()),
                        Ok(Order::Panic(message)) => panic!("{message}"),
                        Err(_) => std::future::pending().await,
                    }
                }
                .boxed()
            },
            move |error| {
                assert!(!error.is_fatal());
                told.lock().unwrap().push(error.to_string());
            },
        );
        Self { hub: Arc::new(hub), started, errors }
    }

    /// A hub with an open stream, and the monitor that it started.
    pub(super) async fn running() -> (Self, Subscription, Monitor) {
        let mut double = Self::new();
        let stream = double.hub.subscribe().unwrap();
        let monitor = double.monitor().await;
        (double, stream, monitor)
    }

    /// The next monitor that is started.
    pub(super) async fn monitor(&mut self) -> Monitor {
        in_time(self.started.recv()).await.unwrap()
    }

    /// Whether a monitor was started that nobody asked for yet.
    pub(super) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// The errors that the driver was told since the last call.
    pub(super) fn errors(&self) -> Vec<String> {
        std::mem::take(&mut self.errors.lock().unwrap())
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The next message of a stream, as `device health message`.
pub(super) async fn next(stream: &mut Subscription) -> Vec<String> {
    in_time(stream.next()).await.unwrap().expect("the stream has ended").iter().map(text).collect()
}

/// What a stream has to say now.
pub(super) async fn now(stream: &mut Subscription) -> Vec<String> {
    settle().await;
    let told = stream.next().now_or_never().map(|told| told.unwrap().expect("the stream has ended"));
    told.unwrap_or_default().iter().map(text).collect()
}

pub(super) fn text(told: &Told) -> String {
    format!("{} {:?} {}", told.device_name, told.health, told.message).trim_end().to_owned()
}

/// Lets all tasks do what they can, where the time is paused: it goes on only when nobody has anything else to do.
pub(super) async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

/// Fails a test that would hang. Where the time is paused, it takes no time.
pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(seconds(60), future).await.expect("it took too long")
}

/// Waits for a condition that nothing tells of.
pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(seconds(60), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
