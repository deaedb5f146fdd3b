//! Requests to the plain HTTP endpoints of a kubelet and of a driver.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time that a server has to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const MAX_ANSWER: u64 = 64 * 1024;

/// The answer of an HTTP endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HttpAnswer {
    /// There is no answer, for this reason.
    None(String),
    /// The status and the body.
    Status(u16, String),
}

/// Asks for a path; an address without a host is this one.
pub(crate) async fn get(address: &str, path: &str) -> HttpAnswer {
    let address = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
    match timeout(PATIENCE, exchange(&address, path)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => HttpAnswer::None(error.to_string()),
        Err(_) => HttpAnswer::None(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

async fn exchange(address: &str, path: &str) -> std::io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect(address).await?;
    // With HTTP/1.0 the server closes the connection after the answer, and does not send it in chunks.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1).and_then(|status| status.parse().ok()) {
        Some(status) => Ok(HttpAnswer::Status(status, body.trim().to_owned())),
        None => Ok(HttpAnswer::None("not an answer of HTTP".to_owned())),
    }
}
