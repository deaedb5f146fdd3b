//! Drivers that do as they are told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{DRIVER, PATIENCE};
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin};
use tokio::sync::{Semaphore, watch};

/// What the driver of a test does, as closures.
type PrepareFn = dyn Fn(&Claim) -> Result<Vec<Device>, BoxError> + Send + Sync;
type UnprepareFn = dyn Fn(&ClaimRef) -> Result<(), BoxError> + Send + Sync;

/// A driver that does as it is told, and remembers what it was asked.
#[derive(Clone)]
pub struct TestDriver {
    prepare: Arc<PrepareFn>,
    unprepare: Arc<UnprepareFn>,
    pub calls: Arc<Mutex<Vec<String>>>,
    pub errors: Arc<Mutex<Vec<String>>>,
}

impl Default for TestDriver {
    /// Prepares what was allocated, each with one CDI device.
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
    pub fn preparing(prepare: impl Fn(&Claim) -> Result<Vec<Device>, BoxError> + Send + Sync + 'static) -> Self {
        Self {
            prepare: Arc::new(prepare),
            unprepare: Arc::new(|_| Ok(())),
            calls: Arc::default(),
            errors: Arc::default(),
        }
    }

    pub fn unpreparing(
        mut self,
        unprepare: impl Fn(&ClaimRef) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.unprepare = Arc::new(unprepare);
        self
    }

    /// What it was asked since the last time.
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

/// What an update tells of a device: a number by which it can be told from others.
pub fn news(device: &str, number: i64) -> Vec<Device> {
    vec![Device {
        pool_name: "node-1".into(),
        device_name: device.into(),
        metadata: Some(DeviceMetadata::default().attribute("number", number)),
        ..Device::default()
    }]
}

/// A driver whose calls for claims that are called `slow…` wait until they are let go; others are done at once.
#[derive(Clone)]
pub struct SlowDriver {
    /// How many calls are in the driver's code.
    pub inside: Arc<watch::Sender<usize>>,
    /// How many were at most.
    pub most: Arc<AtomicUsize>,
    /// A permit lets one call go.
    pub door: Arc<Semaphore>,
}

impl Default for SlowDriver {
    fn default() -> Self {
        Self { inside: Arc::default(), most: Arc::default(), door: Arc::new(Semaphore::new(0)) }
    }
}

impl SlowDriver {
    /// Waits until so many calls are in the driver's code.
    pub async fn wait_for(&self, calls: usize) {
        let mut inside = self.inside.subscribe();
        let waited = tokio::time::timeout(PATIENCE, inside.wait_for(|inside| *inside == calls)).await;
        waited.expect("in time").unwrap();
    }

    async fn pass(&self, name: &str) {
        struct Inside<'a>(&'a watch::Sender<usize>);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|inside| *inside -= 1);
            }
        }
        self.inside.send_modify(|inside| {
            *inside += 1;
            self.most.fetch_max(*inside, Ordering::SeqCst);
        });
        let _inside = Inside(&self.inside);
        if name.starts_with("slow") {
            self.door.acquire().await.unwrap().forget();
        } else {
            // Others have a chance to be here at the same time, if they may.
            tokio::task::yield_now().await;
        }
    }
}

impl DraPlugin for SlowDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        self.pass(claim.reference().name.as_str()).await;
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.pass(claim.name.as_str()).await;
        Ok(())
    }
}
