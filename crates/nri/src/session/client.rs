//! The plugin's own calls, on logical connection 2.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_nri_api::{RUNTIME_SERVICE, ttrpc};
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::oneshot;

use super::writer::Writer;
use crate::error::UpdateError;
use crate::status::{Code, Status};
use crate::wire::{Kind, RUNTIME_CONNECTION, Received, encode};

/// Calls that wait for their answers.
const MAX_WAITING: usize = 64;

/// Calls the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    writer: Writer,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug)]
struct Calls {
    next_stream: u32,
    waiting: HashMap<u32, Answer>,
    is_closed: bool,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The runtime answered with an error.
    Refused(Status),
    /// The connection has ended.
    Closed,
    /// Too many calls, or too large a message.
    Limit(String),
}

impl From<CallError> for UpdateError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(status) => Self::Refused(status),
            CallError::Closed => Self::NotConnected,
            CallError::Limit(reason) => Self::Limit(reason),
        }
    }
}

impl Client {
    pub(crate) fn new(writer: Writer) -> Self {
        // Streams of the calling side are odd.
        let calls = Calls { next_stream: 1, waiting: HashMap::new(), is_closed: false };
        Self { writer, calls: Arc::new(Mutex::new(calls)) }
    }

    /// Calls a method of the runtime, and returns the payload of the answer. Dropping the future forgets the call.
    pub(crate) async fn call(
        &self,
        method: &str,
        request: &impl prost::Message,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let request = ttrpc::Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec().into(),
            timeout_nano: i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        };
        let (sender, answer) = oneshot::channel();
        let _forget = self.start(&request, sender)?;
        match answer.await {
            Ok(Ok(payload)) => Ok(payload),
            Ok(Err(status)) => Err(CallError::Refused(status)),
            Err(_dropped) => Err(CallError::Closed),
        }
    }

    fn start(&self, request: &ttrpc::Request, answer: Answer) -> Result<Forget<'_>, CallError> {
        let mut calls = self.calls();
        if calls.is_closed {
            return Err(CallError::Closed);
        }
        if calls.waiting.len() >= MAX_WAITING {
            return Err(CallError::Limit(format!("{MAX_WAITING} calls wait for their answers")));
        }
        let stream = calls.next_stream;
        let message = encode(RUNTIME_CONNECTION, stream, Kind::Request, request)
            .map_err(|error| CallError::Limit(error.to_string()))?;
        // Queued under the lock: the runtime rejects streams that are not in ascending order.
        self.writer.try_send(message).map_err(|error| CallError::Limit(error.to_string()))?;
        calls.next_stream = stream.checked_add(2).ok_or(CallError::Closed)?;
        calls.waiting.insert(stream, answer);
        Ok(Forget { client: self, stream })
    }

    /// Takes a message of the runtime. One that answers no call is ignored.
    pub(super) fn receive(&self, received: Received) {
        let (stream, result) = match received {
            Received::Message(message) if message.kind == Kind::Response => (message.stream, decode(message.body)),
            Received::Oversized { stream, kind: Kind::Response, length } => {
                let text = format!("the runtime's answer has {length} bytes");
                (stream, Err(Status::new(Code::RESOURCE_EXHAUSTED, text)))
            }
            _ => return,
        };
        let waiting = self.calls().waiting.remove(&stream);
        if let Some(waiting) = waiting {
            // Whoever called may have stopped waiting.
            let _ = waiting.send(result);
        }
    }

    /// Fails the calls that wait, and all later ones.
    pub(super) fn close(&self) {
        let mut calls = self.calls();
        calls.is_closed = true;
        calls.waiting.clear();
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Answer = oneshot::Sender<Result<Bytes, Status>>;

/// Forgets a call when its caller stops waiting.
struct Forget<'a> {
    client: &'a Client,
    stream: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.client.calls().waiting.remove(&self.stream);
    }
}

fn decode(body: Bytes) -> Result<Bytes, Status> {
    let response = ttrpc::Response::decode(body)
        .map_err(|error| Status::new(Code::INTERNAL, format!("the runtime's answer cannot be decoded: {error}")))?;
    match response.status {
        Some(status) if status.code != 0 => Err(status.into()),
        _ => Ok(response.payload),
    }
}
