//! A proxy between a driver and its API server that records requests and injects faults.
//!
//! It listens on a loopback port, so it works the same with an embedded server and a real one, and connections really break.
//! Only the driver uses it: requests of the test itself go to the server directly.

mod request;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures::stream;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

pub use self::request::RecordedRequest;

/// A fault that a request gets in place of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 429, with a `Retry-After` in seconds.
    TooManyRequests(u32),
    /// 500, without forwarding the request.
    InternalError,
    /// 503, without forwarding the request.
    Unavailable,
    /// Closes the connection without forwarding the request.
    Disconnect,
    /// Forwards the request, and closes the connection before the response.
    LostResponse,
    /// 200 and then an error event in the watch: its resource version has expired.
    Expired,
}

/// How many requests a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Next(usize),
    Always,
}

type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

/// A proxy between the driver of one cluster and its API server.
pub struct ApiProxy {
    state: Arc<State>,
    address: SocketAddr,
    /// Reserves the port while the proxy is stopped, so that connections are refused.
    _reserved: TcpSocket,
    serving: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct State {
    server: kube::Client,
    /// The only version of resource.k8s.io that the driver sees; all if there is none.
    version: Option<&'static str>,
    requests: Mutex<Vec<RecordedRequest>>,
    /// Verb, resource, fault, and for how many more requests.
    faults: Mutex<Vec<(&'static str, &'static str, Fault, Times)>>,
    /// A change ends all running watches.
    watch_generation: watch::Sender<u64>,
    hangs: watch::Sender<bool>,
}

impl ApiProxy {
    /// Starts a proxy that forwards requests with the identity of `server`. With a version, it hides all others.
    pub fn to(server: kube::Client, version: Option<&'static str>) -> Self {
        let reserved = bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = reserved.local_addr().unwrap();
        let state = State {
            server,
            version,
            requests: Mutex::default(),
            faults: Mutex::default(),
            watch_generation: watch::Sender::default(),
            hangs: watch::Sender::default(),
        };
        let proxy = Self { state: Arc::new(state), address, _reserved: reserved, serving: Mutex::default() };
        proxy.resume();
        proxy
    }

    /// Returns a client with its own connections.
    pub fn client(&self) -> kube::Client {
        let mut config = kube::Config::new(format!("http://{}", self.address).parse().unwrap());
        // The proxy has no TLS, but without this the system's certificates would be read.
        config.root_cert = Some(Vec::new());
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }

    /// Closes all connections, and refuses new ones.
    pub async fn stop(&self) {
        let serving = self.serving.lock().unwrap().take();
        if let Some(serving) = serving {
            serving.abort();
            // Always the error that it was cancelled.
            let _ = serving.await;
        }
    }

    /// Accepts connections again after [`Self::stop`].
    pub fn resume(&self) {
        let listener = bind(self.address).listen(64).unwrap();
        let serving = AbortOnDropHandle::new(tokio::spawn(accept(listener, self.state.clone())));
        *self.serving.lock().unwrap() = Some(serving);
    }

    /// Lets all requests and watches hang, with their connections open.
    pub fn stop_responding(&self) {
        self.state.hangs.send_replace(true);
    }

    /// Closes the connections of all watches.
    pub fn drop_watches(&self) {
        self.state.watch_generation.send_modify(|generation| *generation += 1);
    }

    /// Injects a fault into requests with a verb for a resource. The first matching fault that is not used up applies.
    pub fn fail(&self, verb: &'static str, resource: &'static str, fault: Fault, times: Times) {
        self.state.faults.lock().unwrap().push((verb, resource, fault, times));
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.state.faults.lock().unwrap().clear();
    }

