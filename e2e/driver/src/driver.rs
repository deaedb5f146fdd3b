//! The driver's side of the framework: prepare, unprepare and health.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceHealth, DeviceStatus, DraPlugin, HealthMonitor, HealthReporter,
    StatusReporter,
};
use tokio::sync::mpsc;

use crate::Metadata;
use crate::control::{Control, PERIOD};
use crate::devices::{self, SimulatedDevice};

/// The devices of each request of a claim, with their metadata.
pub(crate) type Requests = BTreeMap<String, Vec<Device>>;

/// The claims that this process has prepared and not unprepared.
#[derive(Clone, Default)]
pub(crate) struct Prepared(Arc<Mutex<BTreeMap<String, (ClaimRef, Requests)>>>);

impl Prepared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (ClaimRef, Requests)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn claims(&self) -> Vec<(ClaimRef, Requests)> {
        self.lock().values().cloned().collect()
    }
}

pub(crate) struct E2e {
    pub(crate) node: String,
    pub(crate) count: usize,
    pub(crate) metadata: Metadata,
    pub(crate) health: bool,
    pub(crate) control: Arc<Control>,
    pub(crate) prepared: Prepared,
    /// The queue of metadata to deliver after prepare.
    pub(crate) deliveries: mpsc::UnboundedSender<(ClaimRef, Requests)>,
    /// Reports the status of devices, if the driver does that.
    pub(crate) reporter: Option<StatusReporter>,
}

impl E2e {
    /// Reports the devices as ready in the status of the claim.
    fn report(&self, claim: &ClaimRef, requests: &Requests) -> Result<(), BoxError> {
        let Some(reporter) = &self.reporter else { return Ok(()) };
        let status = |device: &Device| {
            let network = device.metadata.as_ref().and_then(|metadata| metadata.network_data.clone());
            let status = DeviceStatus::new(&device.pool_name, &device.device_name);
            status.ready("Prepared", "as the claim asks").network_data(network.unwrap_or_default())
        };
        Ok(reporter.report_device_status(claim, requests.values().flatten().map(status))?)
    }
}

impl DraPlugin for E2e {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let mut requests = Requests::new();
        for result in claim.results() {
            let simulated = SimulatedDevice::named(&result.device)?;
            let device = Device { metadata: Some(simulated.metadata(self.control.revision())), ..Device::from(result) };
            requests.entry(result.request.clone()).or_default().push(device);
        }
        let reference = claim.reference().clone();
        self.prepared.lock().insert(reference.uid.to_string(), (reference.clone(), requests.clone()));
        let devices = requests.values().flatten().cloned();
        match self.metadata {
            Metadata::Immediate => {
                self.report(&reference, &requests)?;
                Ok(devices.collect())
            }
            Metadata::Published => Ok(devices.map(|device| Device { metadata: None, ..device }).collect()),
            Metadata::Deferred | Metadata::Gated => {
                self.deliveries.send((reference, requests))?;
                Ok(Vec::new())
            }
        }
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.prepared.lock().remove(&claim.uid.to_string());
        Ok(())
    }

    fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
        self.health.then(|| HealthMonitor::new(async |driver: Arc<Self>, reports| driver.watch_health(reports).await))
    }
}

impl E2e {
    async fn watch_health(&self, reports: HealthReporter) -> Result<(), BoxError> {
        const LEASE: Duration = Duration::from_secs(10);
        let mut ticks = tokio::time::interval(PERIOD);
        while !reports.is_closed() {
            ticks.tick().await;
            let unhealthy = self.control.unhealthy();
            let health = |index| {
                let name = devices::name(index);
                let health = if unhealthy.contains(&name) {
                    DeviceHealth::unhealthy(&self.node, &name, "set by a control file")
                } else {
                    DeviceHealth::healthy(&self.node, &name)
                };
                health.with_lease(LEASE)
            };
            reports.report((0..self.count).map(health).collect::<Vec<_>>()).await;
        }
        Ok(())
    }
}
