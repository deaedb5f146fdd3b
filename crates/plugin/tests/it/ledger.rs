//! Tests of the rule that one claim holds a device: after a prepare that failed or was cancelled, and with holders that are gone.

mod allocation;
mod failed;
mod holders;
mod locks;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use drakkar_plugin::{DraPlugin, Helper, PluginBuilder};
use serde_json::{Value, json};

use crate::support::{DRIVER, Kubelet, Node, TestClaim};

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Part of the error for a claim whose device is held by another.
const HELD: &str = "is still prepared for claim default/";

/// A node with a kubelet and a driver that does not wait for devices.
struct Scene {
    node: Node,
    helper: Helper,
    kubelet: Kubelet,
}

impl Scene {
    async fn new(driver: impl DraPlugin) -> Self {
        Self::with(driver, |builder| builder).await
    }

    async fn with(driver: impl DraPlugin, set: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        Self::on(Node::default(), driver, set).await
    }

    async fn on(node: Node, driver: impl DraPlugin, set: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        let helper = set(node.builder().http_endpoint(ANY_PORT)).start(driver).await.unwrap();
        let kubelet = Kubelet::of(&helper).await;
        Self { node, helper, kubelet }
    }

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
