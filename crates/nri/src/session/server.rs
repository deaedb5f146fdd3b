//! The runtime's calls, on logical connection 1: which of them are answered at once, and which go to a handler.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use drakkar_nri_api::v1alpha1::{ConfigureRequest, SynchronizeResponse};
use drakkar_nri_api::{PLUGIN_SERVICE, ttrpc};
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::synchronize::Parts;
use super::writer::{self, Writer};
use crate::context::Context;
use crate::error::ConnectionError;
use crate::event::{Event, Events};
use crate::plugin::Configuration;
use crate::request::{EventRequest, Request, message};
use crate::runtime::Runtime;
use crate::status::{Code, Status};
use crate::wire::{Kind, MAX_BODY, Message, Received};

/// The part of the runtime's time that a handler gets. The rest is for the answer to arrive.
const SHARE: f64 = 0.75;

/// Serves the calls of the runtime on one connection.
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    runtime: Arc<Runtime>,
    parts: Parts,
    last_stream: u32,
    /// Nothing was called after `Configure`.
    is_configured_last: bool,
    /// Why the connection is to be closed after the answer.
    failure: Option<ConnectionError>,
}

/// What the server shares with the tasks of its calls.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) writer: Writer,
    /// The connection has ended.
    pub(super) closed: CancellationToken,
    /// The tasks that answer.
    pub(super) answers: TaskTracker,
    /// The mask that `Configure` was answered with, or 0 before.
    pub(super) mask: AtomicU16,
    pub(super) synchronized: Notify,
}

impl Server {
    pub(super) fn new(context: Arc<Context>, writer: Writer, closed: CancellationToken) -> Self {
        let shared = Shared {
            context,
            writer,
            closed,
            answers: TaskTracker::new(),
            mask: AtomicU16::new(0),
            synchronized: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
            runtime: Arc::new(Runtime::new(&ConfigureRequest::default())),
            parts: Parts::default(),
            last_stream: 0,
            is_configured_last: false,
            failure: None,
        }
    }

    /// Waits until the runtime has synchronized the plugin.
    pub(super) fn synchronized(&self) -> impl Future<Output = ()> + use<> {
        let shared = self.shared.clone();
        async move { shared.synchronized.notified().await }
    }

    /// Waits until all calls in progress are answered.
    pub(super) async fn answered(&self) {
        self.shared.answers.close();
        self.shared.answers.wait().await;
    }

    /// Returns the runtime, as it introduced itself.
    pub(super) fn runtime(&self) -> Arc<Runtime> {
        self.runtime.clone()
    }

    /// Returns what an error of the socket means.
    pub(super) fn ended_by(&self, error: ConnectionError) -> ConnectionError {
        match &error {
            ConnectionError::Closed => self.closed_by_peer(),
            // What the runtime had not read when it closed.
            ConnectionError::Io(io) if matches!(io.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                self.closed_by_peer()
            }
            _ => error,
        }
    }

    fn closed_by_peer(&self) -> ConnectionError {
        let events = Events::from_mask(self.shared.mask.load(Ordering::Acquire));
        if self.is_configured_last && !events.is_empty() {
            return ConnectionError::ClosedAfterConfigure { events };
        }
        ConnectionError::Closed
    }

    /// Takes a message of the runtime. An error ends the connection.
    pub(super) fn receive(&mut self, received: Received) -> Result<(), ConnectionError> {
        let metrics = &self.shared.context.metrics;
        let (stream, result) = match received {
            Received::Message(message) if message.kind == Kind::Request => {
                let stream = message.stream;
                (stream, self.request(message))
            }
            Received::Oversized { stream, kind: Kind::Request, length } => {
                metrics.oversized.increment();
                let text = format!("a message of {length} bytes, more than {MAX_BODY}");
                (stream, Err(Status::new(Code::RESOURCE_EXHAUSTED, text)))
            }
            Received::Message(Message { stream, kind: Kind::Data, .. }) => {
                metrics.invalid.increment();
                (stream, Err(Status::new(Code::INVALID_ARGUMENT, "NRI has no streams")))
            }
            // Answers to calls that nobody made, and what a later version adds.
            Received::Message(_) | Received::Oversized { .. } => return Ok(()),
        };
        let answer = match result {
            Ok(Some(payload)) => Ok(payload),
            Ok(None) => return Ok(()),
            Err(status) => {
                tracing::debug!(stream, code = status.code.0, reason = status.message, "call refused");
                Err(status)
            }
        };
        self.shared.writer.try_send(writer::answer(stream, answer))?;
        self.failure.take().map_or(Ok(()), |failure| self.shared.writer.try_close(failure))
    }

