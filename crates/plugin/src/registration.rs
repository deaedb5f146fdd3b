//! The registration service: tells the kubelet who the driver is, and remembers what became of it.
//!
//! A kubelet that sees our registration socket calls `GetInfo`, which has to answer within a second and therefore waits
//! for nothing; then it calls `NotifyRegistrationStatus`. It does both again after each of its restarts, and again and
//! again, ever more slowly, while a registration fails. The last status is in a watch channel.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use drakkar_metadata::name::DriverName;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use drakkar_kubelet_api::registration as proto;

/// The type of plugin that a DRA driver is, in the kubelet's words.
const PLUGIN_TYPE: &str = "DRAPlugin";

/// Which gRPC services a driver's instance serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Services {
    /// Prepare and unprepare, for kubelets from 1.34 on.
    pub(crate) v1: bool,
    /// Prepare and unprepare, for kubelets from 1.32 on.
    pub(crate) v1beta1: bool,
    /// Health, for kubelets from 1.37 on.
    pub(crate) health_v1: bool,
    /// Health, for kubelets up to 1.36.
    pub(crate) health_v1alpha1: bool,
}

/// A set of services that a kubelet can register: the preferred one first, at least one of them prepares claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SupportedServices(Vec<&'static str>);

/// Neither version of the DRA service is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no version of the DRA service is enabled: enable v1, v1beta1 or both")]
pub(crate) struct NoDraService;

impl SupportedServices {
    /// The services that are on, in the order in which a kubelet shall prefer them.
    pub(crate) fn new(services: Services) -> Result<Self, NoDraService> {
        let Services { v1, v1beta1, health_v1, health_v1alpha1 } = services;
        if !v1 && !v1beta1 {
            return Err(NoDraService);
        }
        let names = [
            (v1, "v1.DRAPlugin"),
            (v1beta1, "v1beta1.DRAPlugin"),
            (health_v1, "v1.DRAResourceHealth"),
            (health_v1alpha1, "v1alpha1.DRAResourceHealth"),
        ];
        Ok(Self(names.into_iter().filter_map(|(on, name)| on.then_some(name)).collect()))
    }

    /// The short names by which a kubelet knows the services.
    pub(crate) fn names(&self) -> &[&'static str] {
        &self.0
    }
}

/// What became of the registration with the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RegistrationStatus {
    /// The kubelet has not said anything yet.
    #[default]
    Waiting,
    /// The kubelet uses the driver.
    Registered,
    /// The kubelet did not take the driver. It tries again by itself.
    Failed {
        /// The kubelet's reason.
        error: String,
    },
}

/// The registration service of one instance.
#[derive(Debug)]
pub(crate) struct Registration {
    info: proto::PluginInfo,
    status: watch::Sender<RegistrationStatus>,
    faults: RegistrationFaults,
}

impl Registration {
    /// Announces a driver whose DRA service is at this socket.
    ///
    /// The path of a DRA socket is valid UTF-8 ([`crate::socket::dra_socket`]); any other would be sent mangled.
    pub(crate) fn new(driver: &DriverName, dra_socket: &Path, services: &SupportedServices) -> Self {
        let info = proto::PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: driver.to_string(),
            endpoint: dra_socket.to_string_lossy().into_owned(),
            supported_versions: services.names().iter().map(ToString::to_string).collect(),
        };
        Self { info, status: watch::Sender::default(), faults: RegistrationFaults::default() }
    }

    /// The last status that the kubelet told, and every later one.
    pub(crate) fn registration_status(&self) -> watch::Receiver<RegistrationStatus> {
        self.status.subscribe()
    }

    /// Makes calls fail, for tests of what a kubelet does then.
    pub(crate) fn faults(&self) -> RegistrationFaults {
        self.faults.clone()
    }
}

#[tonic::async_trait]
impl proto::registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<proto::InfoRequest>) -> Result<Response<proto::PluginInfo>, Status> {
        self.faults.get_info.check()?;
        tracing::debug!(driver = self.info.name, endpoint = self.info.endpoint, "the kubelet asks who we are");
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::RegistrationStatus>,
    ) -> Result<Response<proto::RegistrationStatusResponse>, Status> {
        self.faults.notify.check()?;
        let proto::RegistrationStatus { plugin_registered, error } = request.into_inner();
        let driver = &self.info.name;
        self.status.send_replace(if plugin_registered {
            tracing::info!(driver, "registered with the kubelet");
            RegistrationStatus::Registered
        } else {
            tracing::warn!(driver, error, "the kubelet refused the registration, and will try again");
            RegistrationStatus::Failed { error }
        });
        Ok(Response::new(proto::RegistrationStatusResponse {}))
    }
}

/// Errors that the registration service shall answer with instead of doing its work.
#[derive(Debug, Clone, Default)]
pub struct RegistrationFaults {
    get_info: Fault,
    notify: Fault,
}

impl RegistrationFaults {
    /// From now on `GetInfo` fails with this error; `None` heals it.
    pub fn fail_get_info(&self, error: Option<&str>) {
        self.get_info.set(error);
    }

    /// From now on `NotifyRegistrationStatus` fails with this error; `None` heals it.
    pub fn fail_notify(&self, error: Option<&str>) {
        self.notify.set(error);
    }
}

#[derive(Debug, Clone, Default)]
struct Fault(Arc<Mutex<Option<String>>>);

impl Fault {
    fn set(&self, error: Option<&str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error.map(str::to_owned);
    }

    fn check(&self) -> Result<(), Status> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(error) => Err(Status::internal(error)),
        }
    }
}

#[cfg(test)]
mod tests;
