//! Runs a handler and answers its call in time, whatever the handler does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use drakkar_nri_api::v1alpha1::{ConfigureResponse, SynchronizeResponse};
use prost::Message as _;
use tokio::task::JoinError;

use super::server::Shared;
use super::writer;
use crate::call::{Abandoned, Call};
use crate::counters::Ending;
use crate::error::{BoxError, ConnectionError};
use crate::event::{Event, Events};
use crate::handler::Answer;
use crate::request::Request;
use crate::runtime::Runtime;
use crate::slots::Slot;
use crate::status::{Code, Status, chain};
use crate::updater::IN_HANDLER;

/// What a handler returns; `None` if it was cancelled since the plugin was stopped.
type Handled = Result<Option<Result<Answer, BoxError>>, JoinError>;

/// What a call is about.
struct Subject {
    text: String,
    event: Option<Event>,
    is_synchronize: bool,
    started: Instant,
}

impl Shared {
    /// Runs the handler of a call in a task, and answers in another.
    pub(super) fn start(
        self: Arc<Self>,
        stream: u32,
        request: Request,
        budget: Duration,
        runtime: Arc<Runtime>,
        slot: Slot,
    ) {
        let subject = Subject {
            text: request.subject(),
            event: request.event(),
            is_synchronize: matches!(request, Request::Synchronize(..)),
            started: Instant::now(),
        };
        let context = &self.context;
        let call = Call::new(budget, runtime.clone(), context.updater.clone());
        let work = IN_HANDLER.scope((), context.handler.clone().handle(call.clone(), request));
        let cancelled = context.cancel_handlers.clone();
        // Dropped with the work, not with the answer.
        let work = context.handlers.spawn(async move {
            let _slot = slot;
            cancelled.run_until_cancelled(work).await
        });
        self.answers.clone().spawn(self.answer(stream, subject, call, runtime, work));
    }

    async fn answer(
        self: Arc<Self>,
        stream: u32,
        subject: Subject,
        call: Call,
        runtime: Arc<Runtime>,
        mut work: tokio::task::JoinHandle<Option<Result<Answer, BoxError>>>,
    ) {
        let handled = tokio::select! {
            // A handler that is done in time is not abandoned for the clock.
            biased;
            handled = &mut work => Some(handled),
            () = call.expires() => {
                call.abandon(Abandoned::Deadline);
                None
            }
            () = self.closed.cancelled() => {
                call.abandon(Abandoned::Disconnected);
                None
            }
        };
        let abandoned = call.abandonment();
        let result = match handled {
            Some(handled) => self.result(&subject, &runtime, handled),
            None => Err(self.late(&subject, call.budget())),
        };
        let ending = match (abandoned, &result) {
            (Some(Abandoned::Deadline), _) => Ending::Expired,
            (Some(Abandoned::Disconnected), _) => Ending::Disconnected,
            (None, Ok(_)) => Ending::Succeeded,
            (None, Err(_)) => Ending::Failed,
        };
        let elapsed = subject.started.elapsed();
        if let Some(event) = subject.event {
            self.context.metrics.record(event, ending, elapsed);
        }
        log(&subject, &result, ending, elapsed);
        if let Some(reason) = abandoned {
            self.context.handlers.spawn(log_late(subject.text.clone(), subject.started, reason, work));
        }
        if abandoned == Some(Abandoned::Disconnected) {
            return;
        }
        self.send(stream, &subject, result).await;
    }

    /// Sends the answer, and what follows from it.
    async fn send(&self, stream: u32, subject: &Subject, result: Result<Vec<u8>, Status>) {
        // An error would keep the runtime from ending the pod or container.
        let is_end = subject.event.is_some_and(Event::is_end);
        let answer = if is_end { Ok(result.unwrap_or_default()) } else { result };
        let failure = answer.as_ref().err().map(|status| status.message.clone());
        self.writer.send(writer::answer(stream, answer)).await;
        match failure {
            _ if !subject.is_synchronize => {}
            None => self.synchronized.notify_one(),
            // Runtimes before NRI 0.7 keep the connection and never send an event.
            Some(text) => {
                self.context.metrics.synchronize_failures.increment();
                self.writer.close(ConnectionError::Synchronize(text)).await;
            }
        }
    }

