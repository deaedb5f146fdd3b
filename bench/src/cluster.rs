//! The API server of the benchmarks: claims from canned bytes, everything else from the embedded API server.
//!
//! Prepare calls wait for claims, so these are answered with as little noise as possible: every claim `default/claim-NNNNNN`
//! exists, in JSON or protobuf, whichever the client prefers. All other requests are proxied to the embedded API server,
//! which accepts both and answers in JSON. Everything is plain HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use drakkar_node::api::{Config, RequestRecord};
use drakkar_node::{ApiServer, Identity};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use tokio::sync::oneshot;

use crate::{DRIVER, NODE};

/// The placeholder for a claim's number in the canned bytes.
const PLACEHOLDER: &[u8] = b"NNNNNN";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim-";
/// The timeout for writes of a driver, far longer than they take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A claim as the scheduler leaves it: about 2,300 bytes of JSON, half of them managed fields.
pub const CLAIM: &str = include_str!("claim.json");

/// An API server in its own thread.
#[derive(Debug, Clone)]
pub struct Cluster {
    port: u16,
    latency: Arc<AtomicU64>,
    embedded: ApiServer,
    /// The server stops when the last clone is dropped.
    _end: Arc<oneshot::Sender<()>>,
}

impl Cluster {
    /// Starts the server with one node. Without `claim_in_protobuf` the claim is encoded by our own encoder.
    pub fn start(claim_in_protobuf: Option<Vec<u8>>) -> Self {
        let claim_in_protobuf =
            claim_in_protobuf.unwrap_or_else(|| drakkar_client::protobuf::from_json(CLAIM.as_bytes()).unwrap());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let latency = Arc::new(AtomicU64::new(0));
        let delays = Delays { latency: latency.clone(), queue: delay_queue() };
        let (started, embedded) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = ApiServer::start(Config::default()).await.unwrap();
                let mut node = NodeObject::default();
                node.metadata.name = Some(NODE.into());
                Api::all(server.admin()).create(&PostParams::default(), &node).await.unwrap();
                let mut connector = HttpConnector::new();
                connector.set_nodelay(true);
                let proxy = Proxy {
                    json: Canned::new(CLAIM.trim_end().into()),
                    protobuf: Canned::new(claim_in_protobuf),
                    token: format!("Bearer {}", token(&server)).parse().unwrap(),
                    upstream: server.url().strip_prefix("http://").unwrap().to_owned(),
                    client: Client::builder(TokioExecutor::new()).build(connector),
                    delays,
                };
                started.send(server).unwrap();
                tokio::select! {
                    () = Arc::new(proxy).serve(listener) => {}
                    _ = ended => {}
                }
            });
        });
        Self { port, latency, embedded: embedded.recv().unwrap(), _end: Arc::new(end) }
    }

    /// A client of the embedded server with all rights.
    pub fn admin(&self) -> kube::Client {
        self.embedded.admin()
    }

    /// Sets the latency of each answer from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.latency.store(u64::try_from(latency.as_nanos()).unwrap(), Ordering::Relaxed);
    }

    /// The kubeconfig of a driver.
    pub fn kubeconfig(&self) -> String {
        let mut kubeconfig = self.embedded_kubeconfig();
        kubeconfig["clusters"][0]["cluster"]["server"] = format!("http://127.0.0.1:{}", self.port).into();
        kubeconfig.to_string()
    }

    /// The kubeconfig of a driver that connects to the embedded server directly.
    pub fn embedded_kubeconfig(&self) -> serde_json::Value {
        let kubeconfig = self.embedded.kubeconfig(&identity()).unwrap();
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
        // Not used for HTTP, but without one the client loads all of the system's certificates, which no driver in a pod does.
        kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] =
            BASE64_STANDARD.encode(include_str!("ca.pem")).into();
        kubeconfig
    }

    /// The port, and the bytes of a GET of a claim, to send without an HTTP client.
    pub fn bare_get(&self, number: u64) -> (u16, String) {
        (self.port, format!("GET {CLAIMS}{number:06} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n"))
    }

    /// Returns the drivers' requests to the embedded server since the last call.
    pub fn take_requests(&self) -> Vec<RequestRecord> {
        let requests = self.requests();
        self.embedded.clear_requests();
        requests
    }

    /// Returns the drivers' requests to the embedded server.
    pub fn requests(&self) -> Vec<RequestRecord> {
        let user = identity().user_name();
        self.embedded.requests().into_iter().filter(|line| line.user == user).collect()
    }

    /// Deletes the drivers' slices, and forgets their requests.
    pub async fn clear(&self) {
        let slices: Api<ResourceSlice> = Api::all(self.embedded.admin());
        let of_driver = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        slices.delete_collection(&DeleteParams::default(), &of_driver).await.unwrap();
        self.embedded.clear_requests();
    }

    /// Waits until this number of writes have succeeded.
    pub async fn wait_for_writes(&self, writes: usize) {
        let begin = Instant::now();
        while self.requests().iter().filter(|line| line.is_write() && line.status < 300).count() < writes {
            assert!(begin.elapsed() < TIMEOUT, "timed out waiting for the driver to publish: {:?}", self.requests());
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

fn identity() -> Identity {
    Identity::Driver { namespace: "kube-system".into(), service_account: "gpu-driver".into(), node_name: NODE.into() }
}

fn token(server: &ApiServer) -> String {
    let kubeconfig = server.kubeconfig(&identity()).unwrap();
    let kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
    kubeconfig["users"][0]["user"]["token"].as_str().unwrap().to_owned()
}

/// A canned claim, with placeholders for its number.
struct Canned {
    bytes: Vec<u8>,
    offsets: Vec<usize>,
}

impl Canned {
    fn new(bytes: Vec<u8>) -> Self {
        let offsets = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(PLACEHOLDER)).collect();
        Self { bytes, offsets }
    }

    /// Fills in the number, which has six digits.
    fn with(&self, number: &str) -> Bytes {
        let mut bytes = self.bytes.clone();
        for &at in &self.offsets {
            bytes[at..at + PLACEHOLDER.len()].copy_from_slice(number.as_bytes());
        }
        bytes.into()
    }
}

/// The proxy in front of the embedded server.
struct Proxy {
    json: Canned,
    protobuf: Canned,
    upstream: String,
    /// The driver's token, added here since client-go does not send it over plain HTTP.
    token: HeaderValue,
    client: Client<HttpConnector, Incoming>,
    delays: Delays,
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

impl Proxy {
    async fn serve(self: Arc<Self>, listener: std::net::TcpListener) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let proxy = self.clone();
            let service = service_fn(move |request| {
                let proxy = proxy.clone();
                async move { proxy.answer(request).await }
            });
            // Errors are ignored: a driver that stops closes its connections.
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Result<Answer, hyper_util::client::legacy::Error> {
        self.delays.wait().await;
        if let Some(number) = request.uri().path().strip_prefix(CLAIMS) {
            return Ok(self.claim(number, request.headers()));
        }
        let uri = format!("http://{}{}", self.upstream, request.uri().path_and_query().unwrap());
        *request.uri_mut() = uri.parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, self.token.clone());
        Ok(self.client.request(request).await?.map(BodyExt::boxed))
    }

    fn claim(&self, number: &str, headers: &HeaderMap) -> Answer {
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let (content, media_type) = if accept.contains(drakkar_client::protobuf::MEDIA_TYPE) {
            (&self.protobuf, drakkar_client::protobuf::MEDIA_TYPE)
        } else {
            (&self.json, "application/json")
        };
        let body = Full::from(content.with(number)).map_err(|never| match never {}).boxed();
        Response::builder().header(header::CONTENT_TYPE, media_type).body(body).unwrap()
    }
}

/// Delays answers. Done by a thread, since tokio's timers have a resolution of a millisecond.
#[derive(Clone)]
struct Delays {
    latency: Arc<AtomicU64>,
    queue: std::sync::mpsc::Sender<(Instant, oneshot::Sender<()>)>,
}

impl Delays {
    async fn wait(&self) {
        let latency = Duration::from_nanos(self.latency.load(Ordering::Relaxed));
        if !latency.is_zero() {
            let (end, ended) = oneshot::channel();
            self.queue.send((Instant::now() + latency, end)).unwrap();
            ended.await.unwrap();
        }
    }
}

/// Starts the thread that ends delays. All have the same length, so they end in the order in which they begin.
fn delay_queue() -> std::sync::mpsc::Sender<(Instant, oneshot::Sender<()>)> {
    let (queue, delays) = std::sync::mpsc::channel::<(Instant, oneshot::Sender<()>)>();
    std::thread::spawn(move || {
        for (until, end) in delays {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            // The client may have closed its connection meanwhile.
            end.send(()).ok();
        }
    });
    queue
}
