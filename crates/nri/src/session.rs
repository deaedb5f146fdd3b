//! One connection: the handshake, and then events until it ends.
//!
//! One task reads the socket, takes the bytes apart and dispatches the messages; it never waits for anything else, so that a
//! slow handler or a full queue cannot stop it. One task writes. Each call of the runtime has a task that answers in time, and
//! a task for the handler, which may outlive the connection.

mod answer;
mod client;
mod server;
mod synchronize;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use drakkar_nri_api::v1alpha1::RegisterPluginRequest;
use rustix::net::Shutdown;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::error::ConnectionError;
use crate::handle::State;
use crate::wire::{Decoder, Demux, PLUGIN_CONNECTION, RUNTIME_CONNECTION};

use client::CallError;
pub(crate) use client::Client;
use server::Server;

const READ_BUFFER: usize = 64 << 10;
/// How long calls in progress may take to be answered when the plugin is stopped; longer than most deadlines.
const DRAIN: Duration = Duration::from_secs(5);

/// How a connection ended.
pub(crate) struct Ended {
    pub(crate) error: ConnectionError,
    pub(crate) was_synchronized: bool,
}

/// Serves a connection until it ends.
pub(crate) async fn run(stream: UnixStream, context: &Arc<Context>) -> Ended {
    let (mut reader, write_half) = stream.into_split();
    let (writer, mut writing) = writer::spawn(write_half);
    let closed = CancellationToken::new();
    let client = Client::new(writer.clone());
    let mut server = Server::new(context.clone(), writer.clone(), closed.clone());
    let mut receiver = Receiver::default();
    let mut buffer = vec![0; READ_BUFFER];
    let mut was_synchronized = false;
    let mut is_registered = false;
    // The runtime may call `Configure` before it answers this, so the two are not serialized.
    let mut registration = std::pin::pin!(register(&client, context));
    let error = loop {
        tokio::select! {
            registered = &mut registration, if !is_registered => {
                if let Err(error) = registered {
                    break error;
                }
                is_registered = true;
                context.metrics.registrations.increment();
                tracing::info!(plugin = context.name, index = context.index, "NRI plugin registered");
                context.state.send_if_modified(|state| {
                    let is_first = matches!(state, State::Disconnected { .. });
                    if is_first {
                        *state = State::Registered;
                    }
                    is_first
                });
            }
            read = reader.read(&mut buffer) => {
                let received = match read {
                    Ok(0) => Err(ConnectionError::Closed),
                    Ok(length) => receiver.receive(&buffer[..length], &mut server, &client),
                    Err(error) => Err(ConnectionError::Io(error)),
                };
                if let Err(error) = received {
                    break server.ended_by(error);
                }
            }
            () = server.synchronized() => {
                was_synchronized = true;
                context.metrics.synchronizations.increment();
                context.updater.set(Some(client.clone()));
                context.state.send_replace(State::Synchronized { runtime: server.runtime() });
            }
            ended = &mut writing => break server.ended_by(ended.unwrap_or(ConnectionError::Closed)),
            () = context.stop.cancelled() => {
                // Calls in progress are answered first, since a pod would start without the plugin otherwise.
                let _ = tokio::time::timeout(DRAIN, server.answered()).await;
                let _ = tokio::time::timeout(DRAIN, writer.close(ConnectionError::Stopped)).await;
                let _ = tokio::time::timeout(DRAIN, &mut writing).await;
                break ConnectionError::Stopped;
            }
        }
    };
    context.updater.set(None);
    closed.cancel();
    client.close();
    writing.abort();
    // Also for other descriptors of the same socket: one that was inherited stays open in this process. It may be
    // disconnected already.
    let _ = rustix::net::shutdown(reader.as_ref(), Shutdown::Both);
    Ended { error, was_synchronized }
}

async fn register(client: &Client, context: &Context) -> Result<(), ConnectionError> {
    let request = RegisterPluginRequest {
        plugin_name: context.name.clone(),
        plugin_idx: context.index.clone(),
        nri_version: drakkar_nri_api::NRI_VERSION.to_owned(),
    };
    let timeout = context.registration_timeout;
    let answer = tokio::time::timeout(timeout, client.call("RegisterPlugin", &request, timeout)).await;
    match answer.map_err(|_elapsed| ConnectionError::RegisterTimeout(timeout))? {
        Ok(_empty) => Ok(()),
        Err(CallError::Refused(status)) => Err(ConnectionError::Register(status)),
        Err(CallError::Closed) => Err(ConnectionError::Closed),
        Err(CallError::Limit(_)) => Err(ConnectionError::Backlog),
    }
}

/// Takes the bytes of the socket apart.
#[derive(Default)]
struct Receiver {
    demux: Demux,
    plugin: Decoder,
    runtime: Decoder,
}

impl Receiver {
    fn receive(&mut self, mut bytes: &[u8], server: &mut Server, client: &Client) -> Result<(), ConnectionError> {
        while let Some((connection, mut piece)) = self.demux.next(&mut bytes).map_err(ConnectionError::Frame)? {
            match connection {
                PLUGIN_CONNECTION => {
                    while let Some(received) = self.plugin.next(&mut piece) {
                        server.receive(received)?;
                    }
                }
                RUNTIME_CONNECTION => {
                    while let Some(received) = self.runtime.next(&mut piece) {
                        client.receive(received);
                    }
                }
                // As the other side does with connections that are not open.
                _ => {}
            }
        }
        Ok(())
    }
}
