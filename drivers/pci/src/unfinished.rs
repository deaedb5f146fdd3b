//! Claims that could not be taken back, tried again without waiting for the kubelet.

use std::sync::Arc;

use drakkar_driver_kit::unfinished::{self, Attempt, Failure};

use crate::devices::Devices;
use crate::prepare::{DeviceManager, PrepareError};

/// Tries again to take back claims: a write that hung may have returned.
#[derive(Debug)]
pub(crate) struct Unfinished {
    manager: Arc<DeviceManager>,
    devices: Arc<Devices>,
    attempts: unfinished::Unfinished,
}

impl Unfinished {
    pub(crate) fn new(manager: Arc<DeviceManager>, devices: Arc<Devices>) -> Self {
        Self { manager, devices, attempts: unfinished::Unfinished::default() }
    }

    /// Begins an attempt if there is something to do and the last attempt is over: one that hangs takes as long as a write may.
    pub(crate) fn retry(&mut self) {
        if !self.manager.has_unfinished() {
            return;
        }
        let (manager, devices) = (self.manager.clone(), self.devices.clone());
        self.attempts.retry(move || {
            let retry = manager.retry();
            if !retry.taken_back.is_empty()
                && let Err(error) = devices.claims_changed([])
            {
                tracing::warn!(%error, "devices of a claim not read");
            }
            let failed = retry.failed.into_iter().map(|(claim, error)| {
                let reason = reason(&error);
                Failure { claim, error: error.to_string(), reason }
            });
            Attempt { taken_back: retry.taken_back, failed: failed.collect() }
        });
    }
}

/// Returns the reason of a failure without what differs from one attempt to the next.
fn reason(error: &PrepareError) -> String {
    if error.is_hung() { "hung".to_owned() } else { error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use drakkar_plugin::ClaimRef;

    use super::*;

    fn claim() -> ClaimRef {
        ClaimRef {
            namespace: "default".parse().unwrap(),
            name: "a".parse().unwrap(),
            uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
        }
    }

    fn open(message: &str) -> PrepareError {
        PrepareError::Open { path: "/state".into(), source: std::io::Error::other(message.to_owned()) }
    }

    fn hung(seconds: u64) -> PrepareError {
        let source = drakkar_sysfs::WriteError::Hung {
            device: "0000:65:00.0".into(),
            path: "/sys/bus/pci/drivers/nvidia/unbind".into(),
            value: "0000:65:00.0".into(),
            after: Duration::from_secs(seconds),
        };
        let source = Box::new(drakkar_sysfs::ChangeError::Write { hint: "", source });
        PrepareError::Change { claim: Box::new(claim()), device: "0000:65:00.0".into(), source }
    }

    #[test]
    fn the_reason_of_a_hung_write_does_not_grow_with_time() {
        assert_ne!(hung(1).to_string(), hung(11).to_string());
        assert_eq!(reason(&hung(1)), reason(&hung(11)));
        assert_ne!(reason(&hung(1)), reason(&open("disk full")));
        assert_ne!(reason(&open("disk full")), reason(&open("no such file")));
    }
}
