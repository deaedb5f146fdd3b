//! A minimal HTTP/2 client for unary gRPC calls to a registration socket. No Rust client can send what grpc-go sends there
//! as `:authority`, the percent-encoded path of the socket.
//!
//! A connection has one call at a time. It handles what a server may do to such a call: it answers settings and pings, keeps
//! windows open, and ends the call with the stream or the connection.

mod frame;
mod rewrite;

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use drakkar_client::Backoff;
use httlib_hpack::{Decoder, Encoder};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use self::frame::{Frame, Kind, MAX_PAYLOAD, flag, read, write};
pub(super) use self::rewrite::WithAuthority;

/// The connection preface of every client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest message that is received, as in grpc-go.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// The largest header block that is received.
const MAX_HEADERS: usize = 64 * 1024;
/// The initial flow-control window: more is not sent in a call.
const WINDOW: usize = 65_535;

/// The characters that grpc-go escapes in an authority: all but letters, digits and those that are valid there, such as `@`.
const ESCAPED_IN_AUTHORITY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'[')
    .remove(b']')
    .remove(b'@');

/// Returns the authority that grpc-go derives from a path.
pub(super) fn authority(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ESCAPED_IN_AUTHORITY).to_string()
}

/// A connection to a registration socket.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    authority: String,
    decoder: Decoder<'static>,
    next_stream: u32,
}

impl Connection {
    /// Dials a socket until it answers with its settings; retries like a blocking dial of grpc-go.
    pub(super) async fn dial(path: &Path, timeout: Duration, backoff: Backoff) -> Result<Self, Status> {
        let deadline = Instant::now() + timeout;
        let mut retry = backoff.retry();
        let mut last = None;
        let attempts = async {
            loop {
                match Self::open(path).await {
                    Ok(connection) => return connection,
                    Err(error) => last = Some(error),
                }
                sleep(retry.next_delay()).await;
            }
        };
        match timeout_at(deadline, attempts).await {
            Ok(connection) => Ok(connection),
            Err(_) => {
                let reason = last.map_or_else(|| "no answer".to_owned(), |error| error.to_string());
                let path = path.display();
                Err(Status::unavailable(format!("dial {path}: no connection within {} s: {reason}", timeout.as_secs())))
            }
        }
    }

