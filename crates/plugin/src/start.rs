//! The start of a driver: what is checked, and the order in which things come up.
//!
//! 1. The configuration is checked: names, directories, versions ([`check`]). An error says what to change.
//! 2. What earlier processes left on disk is recovered, before any call can arrive.
//! 3. The handles are made, then the driver, which may use them at once. What it says takes effect when everything is up.
//! 4. The HTTP endpoint's address is bound, then the DRA server and last the registration server come up: a kubelet that
//!    sees the latter calls at once.
//! 5. In the background, claims that are on disk but gone from the API server are unprepared, when the kubelet has had time to
//!    do so.
//!
//! If a step fails, what came up before is taken down.

mod cdi_directory;
mod check;
mod error;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::DraClient;
use drakkar_kubelet_api::health_v1::dra_resource_health_server::DraResourceHealthServer as HealthV1Server;
use drakkar_kubelet_api::health_v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1Server;
use drakkar_slices::{ELECTION_FILE, GENERATIONS_FILE, Publisher, PublisherConfig};
use futures::future::{BoxFuture, FutureExt as _, TryFutureExt as _};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use self::check::{Checked, Opened};
pub use self::error::StartError;
use self::error::{http_error, lock_error, socket_error};
use crate::background::{Background, BackgroundError, ErrorSink};
use crate::builder::{DeferredMetadata, PluginBuilder};
use crate::call_watch::CallWatch;
use crate::claims::ClaimSource;
use crate::disk::Disk;
use crate::driver::DraPlugin;
use crate::error::BoxError;
use crate::handles::Handles;
use crate::health::{HealthHub, HealthV1, HealthV1alpha1};
use crate::helper::{Helper, Running};
use crate::http_endpoint::{HttpListener, Pages, RuntimeProbe};
use crate::ledger::DeviceLedger;
use crate::lock::Locks;
use crate::metrics::Metrics;
use crate::publishing::PublishObserver;
use crate::recent_errors::RecentErrors;
use crate::registration::{Services, SupportedServices};
use crate::server::{CallHooks, EndpointSettings, Endpoints, Routes};
use crate::service::wire::{DraV1, DraV1beta1};
use crate::service::{ClaimContext, Service, ServiceSettings, chain};
use crate::status::StatusReports;
use crate::store::{Delivery, RecoveredClaim, Store, SystemFiles};
use crate::update::updater;

/// How long a start waits for another instance to finish its work, before it leaves recovery to the next start.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);

impl PluginBuilder {
    /// Starts the driver, runs it until SIGTERM or SIGINT, and stops it: all that a `main` needs.
    /// An error is printed to standard error and makes the exit code 1.
    pub async fn run<P: DraPlugin>(self, plugin: P) -> ExitCode {
        self.run_with(|_| Ok(plugin)).await
    }

