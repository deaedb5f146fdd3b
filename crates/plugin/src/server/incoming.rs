//! The connections of a server: accepted one after the other, closed together.
//!
//! tonic spawns a task for each connection and keeps no handle, and it goes on accepting after any error, as fast as it can.
//! So the errors are judged here, and each connection ends by itself when its server is closed.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::stream::{self, Stream};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixListener;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// How long to wait for others to close files when there are none left.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Accepts connections until the server is closed, or until the listener fails for good, which is told to `died`.
pub(super) fn incoming(
    listener: UnixListener,
    close: CancellationToken,
    died: oneshot::Sender<io::Error>,
) -> impl Stream<Item = Result<Connection, Infallible>> + Send {
    stream::unfold((listener, close, died), |(listener, close, died)| async move {
        match close.run_until_cancelled(accept(&listener, &close)).await? {
            Ok(connection) => Some((Ok(connection), (listener, close, died))),
            Err(error) => {
                // Nobody listens when the server is being stopped.
                died.send(error).ok();
                None
            }
        }
    })
}

/// The next connection, or an error that will not go away.
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
                tracing::warn!(%error, "cannot accept a connection now, trying again");
                tokio::time::sleep(EXHAUSTED).await;
            }
            _ => return Err(error),
        }
    }
}

/// A connection that fails as soon as its server is closed.
///
/// The kernel wakes whoever watches a unix socket for writing each time its peer has read something, that is after every
/// answer, and for nothing: there was room all the time. So it is watched for reading alone, and for writing only while it is
/// full. The runtime's own type for sockets always watches for both; those for the ends of pipes do as they should, and do not
/// care what the file is.
pub(super) struct Connection {
    stream: UnixStream,
    /// The same socket under another number.
    reader: pipe::Receiver,
    /// And under yet another, while it is full.
    full: Option<pipe::Sender>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn new(stream: tokio::net::UnixStream, close: &CancellationToken) -> io::Result<Self> {
        let stream = stream.into_std()?;
        let reader = pipe::Receiver::from_owned_fd_unchecked(stream.try_clone()?.into())?;
        Ok(Self { stream, reader, full: None, closed: Box::pin(close.clone().cancelled_owned()) })
    }

    /// Writes, as soon as there is room.
    fn poll_room(&mut self, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            if let Some(full) = &mut self.full {
                let written = ready!(Pin::new(full).poll_write_vectored(cx, slices));
                self.full = None;
                return Poll::Ready(written);
            }
            match (&self.stream).write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let again = self.stream.try_clone()?;
                    self.full = Some(pipe::Sender::from_owned_fd_unchecked(again.into())?);
                }
                written => return Poll::Ready(written),
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    /// An HTTP/2 connection always waits for the next frame, so this is where it learns of the end.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server is closed")));
        }
        Pin::new(&mut self.reader).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_room(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_room(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What is written is with the kernel.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream.shutdown(Shutdown::Write) {
            // The other end was first.
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

    /// More than the socket holds is written once its reader has made room, each time; the end is told to both sides.
    #[tokio::test]
    async fn a_full_socket_is_waited_for() {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours, &CancellationToken::new()).unwrap();
        let content: Vec<u8> = (0..5_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let (sent, was_full) = (content.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
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
            assert!(connection.full.is_none(), "it is still watched for writing");
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

    /// Whoever waits to write learns that the other end has gone.
    #[tokio::test]
    async fn a_reader_that_goes_ends_the_wait() {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours, &CancellationToken::new()).unwrap();
        let writing = tokio::spawn(async move { connection.write_all(&vec![0; 5_000_000]).await });
        // It runs until the socket is full.
        tokio::task::yield_now().await;
        drop(theirs);
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
