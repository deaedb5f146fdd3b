//! The channel protocol of `exec`: the first byte of each binary message names the channel that the rest is for.
//!
//! The last message of the server is a `Status` with the exit code, on the error channel. In version 5 a client ends the input
//! with a message on the close channel; in version 4 the input ends with the connection.

use futures::stream::{self, BoxStream, SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::kubelet::{ExecSession, KubeletError};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// The most output in one message.
const MAX_MESSAGE: usize = 32 << 10;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    V5,
    V4,
}

impl Protocol {
    pub(super) const ALL: [Self; 2] = [Self::V5, Self::V4];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V5 => "v5.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
        }
    }
}

/// Connects a client with a program, until the program has exited or the client is gone.
pub(super) async fn serve<S>(socket: WebSocketStream<S>, protocol: Protocol, session: ExecSession) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, messages) = socket.split();
    let ExecSession { stdin, stdout, stderr, resize, exit } = session;
    let output = stream::select(pieces(STDOUT, stdout), pieces(STDERR, stderr));
    // Side by side: a program that reads its input only while its output is read must not be stuck.
    tokio::select! {
        sent = send(sink, output, exit) => sent,
        received = receive(messages, protocol, stdin, resize) => received,
    }
}

/// Tells a client why its program was not started.
pub(super) async fn refuse<S>(mut socket: WebSocketStream<S>, error: &KubeletError) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let status =
        failure("InternalError", &format!("Internal error occurred: error executing command in container: {error}"));
    socket.send(message(ERROR, status.to_string().as_bytes())).await?;
    socket.close(Some(end())).await
}

async fn send<S>(
    mut sink: SplitSink<WebSocketStream<S>, Message>,
    mut output: impl futures::Stream<Item = Message> + Unpin,
    exit: futures::future::BoxFuture<'static, std::io::Result<i32>>,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = output.next().await {
        sink.send(message).await?;
    }
    let status = match exit.await {
        Ok(0) => json!({ "metadata": {}, "status": "Success" }),
        Ok(code) => exit_status(code),
        Err(error) => failure("InternalError", &format!("error executing command in container: {error}")),
    };
    sink.send(message(ERROR, status.to_string().as_bytes())).await?;
    sink.send(Message::Close(Some(end()))).await?;
    sink.close().await
}

async fn receive<S>(
    mut messages: SplitStream<WebSocketStream<S>>,
    protocol: Protocol,
    mut stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    resize: Option<Box<dyn Fn(u16, u16) + Send + Sync>>,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = messages.next().await {
        let content = match message? {
            Message::Binary(content) => content,
            Message::Close(_) => break,
            _ => continue,
        };
        match (content.split_first(), &mut stdin) {
            (Some((&STDIN, data)), Some(input)) => {
                // A program may close its input, or end, before it has read all of it.
                if let Err(error) = write(input, data).await {
                    tracing::debug!(%error, "the program no longer reads its input");
                    stdin = None;
                }
            }
            (Some((&CLOSE, [STDIN])), _) if protocol == Protocol::V5 => stdin = None,
            (Some((&RESIZE, data)), _) => {
                if let (Ok(size), Some(resize)) = (serde_json::from_slice::<Size>(data), &resize) {
                    resize(size.width, size.height);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

async fn write(input: &mut (dyn AsyncWrite + Send + Unpin), data: &[u8]) -> std::io::Result<()> {
    input.write_all(data).await?;
    input.flush().await
}

/// The size of a terminal.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

/// Returns the messages with the output of a program.
fn pieces(channel: u8, from: Option<Box<dyn AsyncRead + Send + Unpin>>) -> BoxStream<'static, Message> {
    let Some(from) = from else { return stream::empty().boxed() };
    stream::unfold(from, move |mut from| async move {
        let mut piece = vec![0; MAX_MESSAGE];
        match from.read(&mut piece).await {
            Ok(length) if length > 0 => Some((message(channel, &piece[..length]), from)),
            // The other end of a terminal is gone, which is an error to read.
            Ok(_) | Err(_) => None,
        }
    })
    .boxed()
}

fn message(channel: u8, content: &[u8]) -> Message {
    let mut message = Vec::with_capacity(content.len() + 1);
    message.push(channel);
    message.extend_from_slice(content);
    Message::Binary(Bytes::from(message))
}

/// Returns the end of a connection. Without a code a client takes it for a failure.
fn end() -> CloseFrame {
    CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() }
}

fn exit_status(code: i32) -> Value {
    let mut status =
        failure("NonZeroExitCode", &format!("command terminated with non-zero exit code: exit status {code}"));
    status["details"] = json!({ "causes": [{ "reason": "ExitCode", "message": code.to_string() }] });
    status
}

fn failure(reason: &str, message: &str) -> Value {
    json!({ "metadata": {}, "status": "Failure", "reason": reason, "message": message })
}
