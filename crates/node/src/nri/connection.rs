//! The connection to a plugin: calls to it, and its requests.
//!
//! A call that is not answered in time, or whose connection ends, is a [`CallError::Closed`], after which the connection is
//! closed; any other status of the plugin is a [`CallError::Status`], which leaves it open. That is containerd's rule.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use drakkar_nri_api::ttrpc::{Request, Response, Status};
use drakkar_nri_api::{PLUGIN_SERVICE, RUNTIME_SERVICE};
use prost::Message as _;
use rustix::net::{Shutdown, shutdown};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::mux::{self, Assembler, Message, PLUGIN_STREAM, RUNTIME_STREAM};

/// The code of a method that does not exist.
pub(super) const UNIMPLEMENTED: i32 = 12;
/// The code of any ordinary error.
pub(super) const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// The plugin answered with an error.
    #[error("{message} (code {code})")]
    Status { code: i32, message: String },
    /// The connection is closed.
    #[error("connection closed: {0}")]
    Closed(String),
}

/// A request of the plugin.
#[derive(Debug)]
pub(super) struct Incoming {
    pub call: u32,
    pub request: Request,
}

#[derive(Debug)]
pub(super) struct Connection {
    writer: AsyncMutex<OwnedWriteHalf>,
    /// The socket once more, to shut it down while others read and write.
    control: OwnedFd,
    pending: Mutex<HashMap<u32, oneshot::Sender<Response>>>,
    next_call: AtomicU32,
    closed: CancellationToken,
    reason: OnceLock<String>,
}

impl Connection {
    /// Takes a connection. The future reads from it until it is closed; requests of the plugin go to the receiver.
    pub(super) fn new(
        stream: UnixStream,
    ) -> std::io::Result<(Arc<Self>, impl Future<Output = ()> + Send + use<>, mpsc::UnboundedReceiver<Incoming>)> {
        let control = stream.as_fd().try_clone_to_owned()?;
        let (reader, writer) = stream.into_split();
        let connection = Arc::new(Self {
            writer: AsyncMutex::new(writer),
            control,
            pending: Mutex::default(),
            next_call: AtomicU32::new(1),
            closed: CancellationToken::new(),
            reason: OnceLock::new(),
        });
        let (sender, requests) = mpsc::unbounded_channel();
        Ok((connection.clone(), connection.read(reader, sender), requests))
    }

