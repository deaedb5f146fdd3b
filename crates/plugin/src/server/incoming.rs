//! The connections of a server: how they are accepted, served and closed.
//!
//! A connection is HTTP/2 by `hyper`, whose requests go straight to the services. tonic's own server has a router and several
//! layers between them, each with its own boxed future.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixListener;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::guard::Guard;

/// The delay before accepting again when file descriptors or memory are exhausted.
const EXHAUSTED_DELAY: Duration = Duration::from_millis(100);

/// Accepts and serves connections until the server drains or is closed, or the listener fails permanently; that error is sent to
/// `died`. Returns when all connections have ended.
pub(super) async fn serve(
    listener: UnixListener,
    guard: Guard,
    draining: CancellationToken,
    close: CancellationToken,
    died: oneshot::Sender<io::Error>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &close) => accepted,
            () = draining.cancelled() => break,
            () = close.cancelled() => break,
            // Frees the memory of connections that have ended.
            Some(_ended) = connections.join_next() => continue,
        };
        match accepted {
            Ok(connection) => drop(connections.spawn(serve_connection(connection, guard.clone(), draining.clone()))),
            Err(error) => {
                // The receiver is gone when the server is being stopped.
                died.send(error).ok();
                break;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves a connection. When the server drains, calls in flight may finish, and no new ones begin.
async fn serve_connection(connection: Connection, guard: Guard, draining: CancellationToken) {
    let service = service_fn(move |request| {
        let answer = guard.call(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let builder = http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).clone();
    let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = draining.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        // Also a kubelet that is killed, or a client that speaks no HTTP/2.
        tracing::debug!(%error, "connection ended");
    }
}

/// Accepts the next connection. Retries transient errors and returns permanent ones.
async fn accept(listener: &UnixListener, close: &CancellationToken) -> io::Result<Connection> {
    loop {
        let accepted = listener.accept().await;
        let error = match accepted.and_then(|(stream, _)| Connection::new(stream, close)) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::CONNABORTED | Errno::INTR) => {}
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                tracing::warn!(%error, "accepting a connection failed, retrying");
                tokio::time::sleep(EXHAUSTED_DELAY).await;
            }
            _ => return Err(error),
        }
    }
}

/// A connection whose reads fail once its server is closed.
///
/// The kernel reports a unix socket as writable each time its peer has read from it, that is after every response, though
/// its buffer was never full. To avoid these wakeups the socket is polled for reading only, and for writing only while its
/// buffer is full. tokio's `UnixStream` always registers for both; its pipe types register for one direction and accept any
/// file descriptor.
pub(super) struct Connection {
    stream: UnixStream,
    /// A duplicate of the socket's descriptor, registered for reading.
    reader: pipe::Receiver,
    /// Another duplicate, registered for writing while the send buffer is full.
    full: Option<pipe::Sender>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn new(stream: tokio::net::UnixStream, close: &CancellationToken) -> io::Result<Self> {
        let stream = stream.into_std()?;
        let reader = pipe::Receiver::from_owned_fd_unchecked(stream.try_clone()?.into())?;
        Ok(Self { stream, reader, full: None, closed: Box::pin(close.clone().cancelled_owned()) })
    }

    /// Writes as soon as the send buffer has space.
    fn poll_send(&mut self, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            if let Some(full) = &mut self.full {
                let written = ready!(Pin::new(full).poll_write_vectored(cx, slices));
                self.full = None;
                return Poll::Ready(written);
            }
            match (&self.stream).write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let duplicate = self.stream.try_clone()?;
                    self.full = Some(pipe::Sender::from_owned_fd_unchecked(duplicate.into())?);
                }
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for Connection {
    /// Reads, or fails once the server is closed. An HTTP/2 connection always waits for the next frame, so this ends it.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server is closed")));
        }
        Pin::new(&mut self.reader).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: written bytes are in the kernel already.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream.shutdown(Shutdown::Write) {
            // The peer has already disconnected.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Content larger than the send buffer is written in full as the peer reads, and both sides see the end of the stream.
    #[tokio::test]
    async fn a_write_to_a_full_socket_waits_for_the_reader() {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours, &CancellationToken::new()).unwrap();
        let content: Vec<u8> = (0..5_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let sent = content.clone();
        let was_full = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let saw_full = was_full.clone();
        let writing = tokio::spawn(async move {
            let writing = connection.write_all(&sent);
            tokio::pin!(writing);
            std::future::poll_fn(|cx| {
                let polled = writing.as_mut().poll(cx);
                saw_full.fetch_or(polled.is_pending(), std::sync::atomic::Ordering::Relaxed);
                polled
            })
            .await
            .unwrap();
            assert!(connection.full.is_none(), "still registered for writing");
            connection.shutdown().await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            answer
        });
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        assert!(received == content, "{} of {} bytes", received.len(), content.len());
        assert!(was_full.load(std::sync::atomic::Ordering::Relaxed), "the socket was never full");
        theirs.write_all(b"all of it").await.unwrap();
        drop(theirs);
        assert_eq!(writing.await.unwrap(), "all of it");
    }

    #[tokio::test]
    async fn a_blocked_write_fails_when_the_reader_disconnects() {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours, &CancellationToken::new()).unwrap();
        let writing = tokio::spawn(async move { connection.write_all(&vec![0; 5_000_000]).await });
        // The writer runs until the send buffer is full.
        tokio::task::yield_now().await;
        drop(theirs);
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
