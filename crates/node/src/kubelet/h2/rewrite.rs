//! A client's side of an HTTP/2 connection whose requests have another `:authority` than the client gives them.
//!
//! For what no Rust client can send. Everything but the headers of requests passes as it is, so the server meets the client
//! itself: its streams, windows, deadlines and resets.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use httlib_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::PREFACE;
use super::frame::{self, Frame, Kind, flag};

/// The connection.
pub(in crate::kubelet) struct WithAuthority<S> {
    connection: S,
    authority: String,
    /// What the client's compression of headers refers to.
    decoder: Decoder<'static>,
    /// How much of what every client sends first is still to come.
    preface: usize,
    /// From the client, and not a whole frame yet.
    incoming: Vec<u8>,
    /// For the server, the first so many bytes of which it has.
    outgoing: Vec<u8>,
    sent: usize,
}

impl<S> WithAuthority<S> {
    pub(in crate::kubelet) fn new(connection: S, authority: String) -> Self {
        let decoder = Decoder::default();
        let preface = PREFACE.len();
        Self { connection, authority, decoder, preface, incoming: Vec::new(), outgoing: Vec::new(), sent: 0 }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (preface, frames) = bytes.split_at(self.preface.min(bytes.len()));
        self.preface -= preface.len();
        self.outgoing.extend(preface);
        self.incoming.extend(frames);
        let mut taken = 0;
        while let Some((frame, length)) = frame::parse(self.incoming.get(taken..).unwrap_or_default()) {
            taken += length;
            match frame.kind {
                // A client that sends one message in a call has no trailers: headers are those of requests.
                Kind::Headers => self.headers(&frame)?,
                _ => self.outgoing.extend(self.incoming.get(taken - length..taken).unwrap_or_default()),
            }
        }
        self.incoming.drain(..taken);
        Ok(())
    }

    fn headers(&mut self, frame: &Frame) -> io::Result<()> {
        let broken = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
        if frame.flags & flag::END_HEADERS == 0 {
            return Err(broken("the headers of a request are too long for one frame".to_owned()));
        }
        let mut fields = Vec::new();
        let decoded = self.decoder.decode(&mut frame.content()?.to_vec(), &mut fields);
        decoded.map_err(|error| broken(format!("headers cannot be read: {error:?}")))?;
        let (mut encoder, mut block) = (Encoder::default(), Vec::new());
        for (name, value, _) in fields {
            let value = if name == b":authority" { self.authority.as_bytes().to_vec() } else { value };
            // Without any reference to earlier ones: the server's table stays empty.
            let encoded = encoder.encode((name, value, 0), &mut block);
            encoded.map_err(|error| broken(format!("headers cannot be written: {error:?}")))?;
        }
        let flags = frame.flags & !(flag::PADDED | flag::PRIORITY);
        frame::append(&mut self.outgoing, Kind::Headers, flags, frame.stream, &block);
        Ok(())
    }
}

impl<S: AsyncWrite + Unpin> WithAuthority<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.outgoing.get(self.sent..) {
            match ready!(Pin::new(&mut self.connection).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => self.sent += length,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithAuthority<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // What was taken before goes first, so that not much is kept.
        ready!(self.poll_send(cx))?;
        self.take(bytes)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
