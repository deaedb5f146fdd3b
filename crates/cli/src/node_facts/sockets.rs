//! The sockets of drivers: those in the kubelet's registry, and those that the kubelet calls.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drakkar_kubelet_api::registration::registration_client::RegistrationClient;
use drakkar_kubelet_api::registration::{InfoRequest, PluginInfo};
use hyper_util::rt::TokioIo;
use rustix::fs::FileType;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::host::{Directory, Host};

/// The time that a socket has to accept a connection, and a driver to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer of a driver; real ones have a few hundred bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// A socket on the host.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The path on the host.
    pub(crate) path: PathBuf,
    pub(crate) state: SocketState,
}

/// What a connection to a socket showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocketState {
    Accepts,
    /// Nobody listens: its process is dead.
    Refuses,
    Missing,
    /// This process may not connect.
    Denied,
    /// There is something else than a socket, or an unusual error.
    Failed(String),
}

/// A socket in the kubelet's registry, and what its driver answered.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) socket: Socket,
    /// The file name.
    pub(crate) name: String,
    /// The answer of `GetInfo`, or why there is none; absent if nobody listens.
    pub(crate) info: Option<Result<PluginInfo, String>>,
}

/// Finds and asks all sockets in the kubelet's registry.
pub(crate) async fn registrations(registry: &Directory) -> io::Result<Vec<Registration>> {
    let mut found = Vec::new();
    for entry in registry.entries()? {
        // The kubelet ignores names with a leading dot.
        if entry.status.kind != FileType::Socket || entry.name.starts_with('.') {
            continue;
        }
        let (state, stream) = match registry.socket(&entry.name) {
            Ok((path, _handle)) => connect(&path).await,
            Err(error) => (state_of(&error), None),
        };
        let info = match stream {
            Some(stream) => Some(match timeout(PATIENCE, get_info(stream)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
            }),
            None => None,
        };
        let path = registry.path().join(&entry.name);
        let socket = Socket { path, state };
        found.push(Registration { socket, name: entry.name, info });
    }
    Ok(found)
}

/// Connects to a socket in a directory.
pub(crate) async fn probe_in(directory: &Directory, name: &str) -> Socket {
    let path = directory.path().join(name);
    let state = match directory.socket(name) {
        Ok((path, _handle)) => connect(&path).await.0,
        Err(error) => state_of(&error),
    };
    Socket { path, state }
}

/// Connects to a socket by its path on the host.
pub(crate) async fn probe(host: &Host, path: &Path) -> Socket {
    let state = match host.socket(path) {
        Ok((path, _handle)) => connect(&path).await.0,
        Err(error) => state_of(&error),
    };
    Socket { path: path.to_owned(), state }
}

async fn connect(path: &Path) -> (SocketState, Option<UnixStream>) {
    match timeout(PATIENCE, UnixStream::connect(path)).await {
        Ok(Ok(stream)) => (SocketState::Accepts, Some(stream)),
        Ok(Err(error)) => (state_of(&error), None),
        Err(_) => (SocketState::Failed(format!("no connection within {} s", PATIENCE.as_secs())), None),
    }
}

fn state_of(error: &io::Error) -> SocketState {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => SocketState::Refuses,
        io::ErrorKind::NotFound => SocketState::Missing,
        io::ErrorKind::PermissionDenied => SocketState::Denied,
        _ => SocketState::Failed(error.to_string()),
    }
}

async fn get_info(stream: UnixStream) -> Result<PluginInfo, String> {
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("the connection was closed"));
        async move { stream }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| error.to_string())?;
    let mut client = RegistrationClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    match client.get_info(InfoRequest {}).await {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) => Err(format!("GetInfo: {}: {}", status.code(), status.message())),
    }
}