    async fn open(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path).await?;
        let mut opening = PREFACE.to_vec();
        frame::append(&mut opening, Kind::Settings, 0, 0, &[]);
        write(&mut stream, &opening).await?;
        let decoder = Decoder::default();
        let mut connection = Self { stream, authority: authority(path), decoder, next_stream: 1 };
        let first = read(&mut connection.stream).await?;
        if first.kind != Kind::Settings || first.flags & flag::ACK != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server's first frame is not its settings"));
        }
        connection.acknowledge_settings().await?;
        Ok(connection)
    }

    async fn acknowledge_settings(&mut self) -> io::Result<()> {
        let mut ack = Vec::new();
        frame::append(&mut ack, Kind::Settings, flag::ACK, 0, &[]);
        write(&mut self.stream, &ack).await
    }

    /// Calls a method with an encoded message, and returns the encoded response.
    pub(super) async fn call(&mut self, method: &str, message: &[u8], timeout: Duration) -> Result<Vec<u8>, Status> {
        let called = timeout_at(Instant::now() + timeout, async {
            let stream = self.send(method, message, timeout).await?;
            self.receive(stream).await
        });
        match called.await {
            Ok(response) => response,
            Err(_) => Err(Status::deadline_exceeded(format!("no response within {} ms", timeout.as_millis()))),
        }
    }

    async fn send(&mut self, method: &str, message: &[u8], timeout: Duration) -> Result<u32, Status> {
        let stream = self.next_stream;
        self.next_stream += 2;
        let Ok(length) = u32::try_from(message.len()) else {
            return Err(Status::resource_exhausted("message too long"));
        };
        if message.len() + 5 > WINDOW {
            return Err(Status::resource_exhausted(format!("a message of {length} bytes is too long for {method}")));
        }
        let millis = format!("{}m", timeout.as_millis().max(1));
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", self.authority.as_str()),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.72.2"),
            ("te", "trailers"),
            ("grpc-timeout", millis.as_str()),
        ];
        let mut block = Vec::new();
        let mut encoder = Encoder::default();
        for (name, value) in headers {
            let header = (name.as_bytes().to_vec(), value.as_bytes().to_vec(), 0);
            let encoded = encoder.encode(header, &mut block);
            encoded.map_err(|error| Status::internal(format!("encode header {name}: {error:?}")))?;
        }
        let mut bytes = Vec::new();
        frame::append(&mut bytes, Kind::Headers, flag::END_HEADERS, stream, &block);
        let mut body = vec![0];
        body.extend(length.to_be_bytes());
        body.extend(message);
        let mut chunks = body.chunks(MAX_PAYLOAD).peekable();
        while let Some(chunk) = chunks.next() {
            let flags = if chunks.peek().is_none() { flag::END_STREAM } else { 0 };
            frame::append(&mut bytes, Kind::Data, flags, stream, chunk);
        }
        write(&mut self.stream, &bytes).await.map_err(lost)?;
        Ok(stream)
    }

    async fn receive(&mut self, stream: u32) -> Result<Vec<u8>, Status> {
        let mut body = Vec::new();
        let mut headers = Vec::new();
        loop {
            let frame = read(&mut self.stream).await.map_err(lost)?;
            let ours = frame.stream == stream;
            match frame.kind {
                Kind::Data => {
                    self.update_windows(&frame, ours).await.map_err(lost)?;
                    if ours {
                        body.extend(frame.content().map_err(lost)?);
                        if body.len() > MAX_MESSAGE + 5 {
                            return Err(Status::resource_exhausted("the response is larger than 4 MiB"));
                        }
                        if frame.flags & flag::END_STREAM != 0 {
                            return Err(Status::internal("the stream ended without trailers"));
                        }
                    }
                }
                Kind::Headers => {
                    let fields = self.fields(&frame).await?;
                    if ours {
                        headers.extend(fields);
                        if frame.flags & flag::END_STREAM != 0 {
                            return finish(&headers, &body);
                        }
                    }
                }
                Kind::Reset if ours => {
                    let code = frame.error_code(0);
                    return Err(Status::internal(format!("the stream was reset by the server: {code}")));
                }
                Kind::GoAway if frame.last_stream() < stream || frame.error_code(4).is_error() => {
                    let code = frame.error_code(4);
                    return Err(Status::unavailable(format!("the connection was closed by the server: {code}")));
                }
                Kind::Settings if frame.flags & flag::ACK == 0 => self.acknowledge_settings().await.map_err(lost)?,
                Kind::Ping if frame.flags & flag::ACK == 0 => {
                    let mut pong = Vec::new();
                    frame::append(&mut pong, Kind::Ping, flag::ACK, 0, &frame.payload);
                    write(&mut self.stream, &pong).await.map_err(lost)?;
                }
                _ => {}
            }
        }
    }

    /// Returns the flow-control window that a data frame has used, on the connection and on the stream.
    async fn update_windows(&mut self, frame: &Frame, ours: bool) -> io::Result<()> {
        let Ok(length @ 1..) = u32::try_from(frame.payload.len()) else { return Ok(()) };
        let mut updates = Vec::new();
        frame::append(&mut updates, Kind::WindowUpdate, 0, 0, &length.to_be_bytes());
        if ours && frame.flags & flag::END_STREAM == 0 {
            frame::append(&mut updates, Kind::WindowUpdate, 0, frame.stream, &length.to_be_bytes());
        }
        write(&mut self.stream, &updates).await
    }

    /// Decodes a header block. Those of other streams are decoded too: all share the connection's HPACK table.
    async fn fields(&mut self, frame: &Frame) -> Result<Vec<(String, String)>, Status> {
        let mut block = frame.content().map_err(lost)?.to_vec();
        let mut complete = frame.flags & flag::END_HEADERS != 0;
        while !complete {
            let more = read(&mut self.stream).await.map_err(lost)?;
            if more.kind != Kind::Continuation || more.stream != frame.stream {
                return Err(Status::internal("headers were interrupted"));
            }
            block.extend(&more.payload);
            if block.len() > MAX_HEADERS {
                return Err(Status::internal("the headers of the response are too long"));
            }
            complete = more.flags & flag::END_HEADERS != 0;
        }
        let mut fields = Vec::new();
        let decoded = self.decoder.decode(&mut block, &mut fields);
        decoded.map_err(|error| Status::internal(format!("decode headers: {error:?}")))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(fields.into_iter().map(|(name, value, _)| (text(name), text(value))).collect())
    }
}

/// Returns the result of a call whose stream has ended.
fn finish(headers: &[(String, String)], body: &[u8]) -> Result<Vec<u8>, Status> {
    // Trailers come last, and take precedence.
    let find = |key: &str| headers.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let status = find("grpc-status").and_then(|code| code.parse().ok());
    match (status, find(":status")) {
        (Some(0), _) => {}
        (Some(code), _) => {
            let message = percent_decode_str(find("grpc-message").unwrap_or_default()).decode_utf8_lossy();
            return Err(Status::new(Code::from(code), message));
        }
        (None, http) => {
            let http = http.unwrap_or("none");
            return Err(Status::unknown(format!("not a gRPC response: HTTP status {http} and no grpc-status")));
        }
    }
    match body {
        [0, l0, l1, l2, l3, message @ ..] if u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize == message.len() => {
            Ok(message.to_vec())
        }
        [1, ..] => Err(Status::unimplemented("the response is compressed, which was not offered")),
        _ => Err(Status::internal("the response is not one message")),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn lost(error: io::Error) -> Status {
    Status::unavailable(format!("the connection was lost: {error}"))
}

#[cfg(test)]
mod tests;
