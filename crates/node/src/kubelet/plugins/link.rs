//! The one connection to an instance of a driver, kept up: it is made at once, and made again as soon as it is lost.

use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::kubelet::h2::WithAuthority;
use drakkar_client::Backoff;

/// A peer that accepts and hangs up at once is not called in a busy loop.
const BREATH: Duration = Duration::from_millis(10);

/// How the connection is.
#[derive(Debug, Clone)]
enum State {
    /// Being made. Calls wait for it.
    Connecting,
    Ready(Channel),
    /// Refused, and tried again later. Calls fail.
    Failing(String),
}

/// The connection, for those who use it.
#[derive(Debug, Clone)]
pub(super) struct Link(watch::Receiver<State>);

/// The connection, for the one task that keeps it.
#[derive(Debug)]
pub(super) struct Keeper {
    state: watch::Sender<State>,
    endpoint: PathBuf,
    /// If it is not the usual one.
    authority: Option<String>,
    backoff: Backoff,
}

/// A connection to a socket, whose calls have an authority of their own if there is one.
pub(super) fn link(endpoint: &Path, authority: Option<String>, backoff: Backoff) -> (Link, Keeper) {
    let (sender, receiver) = watch::channel(State::Connecting);
    (Link(receiver), Keeper { state: sender, endpoint: endpoint.to_owned(), authority, backoff })
}

impl Link {
    pub(super) fn is_connected(&self) -> bool {
        matches!(*self.0.borrow(), State::Ready(_))
    }

    /// The connection, as soon as it is there or has failed.
    pub(super) async fn channel(&self) -> Result<Channel, Status> {
        let mut receiver = self.0.clone();
        let state = receiver.wait_for(|state| !matches!(state, State::Connecting)).await;
        match state.as_deref() {
            Ok(State::Ready(channel)) => Ok(channel.clone()),
            Ok(State::Failing(error)) => Err(Status::unavailable(error.clone())),
            Ok(State::Connecting) | Err(_) => Err(Status::unavailable("the plugin is not registered any more")),
        }
    }
}

impl Keeper {
    /// Keeps the connection, and tells of its begin and end.
    pub(super) async fn run(self, changed: impl Fn()) {
        let mut retry = self.backoff.retry();
        loop {
            let error = match open(&self.endpoint, self.authority.clone()).await {
                Ok((channel, ended)) => {
                    self.state.send_replace(State::Ready(channel));
                    changed();
                    let heard = ended.await.unwrap_or_default();
                    if heard {
                        self.state.send_replace(State::Connecting);
                        changed();
                        retry.reset();
                        sleep(BREATH).await;
                        continue;
                    }
                    self.state.send_replace(State::Failing(String::new()));
                    changed();
                    "the connection was closed before the server said anything".to_owned()
                }
                Err(error) => error,
            };
            let error = format!("connect to {}: {error}", self.endpoint.display());
            self.state.send_replace(State::Failing(error));
            sleep(retry.next_delay()).await;
        }
    }
}

/// Connects. What comes back besides the channel tells when the connection has ended, and whether anything was heard.
async fn open(endpoint: &Path, authority: Option<String>) -> Result<(Channel, oneshot::Receiver<bool>), String> {
    let stream = UnixStream::connect(endpoint).await.map_err(|error| error.to_string())?;
    let (sender, ended) = oneshot::channel();
    let watched = Watched { stream, heard: false, ended: Some(sender) };
    let channel = match authority {
        Some(authority) => channel(WithAuthority::new(watched, authority)).await,
        None => channel(watched).await,
    };
    channel.map(|channel| (channel, ended)).map_err(|error| error.to_string())
}

/// A channel for one connection: when that has ended, this kubelet makes a new channel.
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

/// A connection that tells when it ends.
struct Watched {
    stream: UnixStream,
    heard: bool,
    ended: Option<oneshot::Sender<bool>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            // Nobody listens when the kubelet itself ends.
            let _ = ended.send(self.heard);
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.heard |= buf.filled().len() > before;
        polled
    }
}

impl AsyncWrite for Watched {
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
