//! Who a driver deals with: an API server that only answers, a kubelet that only calls, and the process that it runs in.

use std::convert::Infallible;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use drakkar_plugin::proto::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_plugin::proto::dra_v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use drakkar_plugin::proto::registration::registration_client::RegistrationClient;
use drakkar_plugin::proto::registration::{InfoRequest, RegistrationStatus};
use http::{Response, header};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};

use crate::DRIVER_ROOT;
use crate::process::Process;

/// The driver's name.
pub(crate) const DRIVER: &str = "gpu.example.com";
/// Far longer than a start takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn claim_uid(number: u64) -> String {
    format!("5f3c1e0a-77a4-4f0e-8a55-{number:012}")
}

/// An API server on 127.0.0.1, in a thread of its own. Every claim `default/claim-NUMBER` exists.
pub(crate) struct ApiServer {
    port: u16,
    latency: Arc<AtomicU64>,
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let latency = Arc::new(AtomicU64::new(0));
        let pauses = Pauses { latency: latency.clone(), queue: queue_of_pauses() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(serve(listener, pauses)));
        Self { port, latency }
    }

    /// Each answer takes this long from now on.
    pub(crate) fn slow_down(&self, latency: Duration) {
        self.latency.store(u64::try_from(latency.as_nanos()).unwrap(), Ordering::Relaxed);
    }

    /// How a client finds it.
    fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {
                "server": format!("http://127.0.0.1:{}", self.port),
                // Not used for HTTP, but without one all that the system trusts are loaded, which no driver in a pod does.
                "certificate-authority-data": BASE64_STANDARD.encode(include_str!("ca.pem")),
            }}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        })
        .to_string()
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

async fn serve(listener: std::net::TcpListener, pauses: Pauses) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let pauses = pauses.clone();
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let pauses = pauses.clone();
            async move {
                pauses.pause().await;
                Ok::<_, Infallible>(answer(request.uri().path()))
            }
        });
        // A driver that ends closes its connections, which is no error here.
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

fn answer(path: &str) -> Response<Full<tonic::codegen::Bytes>> {
    let number = path.strip_prefix("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim-");
    let number: u64 = number.unwrap().parse().unwrap();
    let body = Full::from(claim(number).into_bytes());
    Response::builder().header(header::CONTENT_TYPE, "application/json").body(body).unwrap()
}

/// A claim as the scheduler leaves it: about 2,300 bytes, half of them managed fields.
fn claim(number: u64) -> String {
    const CLAIM: &str = include_str!("claim.json");
    CLAIM.replace("UID", &claim_uid(number)).replace("NUMBER", &number.to_string())
}

/// The directories of a node.
pub(crate) struct Node {
    root: TempDir,
}

impl Node {
    pub(crate) fn new(api: &ApiServer) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        std::fs::write(root.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self { root }
    }

    /// Starts a driver and registers it as soon as its socket is there; tells how long that took.
    pub(crate) async fn start(self) -> (DriverProcess, Duration) {
        let socket = self.root.path().join("plugins_registry").join(format!("{DRIVER}@reg.sock"));
        let begin = Instant::now();
        let child = Command::new(std::env::current_exe().unwrap())
            .env(DRIVER_ROOT, self.root.path())
            .env("KUBECONFIG", self.root.path().join("kubeconfig"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::new(child);
        while !socket.exists() {
            assert!(begin.elapsed() < PATIENCE, "the driver does not start");
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut registration = RegistrationClient::new(channel(&socket).await);
        let info = registration.get_info(InfoRequest {}).await.unwrap().into_inner();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        registration.notify_registration_status(status).await.unwrap();
        (DriverProcess { process, registration, dra_socket: info.endpoint.into(), _node: self }, begin.elapsed())
    }
}

/// A driver that is registered.
pub(crate) struct DriverProcess {
    pub(crate) process: Process,
    registration: RegistrationClient<Channel>,
    dra_socket: PathBuf,
    _node: Node,
}

impl DriverProcess {
    pub(crate) async fn kubelet(&self) -> Kubelet {
        Kubelet(DraPluginClient::new(channel(&self.dra_socket).await))
    }

    /// Ends it as a kubelet does, and waits until it has ended.
    pub(crate) async fn end(self) {
        // In another thread: connections are closed by both ends, and ours is in this one.
        tokio::task::spawn_blocking(move || self.process.end()).await.unwrap();
    }

    /// How long a call takes for which the driver has nothing to do.
    pub(crate) async fn echo(&self) -> Duration {
        let mut registration = self.registration.clone();
        let begin = Instant::now();
        registration.get_info(InfoRequest {}).await.unwrap();
        begin.elapsed()
    }
}

/// A kubelet. A clone has the same connection.
#[derive(Clone)]
pub(crate) struct Kubelet(DraPluginClient<Channel>);

impl Kubelet {
    /// Prepares claims in one call, and tells how long it took.
    pub(crate) async fn prepare(&self, numbers: Range<u64>) -> Duration {
        let mut client = self.0.clone();
        let request = NodePrepareResourcesRequest { claims: numbers.map(named).collect() };
        let count = request.claims.len();
        let begin = Instant::now();
        let response = client.node_prepare_resources(request).await.unwrap().into_inner();
        let took = begin.elapsed();
        assert_eq!(response.claims.len(), count);
        for answer in response.claims.values() {
            assert_eq!((answer.error.as_str(), answer.devices.len()), ("", 1));
        }
        took
    }

    /// Unprepares claims in one call, and tells how long it took.
    pub(crate) async fn unprepare(&self, numbers: Range<u64>) -> Duration {
        let mut client = self.0.clone();
        let request = NodeUnprepareResourcesRequest { claims: numbers.map(named).collect() };
        let begin = Instant::now();
        let response = client.node_unprepare_resources(request).await.unwrap().into_inner();
        let took = begin.elapsed();
        assert!(response.claims.values().all(|answer| answer.error.is_empty()), "{response:?}");
        took
    }
}

fn named(number: u64) -> Claim {
    Claim { namespace: "default".to_owned(), name: format!("claim-{number}"), uid: claim_uid(number) }
}

async fn channel(socket: &Path) -> Channel {
    Endpoint::try_from(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap()
}