    /// Closes the connection, unless it is closed. The first reason counts.
    pub(super) fn close(&self, reason: impl Into<String>) {
        let _ = self.reason.set(reason.into());
        self.closed.cancel();
        // It may have ended already.
        let _ = shutdown(&self.control, Shutdown::Both);
        self.pending().clear();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the connection is closed, and returns the reason.
    pub(super) async fn closed(&self) -> String {
        self.closed.cancelled().await;
        self.reason()
    }

    fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_default()
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<Response>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the plugin. `sent` runs once the request is written.
    pub(super) async fn call<R: prost::Message + Default>(
        &self,
        method: &str,
        message: &impl prost::Message,
        deadline: Instant,
        sent: impl FnOnce(),
    ) -> Result<R, CallError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let request = Request {
            service: PLUGIN_SERVICE.to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec().into(),
            timeout_nano: i64::try_from(left.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        };
        let id = self.next_call.fetch_add(2, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.pending().insert(id, sender);
        let exchange = async {
            self.send(PLUGIN_STREAM, id, Message::REQUEST, &request).await?;
            sent();
            // Dropped when the connection is closed.
            answer.await.map_err(|_closed| CallError::Closed(self.reason()))
        };
        let outcome = tokio::select! {
            outcome = timeout_at(deadline, exchange) => outcome,
            reason = self.closed() => Ok(Err(CallError::Closed(reason))),
        };
        self.pending().remove(&id);
        let response = match outcome {
            Ok(response) => response?,
            Err(_elapsed) => {
                self.close(format!("{method} was not answered in time"));
                return Err(CallError::Closed(self.reason()));
            }
        };
        match response.status {
            Some(Status { code, message }) if code != 0 => Err(CallError::Status { code, message }),
            _ => R::decode(response.payload).map_err(|error| {
                self.close(format!("{method} was answered with an invalid message: {error}"));
                CallError::Closed(self.reason())
            }),
        }
    }

    /// Answers a request of the plugin.
    pub(super) async fn answer(&self, call: u32, answer: Result<Vec<u8>, (i32, String)>) {
        let response = match answer {
            Ok(payload) => Response { status: None, payload: payload.into() },
            Err((code, message)) => Response { status: Some(Status { code, message }), ..Response::default() },
        };
        // If that fails, the connection is closed.
        let _ = self.send(RUNTIME_STREAM, call, Message::RESPONSE, &response).await;
    }

    async fn send(&self, stream: u32, call: u32, kind: u8, message: &impl prost::Message) -> Result<(), CallError> {
        let body = message.encode_to_vec();
        let frames = mux::frames(stream, Message::header(call, kind, body.len()), &body);
        // Held while it writes, so that frames of two messages do not mix. A plugin that does not read blocks it until the
        // connection is closed.
        let written = async { self.writer.lock().await.write_all(&frames).await };
        tokio::select! {
            written = written => written.map_err(|error| {
                self.close(format!("write: {error}"));
                CallError::Closed(self.reason())
            }),
            reason = self.closed() => Err(CallError::Closed(reason)),
        }
    }

    async fn read(self: Arc<Self>, mut reader: OwnedReadHalf, requests: mpsc::UnboundedSender<Incoming>) {
        let reason = tokio::select! {
            reason = self.read_frames(&mut reader, &requests) => reason,
            reason = self.closed() => reason,
        };
        self.close(reason);
    }

    /// Reads until the connection ends; returns why.
    async fn read_frames(&self, reader: &mut OwnedReadHalf, requests: &mpsc::UnboundedSender<Incoming>) -> String {
        let mut responses = Assembler::default();
        let mut calls = Assembler::default();
        let mut last_call = 0;
        loop {
            let frame = match mux::read(reader).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return "the plugin hung up".to_owned(),
                Err(error) => return format!("read: {error}"),
            };
            let assembler = match frame.stream {
                PLUGIN_STREAM => &mut responses,
                RUNTIME_STREAM => &mut calls,
                // As containerd: nobody has opened that stream.
                _ => continue,
            };
            let messages = match assembler.push(&frame.payload) {
                Ok(messages) => messages,
                Err(violation) => return violation.to_string(),
            };
            for Message { call, kind, body } in messages {
                let valid = match (frame.stream, kind) {
                    (PLUGIN_STREAM, Message::RESPONSE) => self.receive_response(call, &body),
                    (RUNTIME_STREAM, Message::REQUEST) => {
                        self.receive_request(call, &body, &mut last_call, requests).await
                    }
                    _ => Err(format!("a message of type {kind} on stream {}", frame.stream)),
                };
                if let Err(reason) = valid {
                    return reason;
                }
            }
        }
    }

    fn receive_response(&self, call: u32, body: &[u8]) -> Result<(), String> {
        let response = Response::decode(body).map_err(|error| format!("an invalid response: {error}"))?;
        // Nobody waits any longer for an answer that is late.
        if let Some(waiting) = self.pending().remove(&call) {
            let _ = waiting.send(response);
        }
        Ok(())
    }

    async fn receive_request(
        &self,
        call: u32,
        body: &[u8],
        last_call: &mut u32,
        requests: &mpsc::UnboundedSender<Incoming>,
    ) -> Result<(), String> {
        let request = Request::decode(body).map_err(|error| format!("an invalid request: {error}"))?;
        if call.is_multiple_of(2) || call <= *last_call {
            let message = format!("call {call} after {last_call}: ids are odd and increase");
            self.answer(call, Err((INVALID_ARGUMENT, message))).await;
            return Ok(());
        }
        *last_call = call;
        if request.service != RUNTIME_SERVICE {
            self.answer(call, Err((UNIMPLEMENTED, format!("service {}", request.service)))).await;
            return Ok(());
        }
        // The receiver lives as long as the connection.
        let _ = requests.send(Incoming { call, request });
        Ok(())
    }
}
