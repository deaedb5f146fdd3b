//! The client's side of an HTTP/2 connection, which replaces the `:authority` of requests.
//!
//! No Rust client can send the authority that a kubelet sends. Everything except the headers of requests passes unchanged,
//! so the server sees the client's own streams, windows, deadlines and resets.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use httlib_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::PREFACE;
use super::frame::{self, Frame, Kind, flag};

/// A connection whose requests have this `:authority`.
pub(in crate::kubelet) struct WithAuthority<S> {
    connection: S,
    authority: String,
    /// The HPACK state of the client.
    decoder: Decoder<'static>,
    /// The number of bytes of the connection preface that are still to come.
    preface_left: usize,
    /// An incomplete frame from the client.
    incoming: Vec<u8>,
    /// Bytes for the server, of which `sent` have been written.
    outgoing: Vec<u8>,
    sent: usize,
}

impl<S> WithAuthority<S> {
    pub(in crate::kubelet) fn new(connection: S, authority: String) -> Self {
        let decoder = Decoder::default();
        let preface_left = PREFACE.len();
        Self { connection, authority, decoder, preface_left, incoming: Vec::new(), outgoing: Vec::new(), sent: 0 }
    }

    fn rewrite(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (preface, frames) = bytes.split_at(self.preface_left.min(bytes.len()));
        self.preface_left -= preface.len();
        self.outgoing.extend(preface);
        self.incoming.extend(frames);
        let mut parsed = 0;
        while let Some((frame, length)) = frame::parse(self.incoming.get(parsed..).unwrap_or_default()) {
            parsed += length;
            match frame.kind {
                // The client of a unary call sends no trailers, so these are the headers of a request.
                Kind::Headers => self.rewrite_headers(&frame)?,
                _ => self.outgoing.extend(self.incoming.get(parsed - length..parsed).unwrap_or_default()),
            }
        }
        self.incoming.drain(..parsed);
        Ok(())
    }

    fn rewrite_headers(&mut self, frame: &Frame) -> io::Result<()> {
        let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
        if frame.flags & flag::END_HEADERS == 0 {
            return Err(invalid("the headers of a request are too long for one frame".to_owned()));
        }
        let mut fields = Vec::new();
        let decoded = self.decoder.decode(&mut frame.content()?.to_vec(), &mut fields);
        decoded.map_err(|error| invalid(format!("decode headers: {error:?}")))?;
        let mut encoder = Encoder::default();
        let mut block = Vec::new();
        for (name, value, _) in fields {
            let value = if name == b":authority" { self.authority.as_bytes().to_vec() } else { value };
            // Encoded without references to earlier headers, so the server's table stays empty.
            let encoded = encoder.encode((name, value, 0), &mut block);
            encoded.map_err(|error| invalid(format!("encode headers: {error:?}")))?;
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
        // Earlier bytes are sent first, so that little is buffered.
        ready!(self.poll_send(cx))?;
        self.rewrite(bytes)?;
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
