//! The instances of drivers that are registered, and the connection to each.
//!
//! All instances of a driver are kept in the order in which they registered. A call goes to the youngest that is connected,
//! else to the youngest. Losing a connection does not deregister: it only starts the time after which the driver's slices
//! are deleted.

mod link;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::DropGuard;
use tonic::Status;
use tonic::transport::Channel;

use self::link::{Link, link};
use super::claim::{ClaimId, Device};
use super::h2::authority;
use super::health::{Health, HealthVersion};
use super::release::Release;
use super::service::{self, Answers, DraService};
use super::slices::Slices;
use super::tasks::Tasks;
use super::timing::Timing;

/// An instance of a driver that is registered with a kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredPlugin {
    /// The name of the driver.
    pub driver: String,
    /// The socket of its DRA service.
    pub endpoint: PathBuf,
    /// The version of the DRA service that is used.
    pub service: DraService,
    /// The version of the health service that is used, if any.
    pub health: Option<HealthVersion>,
    /// Whether there is a connection at the moment.
    pub connected: bool,
}

/// An instance, and its connection. Its tasks end with it.
#[derive(Debug)]
pub(super) struct Instance {
    driver: String,
    endpoint: PathBuf,
    service: DraService,
    health: Option<HealthVersion>,
    link: Link,
    _tasks: DropGuard,
}

/// Why an instance cannot be registered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum RegisterError {
    #[error("{0}")]
    NoService(String),
    #[error("endpoint {} is already registered for DRA driver plugin {driver}: each instance needs a socket of its own", .endpoint.display())]
    EndpointTaken { driver: String, endpoint: PathBuf },
}

/// All instances. A clone has the same ones.
#[derive(Debug, Clone)]
pub(super) struct Plugins(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    instances: Mutex<BTreeMap<String, Vec<Arc<Instance>>>>,
    release: Release,
    timing: Timing,
    tasks: Tasks,
    slices: Slices,
    health: Health,
}

impl Plugins {
    pub(super) fn new(release: Release, timing: Timing, tasks: Tasks, slices: Slices, health: Health) -> Self {
        Self(Arc::new(Inner { instances: Mutex::default(), release, timing, tasks, slices, health }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Arc<Instance>>>> {
        self.0.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the services that a plugin advertises are of any use.
    pub(super) fn validate(&self, supported: &[String]) -> Result<DraService, RegisterError> {
        self.0.release.dra_service(supported).map_err(|error| RegisterError::NoService(error.to_string()))
    }

    pub(super) fn register(&self, driver: &str, endpoint: &Path, supported: &[String]) -> Result<(), RegisterError> {
        let service = self.validate(supported)?;
        let health = self.0.release.health_service(supported);
        let authority = self.0.release.names_the_socket_in_calls().then(|| authority(endpoint));
        let (link, keeper) = link(endpoint, authority, self.0.timing.connect_backoff);
        let (tasks, guard) = self.0.tasks.nested();
        let instance = Arc::new(Instance {
            driver: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            service,
            health,
            link: link.clone(),
            _tasks: guard,
        });
        {
            let mut all = self.lock();
            let instances = all.entry(driver.to_owned()).or_default();
            if instances.iter().any(|other| other.endpoint == endpoint) {
                return Err(RegisterError::EndpointTaken { driver: driver.to_owned(), endpoint: endpoint.to_owned() });
            }
            instances.push(instance);
        }
        let (plugins, name) = (self.clone(), driver.to_owned());
        tasks.spawn(async move { keeper.run(|| plugins.check_connections(&name)).await });
        if let Some(version) = health {
            let watch = self.0.health.clone().watch(
                driver.to_owned(),
                version,
                move || {
                    let link = link.clone();
                    async move { link.channel().await }
                },
                self.0.release.gives_up_on_unimplemented_health(),
            );
            tasks.spawn(watch);
        }
        self.check_connections(driver);
        Ok(())
    }

    pub(super) fn deregister(&self, driver: &str, endpoint: &Path) {
        {
            let mut all = self.lock();
            if let Some(instances) = all.get_mut(driver) {
                instances.retain(|instance| instance.endpoint != endpoint);
                if instances.is_empty() {
                    all.remove(driver);
                }
            }
        }
        // Its stream, if it had one, has ended.
        self.0.health.clear(driver);
        self.check_connections(driver);
    }

    /// Starts or ends the time after which the slices of a driver without connection are deleted.
    fn check_connections(&self, driver: &str) {
        let all = self.lock();
        if all.get(driver).is_some_and(|instances| instances.iter().any(|instance| instance.link.is_connected())) {
            self.0.slices.connected(driver);
        } else {
            self.0.slices.disconnected(driver);
        }
    }

    /// The instance that calls for this driver go to.
    pub(super) fn get(&self, driver: &str) -> Option<Arc<Instance>> {
        let all = self.lock();
        let instances = all.get(driver)?;
        instances.iter().rev().find(|instance| instance.link.is_connected()).or_else(|| instances.last()).cloned()
    }

    pub(super) fn registered(&self) -> Vec<RegisteredPlugin> {
        let view = |instance: &Arc<Instance>| RegisteredPlugin {
            driver: instance.driver.clone(),
            endpoint: instance.endpoint.clone(),
            service: instance.service,
            health: instance.health,
            connected: instance.link.is_connected(),
        };
        self.lock().values().flatten().map(view).collect()
    }
}

impl Instance {
    pub(super) async fn prepare(&self, claims: Vec<ClaimId>, within: Duration) -> Result<Answers<Vec<Device>>, Status> {
        let call = |channel, left| service::prepare(self.service, channel, claims, Some(left));
        self.call(within, call).await
    }

    pub(super) async fn unprepare(&self, claims: Vec<ClaimId>, within: Duration) -> Result<Answers<()>, Status> {
        let call = |channel, left| service::unprepare(self.service, channel, claims, Some(left));
        self.call(within, call).await
    }

    /// Calls as soon as there is a connection, with the time that is then left.
    async fn call<T, F>(&self, within: Duration, call: impl FnOnce(Channel, Duration) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + within;
        let called = timeout_at(deadline, async {
            let channel = self.link.channel().await?;
            call(channel, deadline.saturating_duration_since(Instant::now())).await
        });
        let late = || Status::deadline_exceeded(format!("no answer of {} within {within:?}", self.driver));
        called.await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests;
