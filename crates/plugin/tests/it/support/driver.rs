//! Configurable drivers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin};
use tokio::sync::{Semaphore, watch};

use super::{DRIVER, in_time};

type PrepareFn = dyn Fn(&Claim) -> Result<Vec<Device>, BoxError> + Send + Sync;
type UnprepareFn = dyn Fn(&ClaimRef) -> Result<(), BoxError> + Send + Sync;

/// A driver whose methods are closures, and which records calls and background errors.
#[derive(Clone)]
pub struct TestDriver {
    prepare: Arc<PrepareFn>,
    unprepare: Arc<UnprepareFn>,
    pub calls: Arc<Mutex<Vec<String>>>,
    pub errors: Arc<Mutex<Vec<String>>>,
}

impl Default for TestDriver {
    /// Returns a driver that prepares all allocated devices, with one CDI device each.
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
    /// Returns a driver with this prepare, whose unprepare succeeds.
    pub fn preparing(prepare: impl Fn(&Claim) -> Result<Vec<Device>, BoxError> + Send + Sync + 'static) -> Self {
        Self {
            prepare: Arc::new(prepare),
            unprepare: Arc::new(|_| Ok(())),
            calls: Arc::default(),
            errors: Arc::default(),
        }
    }

    /// Replaces the unprepare.
    pub fn unpreparing(
        mut self,
        unprepare: impl Fn(&ClaimRef) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.unprepare = Arc::new(unprepare);
        self
    }

    /// Returns the calls since they were last taken.
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

/// Returns a metadata update of a device, with a number as its attribute to distinguish updates.
pub fn numbered_device(device: &str, number: i64) -> Vec<Device> {
    vec![Device {
        pool_name: "node-1".into(),
        device_name: device.into(),
        metadata: Some(DeviceMetadata::default().attribute("number", number)),
        ..Device::default()
    }]
}

/// A driver whose calls for claims with names that start with `slow` wait for a permit.
#[derive(Clone)]
pub struct SlowDriver {
    /// The number of calls in the driver's code.
    pub in_flight: Arc<watch::Sender<usize>>,
    /// The highest number of calls that were in the driver's code at once.
    pub max_in_flight: Arc<AtomicUsize>,
    /// Permits to return, one for each slow call.
    pub permits: Arc<Semaphore>,
}

impl Default for SlowDriver {
    fn default() -> Self {
        Self { in_flight: Arc::default(), max_in_flight: Arc::default(), permits: Arc::new(Semaphore::new(0)) }
    }
}

impl SlowDriver {
    /// Waits until exactly this many calls are in the driver's code.
    pub async fn wait_for(&self, calls: usize) {
        let mut in_flight = self.in_flight.subscribe();
        in_time(in_flight.wait_for(|in_flight| *in_flight == calls)).await.unwrap();
    }

    async fn call(&self, name: &str) {
        struct Guard<'a>(&'a watch::Sender<usize>);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|in_flight| *in_flight -= 1);
            }
        }
        self.in_flight.send_modify(|in_flight| {
            *in_flight += 1;
            self.max_in_flight.fetch_max(*in_flight, Ordering::SeqCst);
        });
        let _guard = Guard(&self.in_flight);
        if name.starts_with("slow") {
            self.permits.acquire().await.unwrap().forget();
        } else {
            // Gives concurrent calls a chance to get here, if the framework allows them.
            tokio::task::yield_now().await;
        }
    }
}

impl DraPlugin for SlowDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        self.call(claim.reference().name.as_str()).await;
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.call(claim.name.as_str()).await;
        Ok(())
    }
}
