//! The peers of a driver in these tests: an API server that has claims, and a kubelet that calls the driver's sockets.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drakkar_plugin::proto::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_plugin::proto::dra_v1::{self as v1, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, Helper, PluginBuilder};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tempfile::TempDir;
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
    pub fn from_template(mut self, pod_claim: &str) -> Self {
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
