//! The health of devices as plugins report it: one stream per instance, one table for the node.

mod table;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use drakkar_kubelet_api::{health_v1, health_v1alpha1};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub use self::table::{DeviceHealth, HealthStatus};
pub(super) use self::table::{HealthTable, Report};
use super::checkpoint::{CheckpointError, StateFile};
use super::rpc_error::RpcError;
use super::timing::Timing;

/// The most health changes that are queued for pods; more are dropped.
const MAX_QUEUED_CHANGES: usize = 100;

/// A version of the health service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthVersion {
    /// `v1.DRAResourceHealth`.
    V1,
    /// `v1alpha1.DRAResourceHealth`.
    V1alpha1,
}

impl HealthVersion {
    /// Returns the name by which a plugin advertises the service.
    pub fn advertised(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAResourceHealth",
            Self::V1alpha1 => "v1alpha1.DRAResourceHealth",
        }
    }
}

impl fmt::Display for HealthVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advertised())
    }
}

/// Devices of a driver whose health has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) driver: String,
    /// The pool and name of each device.
    pub(super) devices: Vec<(String, String)>,
}

/// The health of the node's devices. Clones share the table.
#[derive(Debug, Clone)]
pub(super) struct Health {
    table: Arc<HealthTable>,
    changes: mpsc::Sender<Change>,
    timing: Timing,
}

impl Health {
    /// Restores the health that the last kubelet knew; returns it with the receiver of changes.
    pub(super) fn restore(file: StateFile, timing: Timing) -> Result<(Self, mpsc::Receiver<Change>), CheckpointError> {
        let (changes, receiver) = mpsc::channel(MAX_QUEUED_CHANGES);
        let table = Arc::new(HealthTable::restore(file, timing.health_lease)?);
        Ok((Self { table, changes, timing }, receiver))
    }

    pub(super) fn of(&self, driver: &str, pool: &str, device: &str) -> (HealthStatus, String) {
        self.table.of(driver, pool, device, SystemTime::now())
    }

    pub(super) fn all(&self) -> Vec<DeviceHealth> {
        self.table.all(SystemTime::now())
    }

    /// Removes the health of a driver's devices.
    pub(super) fn clear(&self, driver: &str) {
        self.table.clear(driver);
    }

    /// Watches the health of a driver instance until it is deregistered. With `stop_if_unimplemented`, a plugin that does
    /// not implement the service is not asked again.
    pub(super) async fn watch<F>(
        self,
        driver: String,
        version: HealthVersion,
        channel: impl Fn() -> F,
        stop_if_unimplemented: bool,
    ) where
        F: Future<Output = Result<Channel, Status>> + Send,
    {
        loop {
            let ended = match channel().await {
                Ok(channel) => self.receive(&driver, version, channel).await,
                Err(status) => Err(status),
            };
            self.table.clear(&driver);
            match ended {
                Err(status) if status.code() == Code::Unimplemented && stop_if_unimplemented => {
                    tracing::info!(driver, "kubelet: plugin does not implement health");
                    return;
                }
                Err(status) => {
                    let error = RpcError(&status);
                    tracing::debug!(driver, %version, %error, "kubelet: health stream failed");
                }
                Ok(()) => tracing::debug!(driver, %version, "kubelet: health stream ended"),
            }
            sleep(self.timing.health_reconnect_delay).await;
        }
    }

    /// Receives reports until the stream ends.
    async fn receive(&self, driver: &str, version: HealthVersion, channel: Channel) -> Result<(), Status> {
        // The two versions differ only in the package.
        macro_rules! receive {
            ($proto:ident) => {{
                let mut client = $proto::dra_resource_health_client::DraResourceHealthClient::new(channel);
                let response = client.node_watch_resources($proto::NodeWatchResourcesRequest {}).await?;
                let mut stream = response.into_inner();
                while let Some(message) = stream.message().await? {
                    let reports = message.devices.into_iter().filter_map(|health| {
                        let device = health.device?;
                        Some(Report {
                            pool: device.pool_name,
                            device: device.device_name,
                            health: HealthStatus::from_wire(health.health),
                            lease_seconds: health.health_check_timeout_seconds,
                            message: health.message,
                        })
                    });
                    self.apply(driver, reports.collect());
                }
                Ok(())
            }};
        }
        match version {
            HealthVersion::V1 => receive!(health_v1),
            HealthVersion::V1alpha1 => receive!(health_v1alpha1),
        }
    }

    fn apply(&self, driver: &str, reports: Vec<Report>) {
        let devices = self.table.update(driver, reports, SystemTime::now());
        if devices.is_empty() {
            return;
        }
        let change = Change { driver: driver.to_owned(), devices };
        if let Err(error) = self.changes.try_send(change) {
            tracing::error!(driver, %error, "kubelet: dropped a health change");
        }
    }
}

#[cfg(test)]
mod tests;
