//! The peers of a driver in these tests: an API server that has claims, and a kubelet that calls the driver's sockets.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drakkar_plugin::proto::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_plugin::proto::dra_v1::{self as v1, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use drakkar_plugin::proto::registration::registration_client::RegistrationClient;
use drakkar_plugin::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus as WireStatus};
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, Helper, PluginBuilder};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, watch};
use tonic::transport::{Channel, Endpoint};

/// The driver of most tests.
pub const DRIVER: &str = "gpu.example.com";
/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An API server with claims. A clone is the same server.
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By namespace and name.
    claims: HashMap<(String, String), Value>,
    /// The versions of resource.k8s.io that it has; all if there is none.
    versions: Vec<&'static str>,
    /// The next answers, before it works again.
    failures: Vec<StatusCode>,
    /// Paths that were asked for.
    log: Vec<String>,
    /// How long each answer takes.
    latency: Duration,
    /// How many are being answered, and how many were at most.
    in_flight: usize,
    most_in_flight: usize,
}

impl ApiServer {
    pub fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request.uri().path()).await) }
        });
        kube::Client::new(service, "default")
    }

    /// Adds or replaces a claim, by its metadata.
    pub fn put(&self, claim: &Value) {
        let text = |pointer| claim.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
        let key = (text("/metadata/namespace"), text("/metadata/name"));
        self.0.lock().unwrap().claims.insert(key, claim.clone());
    }

    pub fn remove(&self, namespace: &str, name: &str) {
        self.0.lock().unwrap().claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Only these versions are served from now on.
    pub fn serve_only(&self, versions: &[&'static str]) {
        self.0.lock().unwrap().versions = versions.to_vec();
    }

    /// The next answers are these.
    pub fn fail_next(&self, failures: &[StatusCode]) {
        self.0.lock().unwrap().failures = failures.to_vec();
    }

    /// Each answer takes this long from now on.
    pub fn slow_down(&self, latency: Duration) {
        self.0.lock().unwrap().latency = latency;
    }

    /// Paths that were asked for since the last time.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().log)
    }

    /// How many requests were answered at the same time, at most.
    pub fn most_in_flight(&self) -> usize {
        self.0.lock().unwrap().most_in_flight
    }

    async fn answer(&self, path: &str) -> Response<Body> {
        let latency = {
            let mut state = self.0.lock().unwrap();
            state.log.push(path.to_owned());
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
            state.latency
        };
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let mut state = self.0.lock().unwrap();
        state.in_flight -= 1;
        let (status, body) = state.answer(path);
        Response::builder().status(status).body(Body::from(body)).unwrap()
    }
}

impl State {
    fn answer(&mut self, path: &str) -> (StatusCode, Vec<u8>) {
        if !self.failures.is_empty() {
            let status = self.failures.remove(0);
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not today", "code": status.as_u16()});
            return (status, body.to_string().into_bytes());
        }
        let versions: &[&str] =
            if self.versions.is_empty() { &["v1", "v1beta2", "v1beta1"] } else { self.versions.as_slice() };
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts.as_slice() {
            ["apis", "resource.k8s.io"] => {
                let versions: Vec<Value> = versions
                    .iter()
                    .map(|version| json!({"groupVersion": format!("resource.k8s.io/{version}"), "version": version}))
                    .collect();
                let body =
                    json!({"kind": "APIGroup", "apiVersion": "v1", "name": "resource.k8s.io", "versions": versions});
                (StatusCode::OK, body.to_string().into_bytes())
            }
            ["apis", "resource.k8s.io", version, "namespaces", namespace, "resourceclaims", name]
                if versions.contains(version) =>
            {
                match self.claims.get(&((*namespace).to_owned(), (*name).to_owned())) {
                    Some(claim) => (StatusCode::OK, claim.to_string().into_bytes()),
                    None => {
                        let body = json!({
                            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                            "message": format!("resourceclaims.resource.k8s.io \"{name}\" not found"),
                            "details": {"name": name, "group": "resource.k8s.io", "kind": "resourceclaims"},
                        });
                        (StatusCode::NOT_FOUND, body.to_string().into_bytes())
                    }
                }
            }
            _ => (StatusCode::NOT_FOUND, b"404 page not found\n".to_vec()),
        }
    }
}

/// A claim, for API server and kubelet.
pub struct TestClaim {
    pub object: Value,
}

