//! Requests over HTTP/1.1 connections that are kept between requests.
//!
//! A prepare waits for one small GET. `kube`'s client sends it through a buffer, a pool and a task per connection: three tasks
//! that wake each other, and twice the processor time of the request itself. Here the task of the caller drives the connection,
//! and for an answer that is read piece by piece (a watch) whoever reads it.
//!
//! A kept connection may have been closed by the server meanwhile, which is noticed when it is used next. Then another one is
//! used, and a GET that got no answer on a kept connection is sent again on a new one; any other request may have been carried
//! out, so its error is returned. A kept connection may also be dead without being closed: when a request on one fails or is given
//! up before it is answered, the others that nobody has used since are closed. So are those that nobody has used for
//! [`MAX_IDLE_TIME`].

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::response::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use kube::client::Body;
use rustls::sign::CertifiedKey;
use smallvec::SmallVec;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tower::util::{BoxCloneSyncService, ServiceExt as _};
use tower::{BoxError, Service};

use super::credentials::{Credentials, Used};
use super::tls::Identity;
use super::{is_same, lock};

/// The number of connections that are kept.
const MAX_IDLE: usize = 64;
/// How long a connection is kept without a request.
const MAX_IDLE_TIME: Duration = Duration::from_secs(60);
/// The time limit of a new connection: name resolution, TCP and TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long headers are used before the credentials are asked again, which may read a file or run a program.
const CREDENTIALS_LIFETIME: Duration = Duration::from_secs(1);

/// A stream to the server, encrypted or not.
type Stream = Pin<Box<dyn Io>>;

/// What a connection of `hyper` reads from and writes to.
trait Io: Read + Write + Send {}
impl<T: Read + Write + Send> Io for T {}

/// A client that sends requests over kept connections.
pub(crate) struct KeptConnections {
    connect: BoxCloneSyncService<Uri, Stream, BoxError>,
    server: Uri,
    host: HeaderValue,
    /// The path of the server's URL, before the path of each request.
    base_path: String,
    credentials: Credentials,
    /// The client certificate of new connections.
    identity: Option<Arc<Identity>>,
    /// The headers of the server and of the credentials.
    headers: Mutex<Option<(HeaderMap, Instant)>>,
    pool: Arc<Mutex<Pool>>,
}

/// The connections without a request in progress.
#[derive(Default)]
struct Pool {
    idle: Vec<Idle>,
    /// The task that closes connections which nobody uses; it ends with the last one.
    closing: Option<AbortHandle>,
}

struct Idle {
    connection: Box<Connection>,
    since: Instant,
}

/// A connection and its two ends in `hyper`. Boxed wherever it is kept: it is large, and moved for each request.
struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Driver,
    /// The client certificate that it was made with.
    identity: Option<Arc<CertifiedKey>>,
}

/// The end of a connection that reads and writes. Dropped when it is over: only then does `hyper` answer a request that was
/// not sent any more.
struct Driver(Option<http1::Connection<Stream, Full<Bytes>>>);

/// A request on a kept connection, until the head of its answer has arrived. If it fails or is given up before, the connections
/// without a request that nobody has used since are closed: they may be just as dead, and a new one costs less than another request
/// without an answer.
struct Unanswered<'a> {
    pool: &'a Mutex<Pool>,
    since: Instant,
    is_answered: bool,
}

/// A request that can be sent more than once.
struct Outgoing {
    method: Method,
    uri: Uri,
    headers: SmallVec<[(HeaderName, HeaderValue); 2]>,
    body: Bytes,
    /// The map that the headers were in, with its memory.
    map: HeaderMap,
}

/// The body of an answer that is read as it arrives. The connection is closed when it is dropped.
pub(crate) struct Streamed {
    body: Incoming,
    connection: Box<Connection>,
}

impl KeptConnections {
    /// Creates a client for the server of a URL, whose connections are made by `connector`.
    pub(super) fn new<C, S>(
        server: Uri,
        credentials: Credentials,
        identity: Option<Arc<Identity>>,
        connector: C,
    ) -> Self
    where
        C: Service<Uri, Response = S, Error = BoxError> + Clone + Send + Sync + 'static,
        C::Future: Send,
        S: Read + Write + Send + 'static,
    {
        let connect = connector.map_response(|stream| Box::pin(stream) as Stream);
        let host = server.authority().map_or("", |authority| authority.as_str());
        // A URL's authority has only characters that a header may have.
        let host = HeaderValue::from_str(host).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self {
            connect: BoxCloneSyncService::new(connect),
            host,
            base_path: server.path().trim_end_matches('/').to_owned(),
            server,
            credentials,
            identity,
            headers: Mutex::default(),
            pool: Arc::default(),
        }
    }

