//! A plugin on a plain tonic server, under the control of the test.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use drakkar_kubelet_api::registration::registration_server::{Registration, RegistrationServer};
use drakkar_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use drakkar_kubelet_api::{dra_v1 as v1, dra_v1beta1 as v1beta1, health_v1, health_v1alpha1};
use futures::{Stream, StreamExt as _};
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::Log;

type Prepare = dyn Fn(&v1::Claim) -> Option<v1::NodePrepareResourceResponse> + Send + Sync;
type Unprepare = dyn Fn(&v1::Claim) -> Option<v1::NodeUnprepareResourceResponse> + Send + Sync;

/// The behaviour of a plugin, and the calls it saw.
pub(crate) struct Script {
    pub(crate) info: Mutex<PluginInfo>,
    pub(crate) get_info_error: Mutex<Option<Status>>,
    pub(crate) notify_error: Mutex<Option<Status>>,
    /// Whether `GetInfo` never answers.
    pub(crate) hang: AtomicBool,
    pub(crate) notified: Mutex<Vec<RegistrationStatus>>,
    /// The error of whole calls, if set.
    pub(crate) call_error: Mutex<Option<Status>>,
    pub(crate) prepare: Mutex<Box<Prepare>>,
    pub(crate) unprepare: Mutex<Box<Unprepare>>,
    /// The UIDs of claims that are answered without having been requested.
    pub(crate) extra: Mutex<Vec<String>>,
    /// Calls wait for a permit.
    pub(crate) gate: tokio::sync::Semaphore,
    pub(crate) health: broadcast::Sender<Result<health_v1::NodeWatchResourcesResponse, Status>>,
    pub(crate) health_error: Mutex<Option<Status>>,
    pub(crate) streams: AtomicUsize,
    pub(crate) timeouts: Mutex<Vec<String>>,
    pub(crate) log: Log,
    driver: String,
}

/// A served socket. Dropping it removes the socket.
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// The number of accepted connections.
    pub(crate) connections: Arc<AtomicUsize>,
    hang_up: broadcast::Sender<()>,
    _server: AbortOnDropHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Closes all connections, and keeps listening.
    pub(crate) fn hang_up(&self) {
        self.hang_up.send(()).unwrap();
    }

    pub(crate) fn serve(path: &Path, routes: Routes) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let hang_up = broadcast::channel(1).0;
        let ends = hang_up.clone();
        let incoming = futures::stream::unfold(listener, move |listener| {
            let counter = counter.clone();
            let ends = ends.clone();
            async move {
                let mut caller = listener.accept().await.unwrap().0;
                // Not before: an earlier hang-up is not for this connection.
                let mut end = ends.subscribe();
                counter.fetch_add(1, Ordering::SeqCst);
                let (stream, mut served) = tokio::net::UnixStream::pair().unwrap();
                // Ends with the server, which closes its end of the pair, or on `hang_up`.
                tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut caller, &mut served) => {}
                        _ = end.recv() => {}
                    }
                });
                Some((Ok::<_, std::io::Error>(stream), listener))
            }
        });
        let server = async move {
            Server::builder().add_routes(routes).serve_with_incoming(incoming).await.unwrap();
        };
        Self { path: path.to_owned(), connections, hang_up, _server: AbortOnDropHandle::new(tokio::spawn(server)) }
    }
}

/// A running plugin.
pub(crate) struct TestPlugin {
    pub(crate) script: Arc<Script>,
    pub(crate) registration: Option<Socket>,
    pub(crate) service: Option<Socket>,
    registration_path: PathBuf,
    pub(crate) endpoint: PathBuf,
}

impl TestPlugin {
    /// Serves both sockets; `instance` distinguishes several instances of one driver.
    pub(crate) async fn start(registry: &Path, driver: &str, instance: &str, log: Log) -> Self {
        let mut plugin = Self::new(registry, &format!("{driver}{instance}@reg.sock"), driver, instance, log);
        plugin.serve();
        plugin.register();
        plugin
    }

