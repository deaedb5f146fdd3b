//! The wire between a driver and its API server: it notes what is asked, and breaks when it is told to.
//!
//! It is a proxy on a loopback port, so it does the same with an embedded server and a real one, and what breaks is a
//! connection. Only the driver is on it: what a test asks for itself goes past it.

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

pub use self::request::Asked;

/// What a request gets in place of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// 429, to come back after so many seconds.
    TooManyRequests(u32),
    /// 500: the server has not seen the request.
    InternalError,
    /// 503: the server has not seen the request.
    Unavailable,
    /// The connection ends; the server has not seen the request.
    Disconnect,
    /// The server has done it, and the connection ends before the answer.
    LostAnswer,
    /// 200, and then an event of a watch which says that it began too far back.
    Expired,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Next(usize),
    Always,
}

type Answer = UnsyncBoxBody<Bytes, io::Error>;

/// The wire of one cluster's driver.
pub struct Wire {
    state: Arc<State>,
    address: SocketAddr,
    /// Keeps the port while the wire is down, so that connections are refused.
    _kept: TcpSocket,
    serving: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct State {
    server: kube::Client,
    /// The only version of resource.k8s.io that the driver gets to see.
    version: Option<&'static str>,
    asked: Mutex<Vec<Asked>>,
    troubles: Mutex<Vec<(&'static str, &'static str, Trouble, Times)>>,
    /// Watches that began in an earlier round end.
    round: watch::Sender<u64>,
    silent: watch::Sender<bool>,
}

impl Wire {
    /// A wire to a server, as whom the client is. With a version, the server looks as if it had no other.
    pub fn to(server: kube::Client, version: Option<&'static str>) -> Self {
        let kept = bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = kept.local_addr().unwrap();
        let state = State {
            server,
            version,
            asked: Mutex::default(),
            troubles: Mutex::default(),
            round: watch::Sender::default(),
            silent: watch::Sender::default(),
        };
        let wire = Self { state: Arc::new(state), address, _kept: kept, serving: Mutex::default() };
        wire.resume();
        wire
    }

    /// A client with connections of its own.
    pub fn client(&self) -> kube::Client {
        let mut config = kube::Config::new(format!("http://{}", self.address).parse().unwrap());
        // There is no TLS on the wire; what is not said is read from the system.
        config.root_cert = Some(Vec::new());
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }

    /// From now on connections are refused, and those that there are end.
    pub async fn stop(&self) {
        let serving = self.serving.lock().unwrap().take();
        if let Some(serving) = serving {
            serving.abort();
            // Cancelled: it does not end otherwise.
            let _ = serving.await;
        }
    }

    /// After [`Self::stop`].
    pub fn resume(&self) {
        let listener = bind(self.address).listen(64).unwrap();
        let serving = AbortOnDropHandle::new(tokio::spawn(accept(listener, self.state.clone())));
        *self.serving.lock().unwrap() = Some(serving);
    }

    /// From now on nothing is answered, and no connection ends.
    pub fn fall_silent(&self) {
        self.state.silent.send_replace(true);
    }

    /// Ends the connections of all watches.
    pub fn drop_watches(&self) {
        self.state.round.send_modify(|round| *round += 1);
    }

    /// Answers requests with a verb for a resource with trouble. The first that fits and is not used up counts.
    pub fn fail(&self, verb: &'static str, resource: &'static str, trouble: Trouble, times: Times) {
        self.state.troubles.lock().unwrap().push((verb, resource, trouble, times));
    }

    /// Takes all troubles back.
    pub fn clear(&self) {
        self.state.troubles.lock().unwrap().clear();
    }

    /// What was asked since it was last forgotten.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    /// What was asked, and forgets it.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.state.asked.lock().unwrap())
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
        async move { state.answer(request).await }
    });
    // Clients go away, and connections are cut.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Answer>> {
        let asked = Asked::new(&request);
        self.asked.lock().unwrap().push(asked.clone());
        if *self.silent.borrow() {
            std::future::pending::<()>().await;
        }
        if self.version.is_some_and(|version| asked.is_of_another_version(version)) {
            let answer = Response::builder().status(StatusCode::NOT_FOUND).body(full("404 page not found\n"));
            return Ok(answer.unwrap());
        }
        let trouble = self.trouble(&asked);
        match trouble {
            Some(Trouble::TooManyRequests(after)) => {
                let mut answer = refusal(StatusCode::TOO_MANY_REQUESTS);
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
                return Ok(answer);
            }
            Some(Trouble::InternalError) => return Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR)),
            Some(Trouble::Unavailable) => return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE)),
            Some(Trouble::Disconnect) => return Err(cut()),
            Some(Trouble::Expired) => {
                let mut event = json!({"type": "ERROR", "object": status(StatusCode::GONE)});
                event["object"]["reason"] = "Expired".into();
                return Ok(Response::new(full(format!("{event}\n"))));
            }
            Some(Trouble::LostAnswer) | None => {}
        }
        let answer = self.forward(request, &asked).await?;
        if trouble == Some(Trouble::LostAnswer) { Err(cut()) } else { Ok(answer) }
    }

    fn trouble(&self, asked: &Asked) -> Option<Trouble> {
        for (verb, resource, trouble, times) in self.troubles.lock().unwrap().iter_mut() {
            match times {
                _ if asked.verb != *verb || !asked.is_about(resource) => {}
                Times::Always => return Some(*trouble),
                Times::Next(0) => {}
                Times::Next(left) => {
                    *left -= 1;
                    return Some(*trouble);
                }
            }
        }
        None
    }

    async fn forward(&self, request: Request<Incoming>, asked: &Asked) -> io::Result<Response<Answer>> {
        let round = self.round.subscribe();
        let (mut head, body) = request.into_parts();
        head.headers.remove(header::HOST);
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let request = Request::from_parts(head, Body::from(Vec::from(body)));
        let (mut head, body) = self.server.send(request).await.map_err(io::Error::other)?.into_parts();
        head.headers.remove(header::TRANSFER_ENCODING);
        if let Some(version) = self.version.filter(|_| asked.path == "/apis/resource.k8s.io") {
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let mut group: Value = serde_json::from_slice(&body).map_err(io::Error::other)?;
            group["versions"].as_array_mut().unwrap().retain(|has| has["version"] == version);
            head.headers.remove(header::CONTENT_LENGTH);
            return Ok(Response::from_parts(head, full(group.to_string())));
        }
        if asked.verb != "watch" {
            return Ok(Response::from_parts(head, body.map_err(io::Error::other).boxed_unsync()));
        }
        let frames = stream::unfold(Some((body, round, self.silent.subscribe())), |wire| async move {
            let (mut body, mut round, silent) = wire?;
            tokio::select! {
                frame = body.frame() => {
                    if *silent.borrow() {
                        std::future::pending::<()>().await;
                    }
                    Some((frame?.map_err(io::Error::other), Some((body, round, silent))))
                }
                _ = round.changed() => Some((Err(cut()), None)),
            }
        });
        Ok(Response::from_parts(head, StreamBody::new(frames).boxed_unsync()))
    }
}

fn cut() -> io::Error {
    io::Error::other("the wire was cut")
}

fn full(text: impl Into<Bytes>) -> Answer {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

fn status(code: StatusCode) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "the wire is in trouble", "code": code.as_u16()})
}

fn refusal(code: StatusCode) -> Response<Answer> {
    let answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    answer.body(full(status(code).to_string())).unwrap()
}