    /// Returns the answer, or `None` if a task will give it.
    fn request(&mut self, message: Message) -> Result<Option<Vec<u8>>, Status> {
        let metrics = self.shared.context.metrics.clone();
        let invalid = |text: String| {
            metrics.invalid.increment();
            Status::new(Code::INVALID_ARGUMENT, text)
        };
        let stream = message.stream;
        if stream % 2 != 1 || stream <= self.last_stream {
            return Err(invalid(format!("stream {stream} after {}: use odd numbers, ascending", self.last_stream)));
        }
        self.last_stream = stream;
        let ttrpc::Request { service, method, payload, timeout_nano, .. } = ttrpc::Request::decode(message.body)
            .map_err(|error| invalid(format!("the request cannot be decoded: {error}")))?;
        if service != PLUGIN_SERVICE {
            metrics.unknown_methods.increment();
            return Err(Status::new(Code::UNIMPLEMENTED, format!("service {service}")));
        }
        let call = IncomingCall { stream, timeout_nano, size: payload.len() };
        let result = self.method(&method, payload, &call);
        self.is_configured_last = method == "Configure";
        if let Err(status) = &result {
            if method == "Synchronize" {
                self.failure = Some(ConnectionError::Synchronize(status.message.clone()));
            }
            match status.code {
                Code::UNIMPLEMENTED => metrics.unknown_methods.increment(),
                Code::RESOURCE_EXHAUSTED => metrics.refused.increment(),
                _ => metrics.invalid.increment(),
            }
        }
        result
    }

    fn method(&mut self, method: &str, payload: Bytes, call: &IncomingCall) -> Result<Option<Vec<u8>>, Status> {
        if let Some(event) = Event::from_name(method) {
            return self.event(EventRequest::decode(event, payload)?, call);
        }
        match method {
            "StateChange" => self.event(EventRequest::decode_state_change(payload)?, call),
            "Configure" => self.configure(payload, call),
            "Synchronize" => self.synchronize(payload, call),
            "Shutdown" => {
                tracing::info!(plugin = self.shared.context.name, "runtime shuts down");
                Ok(Some(Vec::new()))
            }
            _ => Err(Status::new(Code::UNIMPLEMENTED, format!("method {method}"))),
        }
    }

    fn configure(&mut self, payload: Bytes, call: &IncomingCall) -> Result<Option<Vec<u8>>, Status> {
        let request: ConfigureRequest = message("Configure", payload)?;
        let runtime = Runtime::new(&request);
        let wanted = self.shared.context.events;
        let events = wanted & runtime.known_events();
        let unknown = wanted - events;
        if !unknown.is_empty() {
            tracing::warn!(
                runtime = runtime.name,
                version = runtime.version,
                events = %unknown,
                "runtime does not know events"
            );
        }
        self.runtime = Arc::new(runtime.clone());
        let configuration = Configuration { runtime, text: request.config, events };
        self.start(call, Request::Configure(Box::new(configuration)))
    }

    fn synchronize(&mut self, payload: Bytes, call: &IncomingCall) -> Result<Option<Vec<u8>>, Status> {
        match self.parts.add(payload)? {
            // No updates before the last part.
            None => Ok(Some(SynchronizeResponse { more: true, update: Vec::new() }.encode_to_vec())),
            Some((pods, containers)) => self.start(call, Request::Synchronize(pods, containers)),
        }
    }

    fn event(&mut self, request: EventRequest, call: &IncomingCall) -> Result<Option<Vec<u8>>, Status> {
        let subscribed = Events::from_mask(self.shared.mask.load(Ordering::Acquire));
        if subscribed.is_empty() {
            let text = format!("{} before Configure", request.event());
            return Err(Status::new(Code::FAILED_PRECONDITION, text));
        }
        if !subscribed.contains(request.event()) {
            return Ok(Some(Vec::new()));
        }
        self.start(call, Request::Event(Box::new(request)))
    }

    /// Gives a call to its handler, if there is room for it.
    fn start(&self, call: &IncomingCall, request: Request) -> Result<Option<Vec<u8>>, Status> {
        let slot = match request {
            Request::Event(_) => self.shared.context.slots.take_event(call.size)?,
            Request::Configure(_) | Request::Synchronize(..) => self.shared.context.slots.take_handshake()?,
        };
        let given = self.runtime.request_timeout;
        let given = match call.timeout_nano {
            0 => given,
            nanos => given.min(Duration::from_nanos(nanos.try_into().unwrap_or(0))),
        };
        self.shared.clone().start(call.stream, request, given.mul_f64(SHARE), self.runtime.clone(), slot);
        Ok(None)
    }
}

/// What the server knows of a call, apart from its request.
struct IncomingCall {
    stream: u32,
    timeout_nano: i64,
    size: usize,
}
