//! Tests of the rule that one claim holds a device: after a prepare that failed or was cancelled, and with holders that are gone.

mod allocation;
mod failed;
mod holders;
mod locks;

use serde_json::{Value, json};

use crate::support::{DRIVER, Scene, TestClaim};

/// Part of the error for a claim whose device is held by another.
const HELD: &str = "is still prepared for claim default/";

impl Scene {
    /// Creates a claim with these devices.
    fn claim(&self, name: &str, devices: &[&str]) -> TestClaim {
        self.node.claim(claim(name, devices))
    }

    /// Prepares a claim that must be refused because another one holds its device, and returns the error.
    async fn refused(&self, claim: &TestClaim) -> String {
        let error = self.kubelet.prepare_one(claim).await.unwrap_err();
        assert!(error.contains(HELD), "{error}");
        error
    }
}

fn claim(name: &str, devices: &[&str]) -> TestClaim {
    devices.iter().fold(TestClaim::new(name, &format!("uid-{name}")), |claim, device| claim.device("gpu", device))
}

/// Returns a claim with a device for which the kubelet skips these calls.
fn skipping(name: &str, device: &str, operations: &[&str]) -> TestClaim {
    let result: Value = json!({
        "request": "gpu", "driver": DRIVER, "pool": "node-1", "device": device, "skipNodeOperations": operations,
    });
    TestClaim::new(name, &format!("uid-{name}")).result(result)
}
