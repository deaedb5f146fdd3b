//! `GetInfo` as grpc-go sends it from a kubelet, byte by byte. Rust clients cannot send it: they reject the authority.

use std::path::Path;
use std::time::Duration;

use drakkar_kubelet_api::registration::PluginInfo;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The limit for anything in these tests, which take far less.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The server's answer to a call.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Info(PluginInfo),
    /// The stream was reset; 1 is `PROTOCOL_ERROR`.
    Reset {
        error_code: u32,
    },
    /// Anything else.
    Unexpected(String),
}

/// Returns the authority that grpc-go sends for a socket path. It escapes all but letters, digits and some signs, such as `@`.
fn authority(path: &Path) -> String {
    let mut authority = String::new();
    for byte in path.to_str().unwrap().bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte) {
            authority.push(char::from(byte));
        } else {
            authority.push_str(&format!("%{byte:02X}"));
        }
    }
    authority
}

/// Calls `GetInfo` on a new connection to the socket at `path`.
pub(super) async fn call_get_info(mut stream: UnixStream, path: &Path) -> Answer {
    let headers = header_block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/pluginregistration.Registration/GetInfo"),
        (":authority", &authority(path)),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.72.2"),
        ("te", "trailers"),
        ("grpc-timeout", "999m"),
    ]);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &headers));
    // An empty message: only gRPC's prefix of five bytes.
    bytes.extend(frame(DATA, END_STREAM, 1, &[0; 5]));
    stream.write_all(&bytes).await.unwrap();
    timeout(TIMEOUT, answer(&mut stream)).await.expect("no answer in time")
}

async fn answer(stream: &mut UnixStream) -> Answer {
    let mut message = vec![];
    loop {
        let mut head = [0; 9];
        if let Err(error) = stream.read_exact(&mut head).await {
            return Answer::Unexpected(error.to_string());
        }
        let [l0, l1, l2, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        match kind {
            DATA => message.extend(payload),
            HEADERS if flags & END_STREAM != 0 => {
                return match PluginInfo::decode(message.get(5..).unwrap_or_default()) {
                    Ok(info) if !message.is_empty() => Answer::Info(info),
                    other => Answer::Unexpected(format!("{other:?}, {payload:?}")),
                };
            }
            RST_STREAM => return Answer::Reset { error_code: u32::from_be_bytes(payload.try_into().unwrap()) },
            GO_AWAY => return Answer::Unexpected("the connection ends".to_owned()),
            SETTINGS if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap(),
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes headers in HPACK's simplest form: literal, not indexed, not compressed.
fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![];
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            match text.len() {
                length @ 0..127 => block.push(u8::try_from(length).unwrap()),
                length => {
                    // HPACK's integer: a full prefix of seven bits, then the rest, here in one byte.
                    block.push(127);
                    let rest = u8::try_from(length - 127).unwrap();
                    assert!(rest < 128, "{text:?} is too long for this encoder");
                    block.push(rest);
                }
            }
            block.extend(text.as_bytes());
        }
    }
    block
}