impl TestClaim {
    /// An allocated claim `default/name`, without devices yet.
    pub fn new(name: &str, uid: &str) -> Self {
        Self {
            object: json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "uid": uid},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
                "status": {"allocation": {"devices": {"results": []}}},
            }),
        }
    }

    /// With a device of [`DRIVER`] for a request (`request` or `request/subrequest`).
    pub fn device(self, request: &str, device: &str) -> Self {
        self.result(json!({"request": request, "driver": DRIVER, "pool": "node-1", "device": device}))
    }

    pub fn result(mut self, result: Value) -> Self {
        let results = self.object.pointer_mut("/status/allocation/devices/results").unwrap();
        results.as_array_mut().unwrap().push(result);
        self
    }

    /// Made from a template, for this entry of the pod.
    pub fn of_template(mut self, pod_claim: &str) -> Self {
        self.object["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": pod_claim});
        self
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    pub fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap()
    }

    pub fn wire(&self) -> v1::Claim {
        v1::Claim { namespace: "default".into(), name: self.name().into(), uid: self.uid().into() }
    }

    pub fn reference(&self) -> ClaimRef {
        ClaimRef {
            namespace: "default".parse().unwrap(),
            name: self.name().parse().unwrap(),
            uid: self.uid().parse().unwrap(),
        }
    }
}

/// What the driver of a test does, as closures.
type PrepareFn = dyn Fn(&Claim) -> Result<Vec<Device>, BoxError> + Send + Sync;
type UnprepareFn = dyn Fn(&ClaimRef) -> Result<(), BoxError> + Send + Sync;

/// A driver that does as it is told, and remembers what it was asked.
#[derive(Clone)]
pub struct TestDriver {
    prepare: Arc<PrepareFn>,
    unprepare: Arc<UnprepareFn>,
    pub calls: Arc<Mutex<Vec<String>>>,
    pub errors: Arc<Mutex<Vec<String>>>,
}

impl Default for TestDriver {
    /// Prepares what was allocated, each with one CDI device.
    fn default() -> Self {
        Self::preparing(|claim| {
            let devices = claim.results().map(|result| Device {
                cdi_device_ids: vec![format!("{DRIVER}/gpu={}", result.device)],
                ..Device::from(result)
            });
            Ok(devices.collect())
        })
    }
}

impl TestDriver {
    pub fn preparing(prepare: impl Fn(&Claim) -> Result<Vec<Device>, BoxError> + Send + Sync + 'static) -> Self {
        Self {
            prepare: Arc::new(prepare),
            unprepare: Arc::new(|_| Ok(())),
            calls: Arc::default(),
            errors: Arc::default(),
        }
    }

    pub fn unpreparing(
        mut self,
        unprepare: impl Fn(&ClaimRef) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.unprepare = Arc::new(unprepare);
        self
    }

    /// What it was asked since the last time.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl DraPlugin for TestDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        self.calls.lock().unwrap().push(format!("prepare {}", claim.reference().name));
        (self.prepare)(claim)
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.calls.lock().unwrap().push(format!("unprepare {}", claim.name));
        (self.unprepare)(claim)
    }

    fn handle_error(&self, error: &drakkar_plugin::BackgroundError) {
        self.errors.lock().unwrap().push(error.to_string());
    }
}

/// A node: the kubelet's directories, a CDI directory and an API server.
pub struct Node {
    pub root: TempDir,
    pub api: ApiServer,
}

impl Default for Node {
    fn default() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        Self { root, api: ApiServer::default() }
    }
}

impl Node {
    pub fn plugin_directory(&self) -> PathBuf {
        self.root.path().join("plugins").join(DRIVER)
    }

    pub fn cdi_directory(&self) -> PathBuf {
        self.root.path().join("cdi")
    }

    /// A driver on this node, with metadata.
    pub fn builder(&self) -> PluginBuilder {
        PluginBuilder::new(DRIVER)
            .client(self.api.client())
            .kubelet_root(self.root.path())
            .cdi_directory(self.cdi_directory())
            .device_metadata(true)
    }

    pub async fn start(&self, driver: &TestDriver) -> Helper {
        self.builder().start(driver.clone()).await.unwrap()
    }

    /// A claim that the API server has.
    pub fn claim(&self, claim: TestClaim) -> TestClaim {
        self.api.put(&claim.object);
        claim
    }

