//! The port of the server, and its connections.
//!
//! A second socket stays bound to the port and never listens. It reserves the port while the server is stopped: connections
//! are refused, no other process can take the port, and the server resumes at the same address.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

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
use super::serve::{UpgradeSlot, serve};

/// The length of the accept queue.
const BACKLOG: u32 = 1024;

/// A reserved port.
#[derive(Debug)]
pub(crate) struct Port {
    address: SocketAddr,
    _reservation: TcpSocket,
}

impl Port {
    /// Reserves a free loopback port.
    pub(crate) fn reserve() -> io::Result<Self> {
        let reservation = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { address: reservation.local_addr()?, _reservation: reservation })
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

/// Serves until the handle is dropped, which closes all connections.
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
                    tracing::warn!(%error, "accepting a connection failed");
                    // Most likely out of file descriptors: wait for another connection to end.
                    connections.join_next().await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, core: Arc<Core>, tls: Option<TlsAcceptor>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    match tls {
        None => serve_connection(stream, core).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => serve_connection(stream, core).await,
            Err(error) => tracing::debug!(%error, "TLS handshake failed"),
        },
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, core: Arc<Core>) {
    let slot = UpgradeSlot::default();
    let upgrades = slot.clone();
    let service = service_fn(move |request| serve(core.clone(), request, upgrades.clone()));
    // Idle connections stay open: on a busy machine a limit would cut off clients whose next request is under way.
    let builder = http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(None).clone();
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let served = connection.with_upgrades().await;
    // An upgraded connection is served by the same task, which ends with the server.
    let upgraded = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(upgraded) = upgraded {
        upgraded.await;
    }
    if let Err(error) = served {
        // Expected when a client disconnects or a fault closes the connection.
        tracing::debug!(%error, "connection ended");
    }
}
