//! Unary gRPC calls as the kubelet's registration client makes them: over HTTP/2 of our own, because no Rust client sends
//! what grpc-go sends there as `:authority`, the percent-encoded path of the socket.
//!
//! One call at a time on a connection. Only what a peer may do to such a call is understood: its settings and pings are
//! answered, windows are kept open, and the end of the stream or of the connection is the end of the call.

mod frame;
mod rewrite;

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use httlib_hpack::{Decoder, Encoder};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use self::frame::{Frame, Kind, MAX_PAYLOAD, flag, read, write};
pub(super) use self::rewrite::WithAuthority;
use drakkar_client::Backoff;

/// What every client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// grpc-go's limit for a message that is received.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// More than the headers of any answer to these calls.
const MAX_HEADERS: usize = 64 * 1024;
/// What may be sent before the peer says that it has room for more.
const WINDOW: usize = 65_535;

/// The authority that grpc-go makes of a target that is a path: everything is escaped but letters, digits and the signs
/// that an authority may have, `@` among them.
pub(super) fn authority(path: &Path) -> String {
    let mut authority = String::new();
    for &byte in std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()) {
        if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte) {
            authority.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(authority, "%{byte:02X}");
        }
    }
    authority
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
    /// Dials a socket until it answers with its settings, again and again, as a blocking dial of grpc-go does.
    pub(super) async fn dial(path: &Path, within: Duration, backoff: Backoff) -> Result<Self, Status> {
        let deadline = Instant::now() + within;
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
                Err(Status::unavailable(format!("dial {path}: no connection within {} s: {reason}", within.as_secs())))
            }
        }
    }

    async fn open(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path).await?;
        let mut hello = PREFACE.to_vec();
        frame::append(&mut hello, Kind::Settings, 0, 0, &[]);
        write(&mut stream, &hello).await?;
        let decoder = Decoder::default();
        let mut connection = Self { stream, authority: authority(path), decoder, next_stream: 1 };
        let first = read(&mut connection.stream).await?;
        if first.kind != Kind::Settings || first.flags & flag::ACK != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server does not begin with its settings"));
        }
        connection.acknowledge().await?;
        Ok(connection)
    }

    async fn acknowledge(&mut self) -> io::Result<()> {
        let mut answer = Vec::new();
        frame::append(&mut answer, Kind::Settings, flag::ACK, 0, &[]);
        write(&mut self.stream, &answer).await
    }

    /// Calls a method with an encoded message, and gives the encoded answer.
    pub(super) async fn call(&mut self, method: &str, message: &[u8], within: Duration) -> Result<Vec<u8>, Status> {
        let called = timeout_at(Instant::now() + within, async {
            let stream = self.send(method, message, within).await?;
            self.answer(stream).await
        });
        match called.await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} ms", within.as_millis()))),
        }
    }

    async fn send(&mut self, method: &str, message: &[u8], within: Duration) -> Result<u32, Status> {
        let stream = self.next_stream;
        self.next_stream += 2;
        let Ok(length) = u32::try_from(message.len()) else { return Err(Status::resource_exhausted("too long")) };
        if message.len() + 5 > WINDOW {
            return Err(Status::resource_exhausted(format!("a message of {length} bytes is too long for {method}")));
        }
        let millis = format!("{}m", within.as_millis().max(1));
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

    async fn answer(&mut self, stream: u32) -> Result<Vec<u8>, Status> {
        let (mut body, mut headers) = (Vec::new(), Vec::new());
        loop {
            let frame = read(&mut self.stream).await.map_err(lost)?;
            let ours = frame.stream == stream;
            match frame.kind {
                Kind::Data => {
                    self.reopen(&frame, ours).await.map_err(lost)?;
                    if ours {
                        body.extend(frame.content().map_err(lost)?);
                        if body.len() > MAX_MESSAGE + 5 {
                            return Err(Status::resource_exhausted("the answer is larger than 4 MiB"));
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
                Kind::Settings if frame.flags & flag::ACK == 0 => self.acknowledge().await.map_err(lost)?,
                Kind::Ping if frame.flags & flag::ACK == 0 => {
                    let mut pong = Vec::new();
                    frame::append(&mut pong, Kind::Ping, flag::ACK, 0, &frame.payload);
                    write(&mut self.stream, &pong).await.map_err(lost)?;
                }
                _ => {}
            }
        }
    }

    /// Gives the room back that a frame of data took, on the connection and on the stream.
    async fn reopen(&mut self, frame: &Frame, ours: bool) -> io::Result<()> {
        let Ok(length @ 1..) = u32::try_from(frame.payload.len()) else { return Ok(()) };
        let mut updates = Vec::new();
        frame::append(&mut updates, Kind::WindowUpdate, 0, 0, &length.to_be_bytes());
        if ours && frame.flags & flag::END_STREAM == 0 {
            frame::append(&mut updates, Kind::WindowUpdate, 0, frame.stream, &length.to_be_bytes());
        }
        write(&mut self.stream, &updates).await
    }

    /// The fields of a header block. Those of foreign streams are decoded too: the table is one for the connection.
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
                return Err(Status::internal("the headers of the answer are too long"));
            }
            complete = more.flags & flag::END_HEADERS != 0;
        }
        let mut fields = Vec::new();
        let decoded = self.decoder.decode(&mut block, &mut fields);
        decoded.map_err(|error| Status::internal(format!("headers cannot be read: {error:?}")))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(fields.into_iter().map(|(name, value, _)| (text(name), text(value))).collect())
    }
}

/// What became of a call whose stream has ended.
fn finish(headers: &[(String, String)], body: &[u8]) -> Result<Vec<u8>, Status> {
    // Trailers come last, and count.
    let find = |wanted: &str| headers.iter().rev().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    let status = find("grpc-status").and_then(|code| code.parse().ok());
    match (status, find(":status")) {
        (Some(0), _) => {}
        (Some(code), _) => {
            return Err(Status::new(Code::from(code), unescape(find("grpc-message").unwrap_or_default())));
        }
        (None, http) => {
            let http = http.unwrap_or("none");
            return Err(Status::unknown(format!("no answer of a gRPC server: HTTP status {http} and no grpc-status")));
        }
    }
    match body {
        [0, l0, l1, l2, l3, message @ ..] if u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize == message.len() => {
            Ok(message.to_vec())
        }
        [1, ..] => Err(Status::unimplemented("the answer is compressed, which was not offered")),
        _ => Err(Status::internal("the answer is not one message")),
    }
}

/// A `grpc-message` is percent-encoded.
fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let escaped = || {
            let digits = tail.get(..2).filter(|_| *first == b'%')?;
            u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let (byte, taken) = escaped().map_or((*first, 1), |byte| (byte, 3));
        bytes.push(byte);
        rest = rest.get(taken..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn lost(error: io::Error) -> Status {
    Status::unavailable(format!("the connection was lost: {error}"))
}

#[cfg(test)]
mod tests;