    /// The metadata file of a request on the host.
    pub fn metadata_file(&self, claim: &TestClaim, request: &str) -> PathBuf {
        self.plugin_directory()
            .join("dra-device-metadata")
            .join(format!("default_{}", claim.name()))
            .join(request)
            .join("metadata.json")
    }

    /// What a metadata file says, in its first version.
    pub fn metadata(&self, claim: &TestClaim, request: &str) -> Value {
        let bytes = std::fs::read(self.metadata_file(claim, request)).unwrap();
        serde_json::Deserializer::from_slice(&bytes).into_iter().next().unwrap().unwrap()
    }

    /// Every file and directory of the driver and in the CDI directory, relative to the node's root; no sockets or locks.
    pub fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.plugin_directory(), &mut found);
        walk(&self.cdi_directory(), &mut found);
        let relative = |path: PathBuf| path.strip_prefix(self.root.path()).unwrap().to_str().unwrap().to_owned();
        let mut found: Vec<String> = found.into_iter().map(relative).collect();
        found.sort();
        found
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.ends_with(".sock") && name != "serialize.lock" {
            found.push(path);
        }
    }
}

/// A kubelet that calls one instance of a driver.
pub struct Kubelet(pub DraPluginClient<Channel>);

impl Kubelet {
    pub async fn of(helper: &Helper) -> Self {
        Self(DraPluginClient::new(channel(helper.dra_socket().unwrap()).await))
    }

    /// Prepares claims, and gives devices or error of each, by UID.
    pub async fn prepare(&mut self, claims: &[&TestClaim]) -> BTreeMap<String, Result<Vec<v1::Device>, String>> {
        let request = NodePrepareResourcesRequest { claims: claims.iter().map(|claim| claim.wire()).collect() };
        let response = self.0.node_prepare_resources(request).await.unwrap().into_inner();
        let outcome = |response: v1::NodePrepareResourceResponse| match response.error.as_str() {
            "" => Ok(response.devices),
            _ => Err(response.error),
        };
        response.claims.into_iter().map(|(uid, response)| (uid, outcome(response))).collect()
    }

    /// Prepares one claim.
    pub async fn prepare_one(&mut self, claim: &TestClaim) -> Result<Vec<v1::Device>, String> {
        let mut answers = self.prepare(&[claim]).await;
        assert_eq!(answers.len(), 1, "one claim, one answer: {answers:?}");
        answers.remove(claim.uid()).unwrap()
    }

    /// Unprepares one claim.
    pub async fn unprepare_one(&mut self, claim: &TestClaim) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.wire()] };
        let mut response = self.0.node_unprepare_resources(request).await.unwrap().into_inner();
        let error = response.claims.remove(claim.uid()).unwrap().error;
        if error.is_empty() { Ok(()) } else { Err(error) }
    }
}

/// A connection to a socket, as a kubelet makes it.
pub async fn channel(socket: &Path) -> Channel {
    Endpoint::try_from(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap()
}

/// The CDI devices of all devices of an answer.
pub fn cdi_devices(devices: &[v1::Device]) -> Vec<&str> {
    devices.iter().flat_map(|device| &device.cdi_device_ids).map(String::as_str).collect()
}

/// Waits until something is so.
pub async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Node {
    /// A driver of another name on this node, with metadata.
    pub fn builder_for(&self, driver: &str) -> PluginBuilder {
        PluginBuilder::new(driver)
            .client(self.api.client())
            .kubelet_root(self.root.path())
            .cdi_directory(self.cdi_directory())
            .device_metadata(true)
    }
}

impl TestClaim {
    pub fn annotated(mut self, annotation: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][annotation] = json!(value);
        self
    }
}

impl Kubelet {
    /// Prepares claims as they are named, and gives devices or error of each, by UID.
    pub async fn prepare_named(
        &mut self,
        claims: Vec<v1::Claim>,
    ) -> Result<BTreeMap<String, Result<Vec<v1::Device>, String>>, tonic::Status> {
        self.prepare_request(tonic::Request::new(NodePrepareResourcesRequest { claims })).await
    }

    /// Prepares a claim, with a deadline as a kubelet has one.
    pub async fn prepare_within(
        &mut self,
        deadline: Duration,
        claim: &TestClaim,
    ) -> Result<BTreeMap<String, Result<Vec<v1::Device>, String>>, tonic::Status> {
        let mut request = tonic::Request::new(NodePrepareResourcesRequest { claims: vec![claim.wire()] });
        request.set_timeout(deadline);
        self.prepare_request(request).await
    }