    pub(crate) fn new(registry: &Path, socket: &str, driver: &str, instance: &str, log: Log) -> Self {
        let directory = registry.parent().unwrap().join("plugins").join(driver);
        std::fs::create_dir_all(&directory).unwrap();
        let endpoint = directory.join(format!("dra{instance}.sock"));
        let versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];
        let info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: driver.to_owned(),
            endpoint: endpoint.to_str().unwrap().to_owned(),
            supported_versions: versions.map(str::to_owned).to_vec(),
        };
        let kind = driver.to_owned();
        let script = Script {
            info: Mutex::new(info),
            get_info_error: Mutex::default(),
            notify_error: Mutex::default(),
            hang: AtomicBool::new(false),
            notified: Mutex::default(),
            call_error: Mutex::default(),
            prepare: Mutex::new(Box::new(move |claim| {
                let device = v1::Device {
                    request_names: vec![],
                    pool_name: "pool".to_owned(),
                    device_name: claim.name.clone(),
                    cdi_device_ids: vec![format!("{kind}/gpu={}", claim.name)],
                    share_id: None,
                };
                Some(v1::NodePrepareResourceResponse { devices: vec![device], error: String::new() })
            })),
            unprepare: Mutex::new(Box::new(|_| Some(v1::NodeUnprepareResourceResponse::default()))),
            extra: Mutex::default(),
            gate: tokio::sync::Semaphore::new(1_000_000),
            health: broadcast::channel(16).0,
            health_error: Mutex::default(),
            streams: AtomicUsize::new(0),
            timeouts: Mutex::default(),
            log,
            driver: format!("{driver}{instance}"),
        };
        let registration_path = registry.join(socket);
        Self { script: Arc::new(script), registration: None, service: None, registration_path, endpoint }
    }

    pub(crate) fn register(&mut self) {
        let routes = Routes::new(RegistrationServer::new(Served(self.script.clone())));
        self.registration = Some(Socket::serve(&self.registration_path, routes));
    }

    pub(crate) fn serve(&mut self) {
        let served = || Served(self.script.clone());
        let routes = Routes::new(v1::dra_plugin_server::DraPluginServer::new(served()))
            .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(served()))
            .add_service(health_v1::dra_resource_health_server::DraResourceHealthServer::new(served()))
            .add_service(health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(served()));
        self.service = Some(Socket::serve(&self.endpoint, routes));
    }

    pub(crate) fn connections(&self) -> usize {
        self.service.as_ref().unwrap().connections.load(Ordering::SeqCst)
    }

    /// Returns the notifications: whether it was registered, and the error.
    pub(crate) fn notified(&self) -> Vec<(bool, String)> {
        let notified = self.script.notified.lock().unwrap();
        notified.iter().map(|status| (status.plugin_registered, status.error.clone())).collect()
    }

    pub(crate) fn prepare_with(
        &self,
        prepare: impl Fn(&v1::Claim) -> Option<v1::NodePrepareResourceResponse> + Send + Sync + 'static,
    ) {
        *self.script.prepare.lock().unwrap() = Box::new(prepare);
    }

    pub(crate) fn unprepare_with(&self, error: &'static str) {
        let response = move |_: &v1::Claim| Some(v1::NodeUnprepareResourceResponse { error: error.to_owned() });
        *self.script.unprepare.lock().unwrap() = Box::new(response);
    }

    /// Reports the health of devices of the pool.
    pub(crate) fn report(&self, devices: &[(&str, i32, i64, &str)]) {
        let device = |(name, health, lease, message): &(&str, i32, i64, &str)| health_v1::DeviceHealth {
            device: Some(health_v1::DeviceIdentifier { pool_name: "pool".to_owned(), device_name: (*name).to_owned() }),
            health: *health,
            last_updated_time: 1,
            health_check_timeout_seconds: *lease,
            message: (*message).to_owned(),
        };
        let report = health_v1::NodeWatchResourcesResponse { devices: devices.iter().map(device).collect() };
        self.script.health.send(Ok(report)).unwrap();
    }
}

#[derive(Clone)]
struct Served(Arc<Script>);

