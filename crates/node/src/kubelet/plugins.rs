//! The registered driver instances, and the connection to each.
//!
//! The instances of a driver are kept in the order of their registration. A call goes to the newest connected instance, or to
//! the newest if none is connected. Losing a connection does not deregister an instance: it starts the delay after which
//! the driver's slices are deleted.

mod link;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::DropGuard;
use tonic::Status;
use tonic::transport::Channel;

use self::link::{Link, new_link};
use super::claim::{ClaimId, Device};
use super::h2::authority;
use super::health::{Health, HealthVersion};
use super::release::Release;
use super::service::{self, ClaimResults, DraService};
use super::slices::Slices;
use super::tasks::Tasks;
use super::timing::Timing;

/// A registered driver instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredPlugin {
    /// The name of the driver.
    pub driver: String,
    /// The socket of the DRA service.
    pub endpoint: PathBuf,
    /// The version of the DRA service in use.
    pub service: DraService,
    /// The version of the health service in use, if any.
    pub health: Option<HealthVersion>,
    /// Whether the kubelet is connected to it.
    pub connected: bool,
}

/// A driver instance and its connection. Dropping it ends its tasks.
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

/// All driver instances. Clones share them.
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

    /// Chooses the DRA service among those that a plugin advertises.
    pub(super) fn validate(&self, supported: &[String]) -> Result<DraService, RegisterError> {
        self.0.release.dra_service(supported).map_err(|error| RegisterError::NoService(error.to_string()))
    }

    pub(super) fn register(&self, driver: &str, endpoint: &Path, supported: &[String]) -> Result<(), RegisterError> {
        let service = self.validate(supported)?;
        let health = self.0.release.health_service(supported);
        let authority = self.0.release.sends_socket_as_authority().then(|| authority(endpoint));
        let (link, connector) = new_link(endpoint, authority, self.0.timing.connect_backoff);
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
        let plugins = self.clone();
        let name = driver.to_owned();
        tasks.spawn(async move { connector.run(|| plugins.check_connections(&name)).await });
        if let Some(version) = health {
            let watch = self.0.health.clone().watch(
                driver.to_owned(),
                version,
                move || {
                    let link = link.clone();
                    async move { link.channel().await }
                },
                self.0.release.stops_health_if_unimplemented(),
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
        // Its health stream, if it had one, has ended.
        self.0.health.clear(driver);
        self.check_connections(driver);
    }

    /// Starts or cancels the delay after which the slices of an unconnected driver are deleted.
    fn check_connections(&self, driver: &str) {
        let all = self.lock();
        if all.get(driver).is_some_and(|instances| instances.iter().any(|instance| instance.link.is_connected())) {
            self.0.slices.connected(driver);
        } else {
            self.0.slices.disconnected(driver);
        }
    }

    /// Returns the instance that calls for this driver go to.
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
    pub(super) async fn prepare(
        &self,
        claims: Vec<ClaimId>,
        timeout: Duration,
    ) -> Result<ClaimResults<Vec<Device>>, Status> {
        let call = |channel, remaining| service::prepare(self.service, channel, claims, Some(remaining));
        self.call(timeout, call).await
    }

    pub(super) async fn unprepare(&self, claims: Vec<ClaimId>, timeout: Duration) -> Result<ClaimResults<()>, Status> {
        let call = |channel, remaining| service::unprepare(self.service, channel, claims, Some(remaining));
        self.call(timeout, call).await
    }

    /// Calls as soon as there is a connection, with the remaining time as the call's timeout.
    async fn call<T, F>(&self, timeout: Duration, call: impl FnOnce(Channel, Duration) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + timeout;
        let called = timeout_at(deadline, async {
            let channel = self.link.channel().await?;
            call(channel, deadline.saturating_duration_since(Instant::now())).await
        });
        let late = || Status::deadline_exceeded(format!("no response from {} within {timeout:?}", self.driver));
        called.await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests;