    async fn prepare_request(
        &mut self,
        request: tonic::Request<NodePrepareResourcesRequest>,
    ) -> Result<BTreeMap<String, Result<Vec<v1::Device>, String>>, tonic::Status> {
        let response = self.0.node_prepare_resources(request).await?.into_inner();
        let outcome = |response: v1::NodePrepareResourceResponse| match response.error.as_str() {
            "" => Ok(response.devices),
            _ => Err(response.error),
        };
        Ok(response.claims.into_iter().map(|(uid, response)| (uid, outcome(response))).collect())
    }

    /// Unprepares claims, and gives the error of each that failed, by UID.
    pub async fn unprepare(&mut self, claims: &[&TestClaim]) -> BTreeMap<String, Result<(), String>> {
        let request = NodeUnprepareResourcesRequest { claims: claims.iter().map(|claim| claim.wire()).collect() };
        let response = self.0.node_unprepare_resources(request).await.unwrap().into_inner();
        let outcome = |error: String| if error.is_empty() { Ok(()) } else { Err(error) };
        response.claims.into_iter().map(|(uid, response)| (uid, outcome(response.error))).collect()
    }
}

/// Counts what is going on: a number that goes up with each one, and down when that is dropped.
#[derive(Clone, Default)]
pub struct Ongoing(Arc<AtomicUsize>);

/// One of what is going on.
pub struct One(Ongoing);

impl Ongoing {
    pub fn one(&self) -> One {
        self.0.fetch_add(1, Ordering::SeqCst);
        One(self.clone())
    }

