//! A plugin: its identity, what it has subscribed to, and calls to it, with the faults and in the log.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use drakkar_nri_api::v1alpha1::{Container, Empty, Event, PodSandbox, StateChangeEvent, StopPodSandboxRequest};
use drakkar_nri_api::v1alpha1::{PostCreateContainerRequest, UpdateContainersRequest};
use tokio::time::{Instant, sleep_until};

use super::connection::{CallError, Connection, UNIMPLEMENTED};
use super::faults::{Call, Fault, Faults};
use super::log::{Answer, Entry, Log};

/// A plugin that is connected, or was.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) connection: Arc<Connection>,
    name: OnceLock<String>,
    /// A bit for each event that it gets.
    events: AtomicI32,
    /// Whether it gets events.
    active: AtomicBool,
    /// Whether it has only `StateChange`.
    state_change_only: AtomicBool,
    request_timeout: Duration,
    log: Arc<Log>,
    faults: Arc<Faults>,
}

/// What a call is about.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Subject<'a> {
    pub(super) pod: Option<&'a PodSandbox>,
    pub(super) container: Option<&'a Container>,
}

impl Plugin {
    pub(super) fn new(
        connection: Arc<Connection>,
        request_timeout: Duration,
        log: Arc<Log>,
        faults: Arc<Faults>,
        state_change_only: bool,
    ) -> Self {
        Self {
            connection,
            name: OnceLock::new(),
            events: AtomicI32::new(0),
            active: AtomicBool::new(false),
            state_change_only: AtomicBool::new(state_change_only),
            request_timeout,
            log,
            faults,
        }
    }

    /// Returns index and name, as in `10-example`; empty until it has registered.
    pub(super) fn name(&self) -> &str {
        self.name.get().map(String::as_str).unwrap_or_default()
    }

    /// Sets index and name; returns whether it had none.
    pub(super) fn register(&self, index: &str, name: &str) -> bool {
        self.name.set(format!("{index}-{name}")).is_ok()
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) && !self.connection.is_closed()
    }

    pub(super) fn activate(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    pub(super) fn events(&self) -> i32 {
        self.events.load(Ordering::Relaxed)
    }

    pub(super) fn subscribe(&self, events: i32) {
        self.events.store(events, Ordering::Relaxed);
    }

    pub(super) fn is_subscribed(&self, event: Event) -> bool {
        self.events() >> (event as i32 - 1) & 1 == 1
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// Closes the connection and logs why, unless it is closed already.
    pub(super) fn close(&self, reason: &str) {
        if !self.connection.is_closed() {
            self.connection.close(reason);
        }
    }

    /// Logs the end of the connection.
    pub(super) fn log_end(&self, reason: String) {
        tracing::info!(plugin = self.name(), reason, "nri: connection closed");
        self.log.add(self.entry(None, false, Subject::default(), Answer::Closed(reason)));
    }

    fn entry(&self, call: Option<Call>, state_change: bool, subject: Subject<'_>, answer: Answer) -> Entry {
        let pod = subject.pod;
        Entry {
            plugin: self.name().to_owned(),
            call,
            state_change,
            pod: pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default(),
            sandbox: pod.map(|pod| pod.id.clone()).unwrap_or_default(),
            container: subject.container.map(|container| container.name.clone()).unwrap_or_default(),
            answer,
        }
    }

    /// Makes a call of its own kind. `None` if a fault keeps it from being sent.
    pub(super) async fn call<R: prost::Message + Default>(
        &self,
        call: Call,
        message: &impl prost::Message,
        subject: Subject<'_>,
        deadline: Instant,
    ) -> Result<Option<R>, CallError> {
        self.call_as(call, call.name(), message, subject, deadline).await
    }

    /// Sends an event whose answer is empty: as a call of its own, or as `StateChange` if the runtime or the plugin is older.
    pub(super) async fn send_event(&self, event: Event, subject: Subject<'_>) -> Result<(), CallError> {
        let deadline = self.deadline();
        let pod = subject.pod.cloned();
        let container = subject.container.cloned();
        if !self.state_change_only.load(Ordering::Relaxed) {
            // All requests about pods have the same fields, and so have all about containers.
            let sent: Result<Option<Empty>, _> = match &container {
                None => self.call(event.into(), &StopPodSandboxRequest { pod: pod.clone() }, subject, deadline).await,
                Some(container) => {
                    let container = Some(container.clone());
                    let message = PostCreateContainerRequest { pod: pod.clone(), container };
                    self.call(event.into(), &message, subject, deadline).await
                }
            };
            match sent {
                Err(CallError::Status { code: UNIMPLEMENTED, .. }) => {
                    tracing::warn!(plugin = self.name(), ?event, "nri: plugin has no such call, using StateChange");
                    self.state_change_only.store(true, Ordering::Relaxed);
                }
                sent => return sent.map(drop),
            }
        }
        let message = StateChangeEvent { event: event as i32, pod, container };
        let sent: Result<Option<Empty>, _> =
            self.call_as(event.into(), "StateChange", &message, subject, self.deadline()).await;
        sent.map(drop)
    }

    async fn call_as<R: prost::Message + Default>(
        &self,
        call: Call,
        method: &str,
        message: &impl prost::Message,
        subject: Subject<'_>,
        deadline: Instant,
    ) -> Result<Option<R>, CallError> {
        let id = self.log.add(self.entry(Some(call), method == "StateChange", subject, Answer::Pending));
        let mut cut = false;
        match self.faults.take(call) {
            None => {}
            Some(Fault::NotSent) => {
                self.log.answer(id, Answer::NotSent);
                return Ok(None);
            }
            Some(Fault::CutBefore) => self.connection.close("cut by the test"),
            Some(Fault::CutDuring) => cut = true,
            Some(Fault::Late(delay)) => {
                let until = Instant::now() + delay;
                if until >= deadline {
                    sleep_until(deadline).await;
                    self.connection.close(format!("{method} was delayed by the test beyond its timeout"));
                } else {
                    sleep_until(until).await;
                }
            }
        }
        let sent = || {
            if cut {
                self.connection.close("cut by the test");
            }
        };
        let outcome = self.connection.call(method, message, deadline, sent).await;
        self.log.answer(
            id,
            match &outcome {
                Ok(_) => Answer::Success,
                Err(CallError::Status { code, message }) => Answer::Error { code: *code, message: message.clone() },
                Err(CallError::Closed(reason)) => Answer::Closed(reason.clone()),
            },
        );
        outcome.map(Some)
    }
}

/// Updates of containers that a plugin has requested.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RequestedUpdates {
    /// Index and name of the plugin, as in `10-example`.
    pub plugin: String,
    /// The call in whose answer they were; `None` if the plugin called `UpdateContainers`.
    pub call: Option<Call>,
    /// The updates.
    pub updates: UpdateContainersRequest,
}
