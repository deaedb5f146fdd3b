//! The connection to a driver instance: opened at once, and reopened as soon as it is lost.

use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use drakkar_client::{Backoff, io_cause};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::kubelet::h2::WithAuthority;
use crate::kubelet::rpc_error::plain;

/// The delay before reconnecting, so that a server that accepts and hangs up at once is not called in a busy loop.
const RECONNECT_DELAY: Duration = Duration::from_millis(10);

/// The state of the connection.
#[derive(Debug, Clone)]
enum State {
    /// Being opened. Calls wait for it.
    Connecting,
    Ready(Channel),
    /// Refused, and retried later. Calls fail.
    Failing(String),
}

/// The users' side of the connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Link(watch::Receiver<State>);

/// The side of the task that keeps the connection open.
#[derive(Debug)]
pub(super) struct Connector {
    state: watch::Sender<State>,
    endpoint: PathBuf,
    /// The `:authority` of calls, if it is not the default.
    authority: Option<String>,
    backoff: Backoff,
}

/// Creates both sides of a connection to a socket.
pub(super) fn new_link(endpoint: &Path, authority: Option<String>, backoff: Backoff) -> (Link, Connector) {
    let (sender, receiver) = watch::channel(State::Connecting);
    (Link(receiver), Connector { state: sender, endpoint: endpoint.to_owned(), authority, backoff })
}

impl Link {
    pub(super) fn is_connected(&self) -> bool {
        matches!(*self.0.borrow(), State::Ready(_))
    }

    /// Waits while the connection is being opened, and returns it or why it failed.
    pub(super) async fn channel(&self) -> Result<Channel, Status> {
        let mut receiver = self.0.clone();
        let state = receiver.wait_for(|state| !matches!(state, State::Connecting)).await;
        match state.as_deref() {
            Ok(State::Ready(channel)) => Ok(channel.clone()),
            Ok(State::Failing(error)) => Err(Status::unavailable(error.clone())),
            Ok(State::Connecting) | Err(_) => Err(Status::unavailable("the plugin is no longer registered")),
        }
    }
}

impl Connector {
    /// Keeps the connection open; calls `changed` whenever it is opened or lost.
    pub(super) async fn run(self, changed: impl Fn()) {
        let mut retry = self.backoff.retry();
        loop {
            let error = match open(&self.endpoint, self.authority.clone()).await {
                Ok((channel, ended)) => {
                    self.state.send_replace(State::Ready(channel));
                    changed();
                    let received = ended.await.unwrap_or_default();
                    if received {
                        self.state.send_replace(State::Connecting);
                        changed();
                        retry.reset();
                        sleep(RECONNECT_DELAY).await;
                        continue;
                    }
                    self.state.send_replace(State::Failing(String::new()));
                    changed();
                    "the server closed the connection without sending anything".to_owned()
                }
                Err(error) => error,
            };
            let error = format!("connect to {}: {error}", self.endpoint.display());
            self.state.send_replace(State::Failing(error));
            sleep(retry.next_delay()).await;
        }
    }
}

/// Connects. The receiver gets a message when the connection ends: whether the server has sent anything.
async fn open(endpoint: &Path, authority: Option<String>) -> Result<(Channel, oneshot::Receiver<bool>), String> {
    let stream = UnixStream::connect(endpoint).await.map_err(|error| plain(&error))?;
    let (sender, ended) = oneshot::channel();
    let watched = WatchedStream { stream, received: false, ended: Some(sender) };
    let channel = match authority {
        Some(authority) => channel(WithAuthority::new(watched, authority)).await,
        None => channel(watched).await,
    };
    let failed = |error: tonic::transport::Error| io_cause(&error).map_or_else(|| error.to_string(), plain);
    channel.map(|channel| (channel, ended)).map_err(failed)
}

/// Creates a channel for one connection; the connector creates a new channel for the next.
async fn channel(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Channel, tonic::transport::Error> {
    let once = Arc::new(Mutex::new(Some(TokioIo::new(connection))));
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = once.lock().unwrap_or_else(PoisonError::into_inner).take();
        ready(stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the connection was lost")))
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

/// A stream that reports its end.
struct WatchedStream {
    stream: UnixStream,
    received: bool,
    ended: Option<oneshot::Sender<bool>>,
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            // The receiver is gone when the kubelet itself ends.
            let _ = ended.send(self.received);
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.received |= buf.filled().len() > before;
        polled
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