    /// Sends a request and reads the answer, up to `max_bytes`.
    pub(crate) async fn exchange(&self, request: Request<Body>, max_bytes: usize) -> Result<(Parts, Bytes), BoxError> {
        let mut outgoing = self.outgoing(request).await?;
        // First, because it may renew the client certificate of the connection, and may take long.
        let mut request = self.authenticated(&mut outgoing).await?;
        if let Some(kept) = self.take_idle() {
            match self.exchange_on(kept, request, max_bytes, Some(self.unanswered())).await {
                // Closed by the server at the same moment.
                Err(error) if outgoing.method == Method::GET && is_without_answer(&error) => {}
                Err(error) if is_unsent(&error) => {}
                answer => return answer,
            }
            request = self.authenticated(&mut outgoing).await?;
        }
        let connection = self.connect().await?;
        self.exchange_on(connection, request, max_bytes, None).await
    }

    /// As [`Self::exchange`], over a new connection: the others may be those of a server that is gone.
    pub(crate) async fn exchange_anew(
        &self,
        request: Request<Body>,
        max_bytes: usize,
    ) -> Result<(Parts, Bytes), BoxError> {
        let mut outgoing = self.outgoing(request).await?;
        let request = self.authenticated(&mut outgoing).await?;
        let connection = self.connect().await?;
        self.exchange_on(connection, request, max_bytes, None).await
    }

    /// Sends a request over a connection of its own, and returns when the head of the answer has arrived.
    pub(crate) async fn open(&self, request: Request<Body>) -> Result<Response<Streamed>, BoxError> {
        let mut outgoing = self.outgoing(request).await?;
        let request = self.authenticated(&mut outgoing).await?;
        let mut connection = self.connect().await?;
        let (head, body) = self.send_on(&mut connection, request).await?.into_parts();
        Ok(Response::from_parts(head, Streamed { body, connection }))
    }

    /// Reads the body of a request, and puts the path of the server's URL before its own.
    async fn outgoing(&self, request: Request<Body>) -> Result<Outgoing, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = if self.base_path.is_empty() { head.uri } else { format!("{}{path}", self.base_path).parse()? };
        let mut map = head.headers;
        let mut headers = SmallVec::new();
        let mut last = None;
        for (name, value) in map.drain() {
            // A value without a name belongs to the last one.
            last = name.or(last);
            headers.extend(last.clone().map(|name| (name, value)));
        }
        Ok(Outgoing { method: head.method, uri, headers, body, map })
    }

    /// Returns a request with the headers of the server and of the client's credentials.
    async fn authenticated(&self, outgoing: &mut Outgoing) -> Result<Request<Full<Bytes>>, BoxError> {
        let mut headers = std::mem::take(&mut outgoing.map);
        self.add_headers(&mut headers).await?;
        for (name, value) in &outgoing.headers {
            headers.append(name, value.clone());
        }
        let mut request = Request::new(Full::new(outgoing.body.clone()));
        *request.method_mut() = outgoing.method.clone();
        *request.uri_mut() = outgoing.uri.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn exchange_on(
        &self,
        mut connection: Box<Connection>,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
        unanswered: Option<Unanswered<'_>>,
    ) -> Result<(Parts, Bytes), BoxError> {
        let (head, body) = self.send_on(&mut connection, request).await?.into_parts();
        if let Some(mut unanswered) = unanswered {
            unanswered.is_answered = true;
        }
        let body = connection.read(body, max_bytes).await?;
        if connection.poll_is_usable() {
            self.keep(connection);
        }
        Ok((head, body))
    }

    /// Sends a request, and returns when the head of the answer has arrived. Forgets credentials that the server has refused.
    async fn send_on(
        &self,
        connection: &mut Connection,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, BoxError> {
        let authorization = request.headers().get(header::AUTHORIZATION).cloned();
        let answer = connection.send(request).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            self.credentials.refuse(Used { authorization, identity: connection.identity.clone() });
            if let Some(identity) = &self.identity {
                identity.refuse();
            }
            *lock(&self.headers) = None;
        }
        Ok(answer)
    }

    async fn connect(&self) -> Result<Box<Connection>, BoxError> {
        let identity = self.current_identity();
        let handshakes = async {
            let stream = self.connect.clone().oneshot(self.server.clone()).await?;
            Ok::<_, BoxError>(http1::handshake(stream).await?)
        };
        // Boxed because it is rare and large: the usual future stays small.
        let connected = Box::pin(timeout(CONNECT_TIMEOUT, handshakes)).await;
        let (sender, connection) = connected.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Box::new(Connection { sender, driver: Driver(Some(connection)), identity }))
    }

    fn current_identity(&self) -> Option<Arc<CertifiedKey>> {
        self.identity.as_ref().map(|identity| identity.current())
    }

    /// Adds the headers of the server and of the client's credentials.
    async fn add_headers(&self, headers: &mut HeaderMap) -> Result<(), BoxError> {
        let mut add = |known: &HeaderMap| {
            for (name, value) in known {
                headers.append(name, value.clone());
            }
        };
        if let Some((known, since)) = &*lock(&self.headers)
            && since.elapsed() < CREDENTIALS_LIFETIME
        {
            add(known);
            return Ok(());
        }
        let mut fresh = self.credentials.headers().await?;
        fresh.insert(header::HOST, self.host.clone());
        add(&fresh);
        *lock(&self.headers) = Some((fresh, Instant::now()));
        Ok(())
    }

    /// Returns the connection that was used last, if it is still open. Drops those that were made with another certificate.
    fn take_idle(&self) -> Option<Box<Connection>> {
        let identity = self.current_identity();
        loop {
            let mut connection = lock(&self.pool).idle.pop()?.connection;
            if is_same(connection.identity.as_ref(), identity.as_ref()) && connection.poll_is_usable() {
                return Some(connection);
            }
        }
    }

    fn unanswered(&self) -> Unanswered<'_> {
        Unanswered { pool: &self.pool, since: Instant::now(), is_answered: false }
    }

    fn keep(&self, connection: Box<Connection>) {
        let mut pool = lock(&self.pool);
        if pool.idle.len() < MAX_IDLE {
            pool.idle.push(Idle { connection, since: Instant::now() });
        }
        if pool.closing.is_none() {
            pool.closing = Some(tokio::spawn(close_unused(Arc::downgrade(&self.pool))).abort_handle());
        }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            lock(self.pool).idle.retain(|idle| idle.since > self.since);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(closing) = &self.closing {
            closing.abort();
        }
    }
}