    /// Runs a driver as [`Self::run`] does, which is made with its handles as in [`Self::start_with`].
    pub async fn run_with<P: DraPlugin>(self, make: impl FnOnce(Handles) -> Result<P, BoxError>) -> ExitCode {
        let outcome = match self.start_with(make).await {
            Ok(helper) => helper.run_until_signal().await.map_err(BoxError::from),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {}", chain(&*error));
                ExitCode::FAILURE
            }
        }
    }

    /// Starts a driver. When this returns, its sockets are there; the kubelet registers it when it has seen them.
    pub async fn start<P: DraPlugin>(self, plugin: P) -> Result<Helper, StartError> {
        self.start_with(|_| Ok(plugin)).await
    }

    /// Starts a driver that publishes, reports or updates by itself: `make` gets the [`Handles`] to do so with, and returns the
    /// driver. It is called once the configuration is checked. An error of it is [`StartError::Driver`].
    ///
    /// ```no_run
    /// # use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, DriverResources, Handles, PluginBuilder, Pool};
    /// # use drakkar_plugin::PublishedDevice;
    /// struct Gpus {
    ///     handles: Handles,
    /// }
    ///
    /// impl Gpus {
    ///     fn new(handles: Handles) -> Result<Self, BoxError> {
    ///         let pool = Pool::default().device(PublishedDevice::new("gpu-0"));
    ///         let node = handles.node_name().ok_or("--node-name is missing")?;
    ///         handles.publish_resources(DriverResources::default().pool(node, pool))?;
    ///         Ok(Self { handles })
    ///     }
    /// }
    /// # impl DraPlugin for Gpus {
    /// #     async fn prepare(&self, _: &Claim) -> Result<Vec<Device>, BoxError> { Ok(vec![]) }
    /// #     async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> { Ok(()) }
    /// # }
    /// # async fn run() -> Result<(), BoxError> {
    /// let helper = PluginBuilder::new("gpu.example.com").start_with(Gpus::new).await?;
    /// # Ok(()) }
    /// ```
    pub async fn start_with<P: DraPlugin>(
        self,
        make: impl FnOnce(Handles) -> Result<P, BoxError>,
    ) -> Result<Helper, StartError> {
        let checked = self.check()?;
        let Opened { store, locks, medium } = open(&checked).await?;
        let client = match self.client.clone() {
            Some(client) => DraClient::new(client),
            None => connect(self.kubeconfig.as_deref()).await?,
        };
        let server = client.server().url().unwrap_or("that of the driver's own client").to_owned();
        let version = self.version.clone().unwrap_or_else(|| "unknown".to_owned());
        let calls = CallWatch::start()
            .inspect_err(|error| tracing::warn!(%error, "starting a thread failed, calls that block go unnoticed"))
            .ok();
        let metrics = Metrics::with_version(&checked.driver, &version);
        let flags = self.flag_values();
        let recent = RecentErrors::default();
        let errors = ErrorSink::new(metrics.clone(), recent.clone());
        let background = errors.reporter();

        let ledger = Arc::new(DeviceLedger::default());
        let recovered = if self.services.dra_socket {
            recover(&store, &locks, &checked, &metrics, &background).await?
        } else {
            // The files belong to the process that serves.
            Vec::new()
        };
        for found in &recovered {
            ledger.restore(found);
        }
        {
            let ledger = Arc::downgrade(&ledger);
            metrics.set_claims_source(move || ledger.upgrade().map(|ledger| ledger.counts()).unwrap_or_default());
        }

        let (serving, is_serving) = oneshot::channel();
        let publisher = {
            let observer =
                PublishObserver { metrics: metrics.clone(), background: background.clone(), recent: recent.clone() };
            publisher(is_serving, client.clone(), self.publisher_config(&checked), observer)
        };
        let claims = ClaimSource::new(client, checked.driver.clone(), metrics.clone());
        let status = StatusReports::start(
            claims.clone(),
            ledger.clone(),
            &checked.driver,
            self.status_timeout,
            background.clone(),
            metrics.clone(),
        );
        let (updater_slot, updater) = updater();
        let handles = Handles {
            publisher: publisher.handle(),
            status: status.reporter(),
            metadata: updater,
            metrics: metrics.clone(),
            node_name: self.node_name.clone(),
            not_ready: Arc::new(watch::Sender::new(None)),
        };
        let plugin = {
            let _running = calls.as_ref().map(|calls| calls.enter("constructor"));
            Arc::new(make(handles.clone()).map_err(StartError::Driver)?)
        };
        errors.attach({
            let plugin = plugin.clone();
            let calls = calls.clone();
            move |error| {
                let _running = calls.as_ref().map(|calls| calls.enter("handle_error"));
                plugin.handle_error(error);
            }
        });

        let settings = ServiceSettings {
            driver: checked.driver.clone(),
            metadata: self.metadata,
            deferred: match self.deferred {
                DeferredMetadata::Placeholder => Delivery::Later,
                DeferredMetadata::Gate => Delivery::Gated,
            },
            serialize: self.serialize,
            concurrency: self.concurrency,
            guard: self.guard,
            device_timeout: self.device_timeout,
        };
        let published = self.metadata_from_published.then(|| publisher.attributes());
        let disk = Disk::on(medium);
        let reporter = status.reporter();
        let context = ClaimContext {
            claims,
            ledger: ledger.clone(),
            locks,
            store: store.clone(),
            disk,
            reporter,
            recent: recent.clone(),
            published,
            calls: calls.clone(),
        };
        let service = Arc::new(Service::new(plugin.clone(), settings, context, metrics.clone()));
        let health = P::health_monitor(&plugin).map(|monitor| {
            let background = background.clone();
            Arc::new(HealthHub::new(monitor.of(plugin, calls.clone()), move |error| background(error)))
        });
        if let Some(health) = &health {
            let health = Arc::downgrade(health);
            metrics.set_health_source(move || health.upgrade().map(|health| health.summary()).unwrap_or_default());
        }
        let services = Services {
            health_v1: self.services.health_v1 && health.is_some(),
            health_v1alpha1: self.services.health_v1alpha1 && health.is_some(),
            ..self.services
        };
        let settings = EndpointSettings {
            driver: checked.driver.clone(),
            pod_uid: checked.pod_uid.clone(),
            registry_directory: checked.registry_directory.clone(),
            plugin_directory: checked.store.plugin_directory.clone(),
            services: SupportedServices::new(services).map_err(StartError::from)?,
            serve_dra: self.services.dra_socket,
            register: self.services.registration,
            dra_hooks: CallHooks { metrics: metrics.clone(), interceptor: self.interceptor },
            registration_hooks: CallHooks { metrics: metrics.clone(), interceptor: self.registration_interceptor },
        };
        metrics.set_publishing_source(publisher.overview());
        let lines = status_lines(&checked, &settings, &server, self.node_name.as_deref(), self.metadata);
        let routes = routes(&service, health.as_ref(), services);
        let listener = match self.http_endpoint {
            Some(address) => Some((address, HttpListener::bind(address).map_err(|error| http_error(address, error))?)),
            None => None,
        };
        let endpoints = start_endpoints(settings, routes).await?;
        let (fatal, is_fatal) = watch::channel(None);
        let http = listener.map(|(address, listener)| {
            let served = listener.serve(Pages {
                driver: checked.driver.clone(),
                version: version.clone(),
                registration: endpoints.registration_status(),
                fatal: is_fatal,
                not_ready: handles.not_ready.subscribe(),
                runtime: RuntimeProbe::new(tokio::runtime::Handle::current()),
                calls,
                metrics: metrics.clone(),
                publishing: publisher.overview(),
                status: lines,
                node: self.node_name.clone(),
                ledger,
                store,
                health: health.as_ref().map(Arc::downgrade),
                recent: recent.clone(),
                flags,
                details: self.http_details,
            });
            served.map_err(|error| http_error(address, error))
        });
        let http = http.transpose()?;
        updater_slot.attach(&service);
        tracing::info!(
            driver = %checked.driver,
            version,
            node = self.node_name.as_deref().unwrap_or("not given"),
            server,
            dra_socket = %endpoints.dra_socket().unwrap_or(Path::new("none")).display(),
            registration_socket = %endpoints.registration_socket().unwrap_or(Path::new("none")).display(),
            device_metadata = if self.metadata { "on" } else { "off" },
            "driver started"
        );
        // Nobody listens if the publisher has ended, which it then reports itself.
        let _ = serving.send(());
        let running = Running {
            endpoints,
            http,
            health,
            status,
            publisher,
            fatal,
            drain_timeout: self.drain_timeout,
            orphan_grace: self.orphan_grace,
            background,
            metrics,
            recent,
        };
        Ok(Helper::new(running, handles, service, recovered))
    }

    fn publisher_config(&self, checked: &Checked) -> PublisherConfig {
        let mut config = PublisherConfig::new(checked.driver.as_str())
            .start_within(self.publish_within)
            .generations_file(checked.store.plugin_directory.join(GENERATIONS_FILE));
        if let Some(node) = &self.node_name {
            config = config.node(node);
        }
        if let Some(uid) = &self.node_uid {
            config = config.node_uid(uid);
        }
        if let Some(pool) = &self.only_pool {
            config = config.only_pool(pool);
        }
        if checked.pod_uid.is_some() {
            let directory = checked.lock_file.parent().unwrap_or(&checked.store.plugin_directory);
            config = config.election_file(directory.join(ELECTION_FILE));
        }
        config
    }
}