    pub async fn wait_for(&self, count: usize) {
        let reached = || (self.0.load(Ordering::SeqCst) == count).then_some(());
        eventually(&format!("{count} going on"), reached).await;
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A line to a driver that can be muted: then the driver hears nothing any more, not even that the caller has given up.
pub struct Line {
    pub socket: PathBuf,
    muted: tokio_util::sync::CancellationToken,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

impl Line {
    /// A line to the driver's socket, for one connection.
    pub fn to(node: &Node, helper: &Helper) -> Self {
        let (socket, driver) = (node.root.path().join("line.sock"), helper.dra_socket().unwrap().to_owned());
        let muted = tokio_util::sync::CancellationToken::new();
        let (listener, silence) = (tokio::net::UnixListener::bind(&socket).unwrap(), muted.clone());
        let task = tokio::spawn(async move {
            let (caller, _) = listener.accept().await.unwrap();
            let driver = tokio::net::UnixStream::connect(driver).await.unwrap();
            let (mut from_caller, mut to_caller) = caller.into_split();
            let (mut from_driver, mut to_driver) = driver.into_split();
            let speak = async {
                tokio::select! {
                    _ = tokio::io::copy(&mut from_caller, &mut to_driver) => {}
                    () = silence.cancelled() => {}
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = tokio::io::copy(&mut from_driver, &mut to_caller) => {}
                () = speak => {}
            }
        });
        Self { socket, muted, _task: tokio_util::task::AbortOnDropHandle::new(task) }
    }

    pub fn mute(&self) {
        self.muted.cancel();
    }
}
/// A kubelet at the socket by which it finds a driver.
pub struct Registrar(RegistrationClient<Channel>);

impl Registrar {
    pub async fn of(helper: &Helper) -> Self {
        Self::at(helper.registration_socket().unwrap()).await
    }

    pub async fn at(socket: &Path) -> Self {
        Self(RegistrationClient::new(channel(socket).await))
    }

    pub async fn info(&mut self) -> Result<PluginInfo, tonic::Status> {
        Ok(self.0.get_info(InfoRequest {}).await?.into_inner())
    }

    /// Tells the driver what became of its registration; without an error it is registered.
    pub async fn notify(&mut self, error: Option<&str>) -> Result<(), tonic::Status> {
        let status = WireStatus { plugin_registered: error.is_none(), error: error.unwrap_or_default().to_owned() };
        self.0.notify_registration_status(status).await.map(drop)
    }
}

impl Node {
    /// The files in the directories of sockets that are sockets, or staged ones.
    pub fn sockets(&self) -> Vec<String> {
        let mut names = Vec::new();
        for directory in [self.root.path().join("plugins_registry"), self.plugin_directory()] {
            let Ok(entries) = std::fs::read_dir(directory) else { continue };
            let names_of_sockets = entries.map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_socket());
            names.extend(names_of_sockets.map(|entry| entry.file_name().to_str().unwrap().to_owned()));
        }
        names.sort();
        names
    }

    /// The CDI spec of a request.
    pub fn spec_file(&self, claim: &TestClaim, request: &str) -> PathBuf {
        self.cdi_directory().join(format!("{DRIVER}_metadata_{}_{request}.json", claim.uid()))
    }

    /// The directory of a claim.
    pub fn claim_directory(&self, claim: &TestClaim) -> PathBuf {
        self.plugin_directory().join("dra-device-metadata").join(format!("default_{}", claim.name()))
    }

    /// Whether a claim with the one request `gpu` is prepared or not, which is all that it may be between two calls.
    /// Prepared means: there are a record and a file that can be read, a spec that names the file, and nothing else.
    pub fn is_prepared(&self, claim: &TestClaim) -> bool {
        let (directory, spec) = (self.claim_directory(claim), self.spec_file(claim, "gpu"));
        if !directory.exists() {
            assert!(!spec.exists(), "{} has a spec and no files", claim.name());
            return false;
        }
        let mut found = Vec::new();
        walk(&directory, &mut found);
        let mut names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(&directory).unwrap().to_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, [".claim.json", "gpu", "gpu/metadata.json"], "files of {}", claim.name());
        let bytes = std::fs::read(directory.join("gpu/metadata.json")).unwrap();
        let metadata = drakkar_metadata::decode(&bytes).unwrap().metadata;
        assert_eq!(metadata.metadata.uid, claim.uid());
        let spec: Value = serde_json::from_slice(&std::fs::read(spec).unwrap()).unwrap();
        let mounts = spec.pointer("/devices/0/containerEdits/mounts").and_then(Value::as_array).unwrap();
        assert!(!mounts.is_empty());
        for mount in mounts {
            assert_eq!(mount["hostPath"].as_str().map(Path::new), Some(self.metadata_file(claim, "gpu").as_path()));
        }
        true
    }
}

/// What an update tells of a device: a number by which it can be told from others.
pub fn news(device: &str, number: i64) -> Vec<Device> {
    vec![Device {
        pool_name: "node-1".into(),
        device_name: device.into(),
        metadata: Some(DeviceMetadata::default().attribute("number", number)),
        ..Device::default()
    }]
}

/// A driver whose calls for claims that are called `slow…` wait until they are let go; others are done at once.
#[derive(Clone)]
pub struct SlowDriver {
    /// How many calls are in the driver's code.
    pub inside: Arc<watch::Sender<usize>>,
    /// How many were at most.
    pub most: Arc<AtomicUsize>,
    /// A permit lets one call go.
    pub door: Arc<Semaphore>,
}

impl Default for SlowDriver {
    fn default() -> Self {
        Self { inside: Arc::default(), most: Arc::default(), door: Arc::new(Semaphore::new(0)) }
    }
}

impl SlowDriver {
    /// Waits until so many calls are in the driver's code.
    pub async fn wait_for(&self, calls: usize) {
        let mut inside = self.inside.subscribe();
        let waited = tokio::time::timeout(PATIENCE, inside.wait_for(|inside| *inside == calls)).await;
        waited.expect("in time").unwrap();
    }

    async fn pass(&self, name: &str) {
        struct Inside<'a>(&'a watch::Sender<usize>);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|inside| *inside -= 1);
            }
        }
        self.inside.send_modify(|inside| {
            *inside += 1;
            self.most.fetch_max(*inside, Ordering::SeqCst);
        });
        let _inside = Inside(&self.inside);
        if name.starts_with("slow") {
            self.door.acquire().await.unwrap().forget();
        } else {
            // Others have a chance to be here at the same time, if they may.
            tokio::task::yield_now().await;
        }
    }
}

impl DraPlugin for SlowDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        self.pass(claim.reference().name.as_str()).await;
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.pass(claim.name.as_str()).await;
        Ok(())
    }
}

/// Numbers that look random and are the same for the same seed.
pub struct Random(pub u64);

impl Random {
    /// A number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}

/// Status and body of a page.
pub async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Fails a test that would hang.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}
