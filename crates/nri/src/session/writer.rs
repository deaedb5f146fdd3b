//! The writing side: a bounded queue, and a task that writes whole messages.

use drakkar_nri_api::ttrpc;
use prost::bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

use crate::error::ConnectionError;
use crate::status::{Code, Status};
use crate::wire::{Kind, PLUGIN_CONNECTION, encode};

/// Messages that wait to be written. More than the handlers that run at once, so that they never wait for each other.
const QUEUE: usize = 128;

/// The queue of messages to be written.
#[derive(Debug, Clone)]
pub(crate) struct Writer(mpsc::Sender<Outgoing>);

#[derive(Debug)]
enum Outgoing {
    Message(Bytes),
    /// Ends the connection, after what is before it was written.
    Close(ConnectionError),
}

/// Starts the task. It ends when the connection is to be closed, and returns why.
pub(crate) fn spawn(mut stream: OwnedWriteHalf) -> (Writer, JoinHandle<ConnectionError>) {
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let task = tokio::spawn(async move {
        while let Some(outgoing) = receiver.recv().await {
            match outgoing {
                Outgoing::Message(bytes) => {
                    if let Err(error) = stream.write_all(&bytes).await {
                        // The reading side finds the same, and what it has read before is still handled.
                        tracing::debug!(%error, "NRI connection cannot be written");
                        return ConnectionError::Io(error);
                    }
                }
                Outgoing::Close(error) => return error,
            }
        }
        ConnectionError::Closed
    });
    (Writer(sender), task)
}

impl Writer {
    /// Queues a message if there is space.
    pub(crate) fn try_send(&self, message: Bytes) -> Result<(), ConnectionError> {
        self.0.try_send(Outgoing::Message(message)).map_err(full)
    }

    /// Queues a message, and waits for space. It is dropped if the connection is closed meanwhile.
    pub(crate) async fn send(&self, message: Bytes) {
        let _ = self.0.send(Outgoing::Message(message)).await;
    }

    /// Ends the connection after what is queued was written, if there is space in the queue.
    pub(crate) fn try_close(&self, error: ConnectionError) -> Result<(), ConnectionError> {
        self.0.try_send(Outgoing::Close(error)).map_err(full)
    }

    /// Ends the connection after what is queued was written.
    pub(crate) async fn close(&self, error: ConnectionError) {
        let _ = self.0.send(Outgoing::Close(error)).await;
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn full<T>(error: TrySendError<T>) -> ConnectionError {
    match error {
        TrySendError::Full(_) => ConnectionError::Backlog,
        TrySendError::Closed(_) => ConnectionError::Closed,
    }
}

/// Encodes the answer to a call.
pub(crate) fn answer(stream: u32, result: Result<Vec<u8>, Status>) -> Bytes {
    let message = |result: Result<Vec<u8>, Status>| {
        let response = match result {
            Ok(payload) => ttrpc::Response { status: None, payload: payload.into() },
            Err(status) => ttrpc::Response { status: Some(status.into()), payload: Bytes::new() },
        };
        encode(PLUGIN_CONNECTION, stream, Kind::Response, &response)
    };
    let too_long = |error: crate::wire::TooLong| {
        tracing::warn!(%error, "answer not sent");
        let status = Status::new(Code::RESOURCE_EXHAUSTED, format!("the plugin's answer is {error}"));
        // A status is short.
        message(Err(status)).unwrap_or_default()
    };
    message(result).unwrap_or_else(too_long)
}