// The steps that are the same for every driver are boxed by functions that are compiled here. As a part of `start_with` they would
// be compiled again with each driver, and with its optimization for speed.

fn open(checked: &Checked) -> BoxFuture<'_, Result<Opened, StartError>> {
    checked.open().boxed()
}

fn connect(kubeconfig: Option<&Path>) -> BoxFuture<'_, Result<DraClient, StartError>> {
    DraClient::connect(kubeconfig).map_err(StartError::Client).boxed()
}

fn start_endpoints(settings: EndpointSettings, routes: Routes) -> BoxFuture<'static, Result<Endpoints, StartError>> {
    Endpoints::start(settings, routes).map_err(socket_error).boxed()
}

/// Creates the publisher, which writes nothing before the driver is served.
fn publisher(
    is_serving: oneshot::Receiver<()>,
    client: DraClient,
    config: PublisherConfig,
    observer: PublishObserver,
) -> Publisher {
    let ready = async move {
        if is_serving.await.is_err() {
            // The start has failed. The task ends with the publisher, which is about to be dropped.
            std::future::pending::<()>().await;
        }
    };
    Publisher::start_when(ready, client, config, Arc::new(observer))
}

/// Recovers what earlier processes left, and returns the claims that are prepared.
///
/// Nothing that is found keeps the driver from starting: what cannot be recovered is reported.
fn recover<'a>(
    store: &'a Arc<Store<SystemFiles>>,
    locks: &'a Locks,
    checked: &'a Checked,
    metrics: &'a Metrics,
    background: &'a Background,
) -> BoxFuture<'a, Result<Vec<RecoveredClaim>, StartError>> {
    recover_files(store, locks, checked, metrics, background).boxed()
}

