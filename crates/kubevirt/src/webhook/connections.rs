//! The connections of the webhook: their number, their handshakes and their end.
//!
//! A connection has a [`Place`], which says whether it has a request. Where all places are taken, a new connection gets the
//! place of one without a request, so connections that do nothing do not shut out others.

use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Options;
use super::http::Service;
use super::places::{Place, Places};

/// The wait after a failed accept, which is most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time for a connection without a request that is to end, enough to write an answer that is ready.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts connections until the token is cancelled, then waits for them for the grace period and closes what is left.
pub(super) async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    service: Service,
    options: &Options,
    stop: CancellationToken,
) {
    let places = Places::new(options.max_connections);
    let tasks = TaskTracker::new();
    let close = CancellationToken::new();
    let limits =
        Limits { handshake: options.handshake_timeout, header: options.header_timeout, idle: options.idle_timeout };
    while let Some((stream, place)) = next(&listener, &places, &stop).await {
        let (tls, service, stop, close) = (tls.clone(), service.clone(), stop.clone(), close.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = connection(stream, tls, service, limits, &place, stop) => {}
                () = close.cancelled() => tracing::warn!("connection closed with a request open"),
            }
        });
    }
    drop(listener);
    tasks.close();
    if timeout(options.grace, tasks.wait()).await.is_err() {
        close.cancel();
        tasks.wait().await;
    }
}

#[derive(Clone, Copy)]
struct Limits {
    handshake: Duration,
    header: Duration,
    idle: Duration,
}

/// The next connection with its place, or `None` when it is time to stop.
async fn next(listener: &TcpListener, places: &Places, stop: &CancellationToken) -> Option<(TcpStream, Place)> {
    let accept = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, places.acquire().await),
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        accepted = accept => Some(accepted),
    }
}

async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    service: Service,
    limits: Limits,
    place: &Place,
    stop: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let handshake = timeout(limits.handshake, tls.accept(stream));
    let stream = tokio::select! {
        () = stop.cancelled() => return,
        () = place.must_leave() => return tracing::debug!("connection closed in its handshake for a new one"),
        stream = handshake => match stream {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        },
    };
    let service = service_fn(|request| async {
        let _request = place.begin_request();
        service.respond(request).await
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            // Runs while a connection waits for its next request too.
            .header_read_timeout(limits.idle)
            .serve_connection(TokioIo::new(stream), service)
    );
    let first_request_late = async {
        tokio::time::sleep(limits.header).await;
        if place.has_served() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        served = connection.as_mut() => Some(served),
        () = first_request_late => return tracing::debug!("connection closed without a request"),
        () = place.must_leave() => {
            tracing::debug!("idle connection closed for a new one");
            None
        }
        () = stop.cancelled() => None,
    };
    let served = match ended {
        Some(served) => served,
        None => {
            connection.as_mut().graceful_shutdown();
            match timeout(LEAVE_TIMEOUT, connection.as_mut()).await {
                Ok(served) => served,
                Err(_) if place.has_request() => connection.await,
                // Half a head, most likely.
                Err(_) => Ok(()),
            }
        }
    };
    if let Err(error) = served {
        // Expected when a client goes away or takes too long.
        tracing::debug!(%error, "connection ended");
    }
}
