//! The kubelet's plugin registration service: announces the driver and records the kubelet's answer.
//!
//! A kubelet that finds the registration socket calls `GetInfo`, which has to answer within a second and therefore waits
//! for nothing; then it calls `NotifyRegistrationStatus`. It repeats both after each of its restarts, and with backoff
//! while a registration fails. A watch channel holds the last status.

mod waiting;

use std::path::Path;

use drakkar_kubelet_api::registration as proto;
use drakkar_metadata::name::DriverName;
use tokio::sync::watch;
use tonic::Status;

pub(crate) use self::waiting::log_waiting;
use crate::server::{Message, Reply, UnaryService, unknown_method};

/// The kubelet's plugin type for DRA drivers.
const PLUGIN_TYPE: &str = "DRAPlugin";

/// The services that a driver's process serves to the kubelet. All by default.
///
/// ```
/// # use drakkar_plugin::{PluginBuilder, Services};
/// let builder = PluginBuilder::new("gpu.example.com").services(Services::default().dra_v1beta1(false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "services do nothing by themselves"]
pub struct Services {
    pub(crate) dra_v1: bool,
    pub(crate) dra_v1beta1: bool,
    pub(crate) health_v1: bool,
    pub(crate) health_v1alpha1: bool,
    pub(crate) dra_socket: bool,
    pub(crate) registration: bool,
}

impl Default for Services {
    fn default() -> Self {
        Self {
            dra_v1: true,
            dra_v1beta1: true,
            health_v1: true,
            health_v1alpha1: true,
            dra_socket: true,
            registration: true,
        }
    }
}

impl Services {
    /// Serves DRA v1, for kubelets since 1.34.
    pub fn dra_v1(self, on: bool) -> Self {
        Self { dra_v1: on, ..self }
    }

    /// Serves DRA v1beta1, for kubelets since 1.32.
    pub fn dra_v1beta1(self, on: bool) -> Self {
        Self { dra_v1beta1: on, ..self }
    }

    /// Serves health v1, for kubelets since 1.37, if the driver has a health monitor.
    pub fn health_v1(self, on: bool) -> Self {
        Self { health_v1: on, ..self }
    }

    /// Serves health v1alpha1, for kubelets up to 1.36, if the driver has a health monitor.
    pub fn health_v1alpha1(self, on: bool) -> Self {
        Self { health_v1alpha1: on, ..self }
    }

    /// Serves the DRA socket. Off where another process does.
    pub fn dra_socket(self, on: bool) -> Self {
        Self { dra_socket: on, ..self }
    }

    /// Registers with the kubelet. Off where another process does.
    pub fn registration(self, on: bool) -> Self {
        Self { registration: on, ..self }
    }
}

/// The names of the services that a kubelet registers, in order of preference. At least one is a DRA service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SupportedServices(Vec<&'static str>);

/// Neither version of the DRA service is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no version of the DRA service is enabled: enable v1, v1beta1 or both")]
pub(crate) struct NoDraService;

impl SupportedServices {
    /// Lists the enabled services in the order in which kubelets should prefer them.
    pub(crate) fn new(services: Services) -> Result<Self, NoDraService> {
        let Services { dra_v1, dra_v1beta1, health_v1, health_v1alpha1, .. } = services;
        if !dra_v1 && !dra_v1beta1 {
            return Err(NoDraService);
        }
        let names = [
            (dra_v1, "v1.DRAPlugin"),
            (dra_v1beta1, "v1beta1.DRAPlugin"),
            (health_v1, "v1.DRAResourceHealth"),
            (health_v1alpha1, "v1alpha1.DRAResourceHealth"),
        ];
        Ok(Self(names.into_iter().filter_map(|(enabled, name)| enabled.then_some(name)).collect()))
    }

    /// Returns the short names by which a kubelet knows the services.
    pub(crate) fn names(&self) -> &[&'static str] {
        &self.0
    }
}

/// The status of the driver's registration with the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RegistrationStatus {
    /// The kubelet has not reported a status yet.
    #[default]
    Waiting,
    /// The kubelet has registered the driver and uses it.
    Registered,
    /// The kubelet refused the driver. It retries on its own.
    Failed {
        /// The reason that the kubelet gave.
        error: String,
    },
}

/// The registration service of one driver instance.
#[derive(Debug)]
pub(crate) struct Registration {
    info: proto::PluginInfo,
    status: watch::Sender<RegistrationStatus>,
}

impl Registration {
    /// Creates the service for a driver whose DRA service listens on `dra_socket`.
    ///
    /// The path must be valid UTF-8, as [`crate::socket::dra_socket`] guarantees: the protocol has no other paths.
    pub(crate) fn new(driver: &DriverName, dra_socket: &Path, services: &SupportedServices) -> Self {
        let info = proto::PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: driver.to_string(),
            endpoint: dra_socket.to_string_lossy().into_owned(),
            supported_versions: services.names().iter().map(ToString::to_string).collect(),
        };
        Self { info, status: watch::Sender::default() }
    }

    /// Watches the status that the kubelet reported last.
    pub(crate) fn registration_status(&self) -> watch::Receiver<RegistrationStatus> {
        self.status.subscribe()
    }
}

impl UnaryService for Registration {
    const NAME: &'static str = proto::registration_server::SERVICE_NAME;
    const METHODS: &'static [&'static str] = &["GetInfo", "NotifyRegistrationStatus"];

    async fn call(&self, method: &str, message: Message) -> Result<Reply, Status> {
        match method {
            "GetInfo" => Reply::encode(self.info(message.decode()?)),
            "NotifyRegistrationStatus" => Reply::encode(&self.notify(message.decode()?)),
            method => Err(unknown_method(method)),
        }
    }
}

impl Registration {
    fn info(&self, _: proto::InfoRequest) -> &proto::PluginInfo {
        tracing::debug!(driver = self.info.name, endpoint = self.info.endpoint, "kubelet requested plugin info");
        &self.info
    }

    fn notify(&self, status: proto::RegistrationStatus) -> proto::RegistrationStatusResponse {
        let proto::RegistrationStatus { plugin_registered, error } = status;
        let driver = &self.info.name;
        self.status.send_replace(if plugin_registered {
            tracing::info!(driver, "registered with kubelet");
            RegistrationStatus::Registered
        } else {
            tracing::warn!(driver, error, "kubelet refused the registration and will retry");
            RegistrationStatus::Failed { error }
        });
        proto::RegistrationStatusResponse {}
    }
}

#[cfg(test)]
mod tests;
