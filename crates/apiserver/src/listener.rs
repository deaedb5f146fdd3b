//! The server's port, and the connections on it.
//!
//! A server that stops keeps its port: a second socket is bound to it that never listens. So the server comes back at the
//! same address, whatever else takes ports on this machine meanwhile, and while it is away connections are refused.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::core::Core;
use super::faults::Partition;
use super::serve::serve;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A port that is kept.
#[derive(Debug)]
pub(crate) struct Port {
    address: SocketAddr,
    _kept: TcpSocket,
}

impl Port {
    /// Takes any free port.
    pub(crate) fn take() -> io::Result<Self> {
        let kept = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { address: kept.local_addr()?, _kept: kept })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn listen(&self) -> io::Result<TcpListener> {
        bind(self.address)?.listen(BACKLOG)
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves until the handle is dropped; then all connections are gone.
pub(crate) fn run(port: &Port, core: Arc<Core>, tls: Option<TlsAcceptor>) -> io::Result<AbortOnDropHandle<()>> {
    let listener = port.listen()?;
    Ok(AbortOnDropHandle::new(tokio::spawn(accept(listener, core, tls))))
}

async fn accept(listener: TcpListener, core: Arc<Core>, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if core.faults.partitioned(None) == Some(Partition::Cut) => drop(stream),
                Ok((stream, _)) => drop(connections.spawn(connection(stream, core.clone(), tls.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "API server: accept a connection");
                    // Out of file descriptors, most likely: others must end first.
                    connections.join_next().await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, core: Arc<Core>, tls: Option<TlsAcceptor>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "API server: set TCP_NODELAY");
    }
    match tls {
        None => speak(stream, core).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => speak(stream, core).await,
            Err(error) => tracing::debug!(%error, "API server: TLS handshake"),
        },
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send, core: Arc<Core>) {
    let service = service_fn(move |request| serve(core.clone(), request));
    let served = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        // Clients that go away, and connections that a fault cuts.
        tracing::debug!(%error, "API server: connection ended");
    }
}