    /// Returns the payload of the answer, or what went wrong.
    fn result(&self, subject: &Subject, runtime: &Runtime, handled: Handled) -> Result<Vec<u8>, Status> {
        let fail = |code, reason: &str| Err(self.status(code, format_args!("{}: {reason}", subject.text)));
        match handled {
            Ok(Some(Ok(Answer::Payload(payload)))) => Ok(payload),
            Ok(Some(Ok(Answer::Updates(update)))) => Ok(SynchronizeResponse { update, more: false }.encode_to_vec()),
            Ok(Some(Ok(Answer::Events(events)))) => {
                let events = events & runtime.known_events();
                if events.is_empty() {
                    // Would subscribe to all events.
                    let reason = format!("{} {} knows none of the plugin's events", runtime.name, runtime.version);
                    return fail(Code::FAILED_PRECONDITION, &reason);
                }
                Ok(self.subscribe(events, runtime))
            }
            Ok(Some(Err(error))) => fail(Code::UNKNOWN, &chain(&*error)),
            Ok(None) => fail(Code::UNKNOWN, "the plugin was stopped"),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => fail(Code::INTERNAL, &format!("the plugin panicked: {}", panic_text(&*panic))),
                Err(_cancelled) => fail(Code::UNKNOWN, "the plugin was stopped"),
            },
        }
    }

    fn subscribe(&self, events: Events, runtime: &Runtime) -> Vec<u8> {
        self.mask.store(events.mask(), Ordering::Release);
        tracing::info!(
            plugin = self.context.name,
            runtime = runtime.name,
            version = runtime.version,
            nri = runtime.nri_version,
            mask = format!("{:#06x}", events.mask()),
            "NRI plugin configured"
        );
        ConfigureResponse { events: i32::from(events.mask()) }.encode_to_vec()
    }

    fn late(&self, subject: &Subject, budget: Duration) -> Status {
        let text = format_args!(
            "{} took longer than {budget:?}, 75 % of the time that the runtime gives a plugin",
            subject.text
        );
        self.status(Code::DEADLINE_EXCEEDED, text)
    }

    fn status(&self, code: Code, text: std::fmt::Arguments<'_>) -> Status {
        Status::new(code, format!("NRI plugin {}-{}: {text}", self.context.index, self.context.name))
    }
}

fn log(subject: &Subject, result: &Result<Vec<u8>, Status>, ending: Ending, elapsed: Duration) {
    let call = &subject.text;
    match (ending, result) {
        (Ending::Disconnected, _) => tracing::warn!(call, ?elapsed, "connection lost before the answer"),
        (_, Ok(_)) => tracing::debug!(call, ?elapsed, "call answered"),
        (_, Err(status)) => tracing::warn!(call, ?elapsed, error = status.message, "call failed"),
    }
}

/// Logs what became of a handler whose caller waits no longer.
async fn log_late(
    call: String,
    started: Instant,
    abandoned: Abandoned,
    work: tokio::task::JoinHandle<Option<Result<Answer, BoxError>>>,
) {
    let handled = work.await;
    let elapsed = started.elapsed();
    match handled {
        Ok(Some(Ok(_))) => tracing::warn!(call, ?elapsed, ?abandoned, "abandoned handler succeeded"),
        Ok(Some(Err(error))) => {
            tracing::warn!(call, ?elapsed, ?abandoned, error = chain(&*error), "abandoned handler failed");
        }
        Ok(None) => {}
        Err(error) => tracing::error!(call, ?elapsed, ?abandoned, %error, "abandoned handler failed"),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