    /// Returns the requests since they were last taken.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Returns the requests since they were last taken, and forgets them.
    pub fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.state.requests.lock().unwrap())
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => drop(connections.spawn(connection(accepted.unwrap().0, state.clone()))),
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, state: Arc<State>) {
    stream.set_nodelay(true).unwrap();
    let service = service_fn(move |request| {
        let state = state.clone();
        async move { state.respond(request).await }
    });
    // Closed by the client, or by a fault.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl State {
    async fn respond(&self, request: Request<Incoming>) -> io::Result<Response<ResponseBody>> {
        let recorded = RecordedRequest::new(&request);
        self.requests.lock().unwrap().push(recorded.clone());
        if *self.hangs.borrow() {
            std::future::pending::<()>().await;
        }
        if self.version.is_some_and(|version| recorded.is_for_another_version(version)) {
            let response = Response::builder().status(StatusCode::NOT_FOUND).body(full("404 page not found\n"));
            return Ok(response.unwrap());
        }
        let fault = self.use_fault(&recorded);
        match fault {
            Some(Fault::TooManyRequests(after)) => {
                let mut response = error_response(StatusCode::TOO_MANY_REQUESTS);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
                return Ok(response);
            }
            Some(Fault::InternalError) => return Ok(error_response(StatusCode::INTERNAL_SERVER_ERROR)),
            Some(Fault::Unavailable) => return Ok(error_response(StatusCode::SERVICE_UNAVAILABLE)),
            Some(Fault::Disconnect) => return Err(closed()),
            Some(Fault::Expired) => {
                let mut event = json!({"type": "ERROR", "object": status(StatusCode::GONE)});
                event["object"]["reason"] = "Expired".into();
                return Ok(Response::new(full(format!("{event}\n"))));
            }
            Some(Fault::LostResponse) | None => {}
        }
        let response = self.forward(request, &recorded).await?;
        if fault == Some(Fault::LostResponse) { Err(closed()) } else { Ok(response) }
    }

    /// Returns the fault for a request, and counts it as used.
    fn use_fault(&self, request: &RecordedRequest) -> Option<Fault> {
        for (verb, resource, fault, times) in self.faults.lock().unwrap().iter_mut() {
            match times {
                _ if request.verb != *verb || !request.is_about(resource) => {}
                Times::Always => return Some(*fault),
                Times::Next(0) => {}
                Times::Next(remaining) => {
                    *remaining -= 1;
                    return Some(*fault);
                }
            }
        }
        None
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        recorded: &RecordedRequest,
    ) -> io::Result<Response<ResponseBody>> {
        let generation = self.watch_generation.subscribe();
        let (mut head, body) = request.into_parts();
        head.headers.remove(header::HOST);
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let request = Request::from_parts(head, Body::from(Vec::from(body)));
        let (mut head, body) = self.server.send(request).await.map_err(io::Error::other)?.into_parts();
        head.headers.remove(header::TRANSFER_ENCODING);
        if let Some(version) = self.version.filter(|_| recorded.path == "/apis/resource.k8s.io") {
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let mut group: Value = serde_json::from_slice(&body).map_err(io::Error::other)?;
            group["versions"].as_array_mut().unwrap().retain(|served| served["version"] == version);
            head.headers.remove(header::CONTENT_LENGTH);
            return Ok(Response::from_parts(head, full(group.to_string())));
        }
        if recorded.verb != "watch" {
            return Ok(Response::from_parts(head, body.map_err(io::Error::other).boxed_unsync()));
        }
        let frames = stream::unfold(Some((body, generation, self.hangs.subscribe())), |state| async move {
            let (mut body, mut generation, hangs) = state?;
            tokio::select! {
                frame = body.frame() => {
                    if *hangs.borrow() {
                        std::future::pending::<()>().await;
                    }
                    Some((frame?.map_err(io::Error::other), Some((body, generation, hangs))))
                }
                _ = generation.changed() => Some((Err(closed()), None)),
            }
        });
        Ok(Response::from_parts(head, StreamBody::new(frames).boxed_unsync()))
    }
}

fn closed() -> io::Error {
    io::Error::other("the proxy closed the connection")
}

fn full(text: impl Into<Bytes>) -> ResponseBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

fn status(code: StatusCode) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected fault", "code": code.as_u16()})
}

fn error_response(code: StatusCode) -> Response<ResponseBody> {
    let response = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    response.body(full(status(code).to_string())).unwrap()
}
