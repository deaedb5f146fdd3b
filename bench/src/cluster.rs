//! The API server that drivers talk to: claims from canned bytes, everything else from the embedded one.
//!
//! Claims are what prepares wait for, so they are answered with as little noise as can be: every claim
//! `default/claim-NNNNNN` exists, in JSON and in protobuf, whichever a client prefers. Requests for all other objects are
//! passed on to the embedded server of `drakkar-node`, which takes both and answers in JSON. HTTP for all.

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

/// What stands for a claim's number in the canned bytes.
const MARK: &[u8] = b"NNNNNN";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim-";
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A claim as the scheduler leaves it: about 2,300 bytes of JSON, half of them managed fields.
pub const CLAIM: &str = include_str!("claim.json");

/// An API server in a thread of its own.
#[derive(Debug, Clone)]
pub struct Cluster {
    port: u16,
    latency: Arc<AtomicU64>,
    embedded: ApiServer,
    /// The server ends with the last of them.
    _end: Arc<oneshot::Sender<()>>,
}

impl Cluster {
    /// Starts it, with nothing in it but a node. The claim in protobuf is ours unless there is another's.
    pub fn start(claim_in_protobuf: Option<Vec<u8>>) -> Self {
        let claim_in_protobuf =
            claim_in_protobuf.unwrap_or_else(|| drakkar_client::protobuf::from_json(CLAIM.as_bytes()).unwrap());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let latency = Arc::new(AtomicU64::new(0));
        let pauses = Pauses { latency: latency.clone(), queue: queue_of_pauses() };
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
                let front = Front {
                    json: Canned::new(CLAIM.trim_end().into()),
                    protobuf: Canned::new(claim_in_protobuf),
                    token: format!("Bearer {}", token(&server)).parse().unwrap(),
                    behind: server.url().strip_prefix("http://").unwrap().to_owned(),
                    client: Client::builder(TokioExecutor::new()).build(connector),
                    pauses,
                };
                started.send(server).unwrap();
                tokio::select! {
                    () = Arc::new(front).serve(listener) => {}
                    _ = ended => {}
                }
            });
        });
        Self { port, latency, embedded: embedded.recv().unwrap(), _end: Arc::new(end) }
    }

    /// Each answer takes this long from now on.
    pub fn slow_down(&self, latency: Duration) {
        self.latency.store(u64::try_from(latency.as_nanos()).unwrap(), Ordering::Relaxed);
    }

    /// How a driver finds it.
    pub fn kubeconfig(&self) -> String {
        let mut kubeconfig = self.kubeconfig_behind();
        kubeconfig["clusters"][0]["cluster"]["server"] = format!("http://127.0.0.1:{}", self.port).into();
        kubeconfig.to_string()
    }

    /// How a driver finds the embedded server itself.
    pub fn kubeconfig_behind(&self) -> serde_json::Value {
        let kubeconfig = self.embedded.kubeconfig(&identity()).unwrap();
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
        // Not used for HTTP, but without one all that the system trusts are loaded, which no driver in a pod does.
        kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] =
            BASE64_STANDARD.encode(include_str!("ca.pem")).into();
        kubeconfig
    }

    /// The bytes of a GET of a claim, for whoever sends it without a client.
    pub fn bare_get(&self, number: u64) -> (u16, String) {
        (self.port, format!("GET {CLAIMS}{number:06} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n"))
    }

    /// What drivers asked of the embedded server since the last time.
    pub fn take_requests(&self) -> Vec<RequestRecord> {
        let requests = self.requests();
        self.embedded.clear_requests();
        requests
    }

    /// What drivers asked of it.
    pub fn requests(&self) -> Vec<RequestRecord> {
        let user = identity().user_name();
        self.embedded.requests().into_iter().filter(|line| line.user == user).collect()
    }

    /// Removes what drivers have published, and forgets their requests.
    pub async fn clear(&self) {
        let slices: Api<ResourceSlice> = Api::all(self.embedded.admin());
        let of_driver = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        slices.delete_collection(&DeleteParams::default(), &of_driver).await.unwrap();
        self.embedded.clear_requests();
    }

    /// Waits until so many writes have succeeded.
    pub async fn written(&self, writes: usize) {
        let begin = Instant::now();
        while self.requests().iter().filter(|line| line.is_write() && line.status < 300).count() < writes {
            assert!(begin.elapsed() < PATIENCE, "the driver publishes nothing: {:?}", self.requests());
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

/// Bytes with a number in them.
struct Canned {
    bytes: Vec<u8>,
    places: Vec<usize>,
}

impl Canned {
    fn new(bytes: Vec<u8>) -> Self {
        let places = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(MARK)).collect();
        Self { bytes, places }
    }

    /// The number is six digits.
    fn with(&self, number: &str) -> Bytes {
        let mut bytes = self.bytes.clone();
        for &at in &self.places {
            bytes[at..at + MARK.len()].copy_from_slice(number.as_bytes());
        }
        bytes.into()
    }
}

/// What is in front of the embedded server.
struct Front {
    json: Canned,
    protobuf: Canned,
    behind: String,
    /// Of the driver: client-go sends no token over plain HTTP.
    token: HeaderValue,
    client: Client<HttpConnector, Incoming>,
    pauses: Pauses,
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

impl Front {
    async fn serve(self: Arc<Self>, listener: std::net::TcpListener) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let front = self.clone();
            let service = service_fn(move |request| {
                let front = front.clone();
                async move { front.answer(request).await }
            });
            // A driver that ends closes its connections, which is no error here.
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Result<Answer, hyper_util::client::legacy::Error> {
        self.pauses.pause().await;
        if let Some(number) = request.uri().path().strip_prefix(CLAIMS) {
            return Ok(self.claim(number, request.headers()));
        }
        let uri = format!("http://{}{}", self.behind, request.uri().path_and_query().unwrap());
        *request.uri_mut() = uri.parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, self.token.clone());
        Ok(self.client.request(request).await?.map(BodyExt::boxed))
    }

    fn claim(&self, number: &str, headers: &HeaderMap) -> Answer {
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let (content, media_type) = match accept.contains(drakkar_client::protobuf::MEDIA_TYPE) {
            true => (&self.protobuf, drakkar_client::protobuf::MEDIA_TYPE),
            false => (&self.json, "application/json"),
        };
        let body = Full::from(content.with(number)).map_err(|never| match never {}).boxed();
        Response::builder().header(header::CONTENT_TYPE, media_type).body(body).unwrap()
    }
}

/// What holds answers back. The runtime's own timers count in milliseconds, which is too coarse here.
#[derive(Clone)]
struct Pauses {
    latency: Arc<AtomicU64>,
    queue: std::sync::mpsc::Sender<(Instant, oneshot::Sender<()>)>,
}

impl Pauses {
    async fn pause(&self) {
        let latency = Duration::from_nanos(self.latency.load(Ordering::Relaxed));
        if !latency.is_zero() {
            let (end, ended) = oneshot::channel();
            self.queue.send((Instant::now() + latency, end)).unwrap();
            ended.await.unwrap();
        }
    }
}

/// A thread that ends pauses. All are of the same length, so the first to begin is the first to end.
fn queue_of_pauses() -> std::sync::mpsc::Sender<(Instant, oneshot::Sender<()>)> {
    let (queue, pauses) = std::sync::mpsc::channel::<(Instant, oneshot::Sender<()>)>();
    std::thread::spawn(move || {
        for (until, end) in pauses {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            // A client that has gone does not wait.
            end.send(()).ok();
        }
    });
    queue
}