#[tonic::async_trait]
impl Registration for Served {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.0.log.add(format!("get-info {}", self.0.driver));
        if self.0.hang.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if let Some(error) = &*self.0.get_info_error.lock().unwrap() {
            return Err(error.clone());
        }
        Ok(Response::new(self.0.info.lock().unwrap().clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.0.notified.lock().unwrap().push(request.into_inner());
        match &*self.0.notify_error.lock().unwrap() {
            Some(error) => Err(error.clone()),
            None => Ok(Response::new(RegistrationStatusResponse {})),
        }
    }
}

impl Served {
    async fn begin<T>(&self, what: &str, claims: &[v1::Claim], request: &Request<T>) -> Result<(), Status> {
        let mut names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
        names.sort_unstable();
        self.0.log.add(format!("{what} {} {}", self.0.driver, names.join(" ")));
        let timeout = request.metadata().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        self.0.timeouts.lock().unwrap().push(timeout.unwrap_or_default());
        self.0.gate.acquire().await.unwrap().forget();
        self.0.call_error.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn answers<T>(&self, claims: &[v1::Claim], answer: impl Fn(&v1::Claim) -> Option<T>) -> HashMap<String, T> {
        let extra = self.0.extra.lock().unwrap();
        let extra = extra.iter().map(|uid| v1::Claim { uid: uid.clone(), ..v1::Claim::default() });
        let all = claims.iter().cloned().chain(extra);
        all.filter_map(|claim| Some((claim.uid.clone(), answer(&claim)?))).collect()
    }
}

#[tonic::async_trait]
impl v1::dra_plugin_server::DraPlugin for Served {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let claims = request.get_ref().claims.clone();
        self.begin("prepare", &claims, &request).await?;
        let prepare = self.0.prepare.lock().unwrap();
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims: self.answers(&claims, &*prepare) }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.get_ref().claims.clone();
        self.begin("unprepare", &claims, &request).await?;
        let unprepare = self.0.unprepare.lock().unwrap();
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims: self.answers(&claims, &*unprepare) }))
    }
}

#[tonic::async_trait]
impl v1beta1::dra_plugin_server::DraPlugin for Served {
    async fn node_prepare_resources(
        &self,
        request: Request<v1beta1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodePrepareResourcesResponse>, Status> {
        let names: Vec<&str> = request.get_ref().claims.iter().map(|claim| claim.name.as_str()).collect();
        self.0.log.add(format!("prepare-v1beta1 {} {}", self.0.driver, names.join(" ")));
        let claims = request.get_ref().claims.iter().map(|claim| (claim.uid.clone(), Default::default())).collect();
        Ok(Response::new(v1beta1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.get_ref().claims.iter().map(|claim| (claim.uid.clone(), Default::default())).collect();
        Ok(Response::new(v1beta1::NodeUnprepareResourcesResponse { claims }))
    }
}

type Reports<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Served {
    fn reports(&self, version: &str) -> Result<Reports<health_v1::NodeWatchResourcesResponse>, Status> {
        self.0.log.add(format!("health-{version} {}", self.0.driver));
        self.0.streams.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = &*self.0.health_error.lock().unwrap() {
            return Err(error.clone());
        }
        let reports = futures::stream::unfold(self.0.health.subscribe(), async |mut receiver| {
            let report = receiver.recv().await.ok()?;
            Some((report, receiver))
        });
        Ok(Box::pin(reports))
    }
}

#[tonic::async_trait]
impl health_v1::dra_resource_health_server::DraResourceHealth for Served {
    type NodeWatchResourcesStream = Reports<health_v1::NodeWatchResourcesResponse>;

    async fn node_watch_resources(
        &self,
        _: Request<health_v1::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        self.reports("v1").map(Response::new)
    }
}

#[tonic::async_trait]
impl health_v1alpha1::dra_resource_health_server::DraResourceHealth for Served {
    type NodeWatchResourcesStream = Reports<health_v1alpha1::NodeWatchResourcesResponse>;

    async fn node_watch_resources(
        &self,
        _: Request<health_v1alpha1::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let convert = |report: Result<health_v1::NodeWatchResourcesResponse, Status>| {
            let bytes = prost::Message::encode_to_vec(&report?);
            prost::Message::decode(bytes.as_slice()).map_err(|error| Status::internal(error.to_string()))
        };
        Ok(Response::new(Box::pin(self.reports("v1alpha1")?.map(convert))))
    }
}