async fn recover_files(
    store: &Arc<Store<SystemFiles>>,
    locks: &Locks,
    checked: &Checked,
    metrics: &Metrics,
    background: &Background,
) -> Result<Vec<RecoveredClaim>, StartError> {
    const WHAT: &str = "recover what an earlier instance left";
    let guard = match timeout(RECOVERY_TIMEOUT, locks.everything()).await {
        Ok(Ok(guard)) => guard,
        Ok(Err(error)) => return Err(lock_error(checked.lock_file.clone(), error)),
        Err(_) => {
            let error = "another instance was working all the time; the next start recovers";
            background(BackgroundError::recoverable(WHAT, error));
            return Ok(Vec::new());
        }
    };
    let store = store.clone();
    let recovery = tokio::task::spawn_blocking(move || {
        let recovery = store.recover();
        drop(guard);
        recovery
    });
    let recovery = recovery.await.map_err(StartError::Task)?;
    metrics.recovered(recovery.claims.len(), recovery.problems.len(), 0);
    for problem in recovery.problems {
        background(BackgroundError::recoverable(WHAT, problem));
    }
    Ok(recovery.claims)
}

fn routes<P: DraPlugin>(service: &Arc<Service<P>>, health: Option<&Arc<HealthHub>>, on: Services) -> Routes {
    let mut routes = Routes::default();
    if on.dra_v1 {
        routes = routes.with_unary(Arc::new(DraV1(service.clone())));
    }
    if on.dra_v1beta1 {
        routes = routes.with_unary(Arc::new(DraV1beta1(service.clone())));
    }
    if let Some(hub) = health.filter(|_| on.health_v1) {
        routes = routes.with(HealthV1Server::new(HealthV1(hub.clone())));
    }
    if let Some(hub) = health.filter(|_| on.health_v1alpha1) {
        routes = routes.with(HealthV1alpha1Server::new(HealthV1alpha1(hub.clone())));
    }
    routes
}

/// Returns what the status page says of the configuration.
fn status_lines(
    checked: &Checked,
    endpoints: &EndpointSettings,
    server: &str,
    node: Option<&str>,
    metadata: bool,
) -> Vec<(String, String)> {
    let layouts: Vec<String> = checked.store.layouts.iter().map(ToString::to_string).collect();
    let metadata =
        if metadata { format!("on ({}; {})", checked.store.versions, layouts.join(",")) } else { "off".to_owned() };
    let lines = [
        ("API server", server.to_owned()),
        ("Node", node.unwrap_or("not given").to_owned()),
        ("Services", endpoints.services.names().join(", ")),
        ("Device metadata", metadata),
        ("Plugin directory", checked.store.plugin_directory.display().to_string()),
        ("Registry directory", checked.registry_directory.display().to_string()),
        ("CDI directory", checked.store.cdi_directory.display().to_string()),
        ("Rolling update", checked.pod_uid.as_ref().map_or_else(|| "off".to_owned(), |uid| format!("as pod {uid}"))),
    ];
    lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
