//! The health of devices as plugins report it: one stream for each instance, one table for the node.

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
use super::timing::Timing;

/// How many changes may wait for the pods that they concern; more are dropped.
const QUEUE: usize = 100;

/// A version of the health service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthVersion {
    /// `v1.DRAResourceHealth`.
    V1,
    /// `v1alpha1.DRAResourceHealth`.
    V1alpha1,
}

impl HealthVersion {
    /// What a plugin calls it when it registers.
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
    /// Pool and name of each.
    pub(super) devices: Vec<(String, String)>,
}

/// The health of the node's devices. A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct Health {
    table: Arc<HealthTable>,
    changes: mpsc::Sender<Change>,
    timing: Timing,
}

impl Health {
    /// The health that the last kubelet knew, and where changes of it are told.
    pub(super) fn restore(file: StateFile, timing: Timing) -> Result<(Self, mpsc::Receiver<Change>), CheckpointError> {
        let (changes, receiver) = mpsc::channel(QUEUE);
        let table = Arc::new(HealthTable::restore(file, timing.health_lease)?);
        Ok((Self { table, changes, timing }, receiver))
    }

    pub(super) fn of(&self, driver: &str, pool: &str, device: &str) -> (HealthStatus, String) {
        self.table.of(driver, pool, device, SystemTime::now())
    }

    pub(super) fn all(&self) -> Vec<DeviceHealth> {
        self.table.all(SystemTime::now())
    }

    /// Forgets what was said of the devices of a driver.
    pub(super) fn clear(&self, driver: &str) {
        self.table.clear(driver);
    }

    /// Watches an instance of a driver for as long as it is registered.
    pub(super) async fn watch<F>(self, driver: String, version: HealthVersion, channel: impl Fn() -> F, gives_up: bool)
    where
        F: Future<Output = Result<Channel, Status>> + Send,
    {
        loop {
            let ended = match channel().await {
                Ok(channel) => self.follow(&driver, version, channel).await,
                Err(status) => Err(status),
            };
            self.table.clear(&driver);
            match ended {
                Err(status) if status.code() == Code::Unimplemented && gives_up => {
                    tracing::info!(driver, "kubelet: the plugin does not implement health");
                    return;
                }
                Err(status) => tracing::debug!(driver, %version, %status, "kubelet: the health stream failed"),
                Ok(()) => tracing::debug!(driver, %version, "kubelet: the health stream ended"),
            }
            sleep(self.timing.health_reconnect).await;
        }
    }

    /// Takes reports until the stream ends.
    async fn follow(&self, driver: &str, version: HealthVersion, channel: Channel) -> Result<(), Status> {
        // The two versions differ in nothing but the package.
        macro_rules! follow {
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
                    self.take(driver, reports.collect());
                }
                Ok(())
            }};
        }
        match version {
            HealthVersion::V1 => follow!(health_v1),
            HealthVersion::V1alpha1 => follow!(health_v1alpha1),
        }
    }

    fn take(&self, driver: &str, reports: Vec<Report>) {
        let devices = self.table.update(driver, reports, SystemTime::now());
        if devices.is_empty() {
            return;
        }
        let change = Change { driver: driver.to_owned(), devices };
        if let Err(error) = self.changes.try_send(change) {
            tracing::error!(driver, %error, "kubelet: a change of health is not told to its pods");
        }
    }
}

#[cfg(test)]
mod tests;
