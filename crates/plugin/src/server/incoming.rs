//! The connections of a server: accepted one after the other, closed together.
//!
//! tonic spawns a task for each connection and keeps no handle, and it goes on accepting after any error, as fast as it can.
//! So the errors are judged here, and each connection ends by itself when its server is closed.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, Stream};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// How long to wait for others to close files when there are none left.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Accepts connections until the server is closed, or until the listener fails for good, which is told to `died`.
pub(super) fn incoming(
    listener: UnixListener,
    close: CancellationToken,
    died: oneshot::Sender<io::Error>,
) -> impl Stream<Item = Result<Connection, Infallible>> + Send {
    stream::unfold((listener, close, died), |(listener, close, died)| async move {
        match close.run_until_cancelled(accept(&listener)).await? {
            Ok(stream) => {
                let connection = Connection { stream, closed: Box::pin(close.clone().cancelled_owned()) };
                Some((Ok(connection), (listener, close, died)))
            }
            Err(error) => {
                // Nobody listens when the server is being stopped.
                died.send(error).ok();
                None
            }
        }
    })
}

/// The next connection, or an error that will not go away.
async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let error = match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
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
pub(super) struct Connection {
    stream: UnixStream,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    /// An HTTP/2 connection always waits for the next frame, so this is where it learns of the end.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server is closed")));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