/// Closes connections that nobody has used for a while. Ends when none is left.
async fn close_unused(pool: Weak<Mutex<Pool>>) {
    loop {
        tokio::time::sleep(MAX_IDLE_TIME / 2).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut pool = lock(&pool);
        pool.idle.retain(|idle| idle.since.elapsed() < MAX_IDLE_TIME);
        if pool.idle.is_empty() {
            pool.closing = None;
            return;
        }
    }
}

impl Connection {
    /// Sends a request, and returns when the head of the answer has arrived.
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, BoxError> {
        let Self { sender, driver, .. } = self;
        Ok(driver.drive(sender.send_request(request)).await?)
    }

    /// Reads the body of an answer.
    async fn read(&mut self, body: Incoming, max_bytes: usize) -> Result<Bytes, BoxError> {
        self.driver.drive(read_all(Limited::new(body, max_bytes))).await
    }

    /// Whether another request can be sent. Makes no system call unless the kernel has reported something.
    fn poll_is_usable(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.driver.poll(&mut context);
        self.driver.0.is_some() && self.sender.is_ready()
    }
}

impl Driver {
    /// Reads and writes what is possible.
    fn poll(&mut self, context: &mut Context<'_>) {
        // An error of the connection is also that of the request.
        if self.0.as_mut().is_some_and(|connection| Pin::new(connection).poll(context).is_ready()) {
            self.0 = None;
        }
    }

    /// Waits for something that needs the connection to make progress.
    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| self.poll_with(context, |context| work.as_mut().poll(context))).await
    }

    /// Polls something that needs the connection to make progress.
    fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if let Poll::Ready(done) = work(context) {
            return Poll::Ready(done);
        }
        self.poll(context);
        work(context)
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, connection } = self.get_mut();
        connection.driver.poll_with(context, |context| Pin::new(&mut *body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a body. Nearly every one is in one piece, which is not copied.
async fn read_all(mut body: Limited<Incoming>) -> Result<Bytes, BoxError> {
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Whether the server closed the connection before it began to answer.
fn is_without_answer(error: &BoxError) -> bool {
    let error = error.downcast_ref::<hyper::Error>();
    error.is_some_and(|error| {
        error.is_incomplete_message() || error.is_canceled() || error.is_closed() || is_reset(error)
    })
}

/// Whether nothing of the request was sent.
fn is_unsent(error: &BoxError) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
}

fn is_reset(error: &hyper::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};

    let kind = crate::send_error::io_cause(error).map(io::Error::kind);
    // The end of a TLS connection that the other side has not announced is an unexpected one.
    matches!(kind, Some(ConnectionReset | BrokenPipe | UnexpectedEof | ConnectionAborted | TimedOut))
}
