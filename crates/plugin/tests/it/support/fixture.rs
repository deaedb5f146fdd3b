//! A driver on a node, and its kubelet.

use drakkar_plugin::{DraPlugin, Helper, PluginBuilder};

use super::{ANY_PORT, Kubelet, Node};

/// A driver on a node, with an HTTP endpoint, and the kubelet that calls it. The driver does not wait for devices.
pub struct Fixture {
    pub node: Node,
    pub helper: Helper,
    pub kubelet: Kubelet,
}

impl Fixture {
    /// Starts a driver on a new node.
    pub async fn new(driver: impl DraPlugin) -> Self {
        Self::with(driver, |builder| builder).await
    }

    /// Starts a driver with other settings on a new node.
    pub async fn with(driver: impl DraPlugin, configure: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        Self::on(Node::default(), driver, configure).await
    }

    /// Starts a driver on an existing node.
    pub async fn on(
        node: Node,
        driver: impl DraPlugin,
        configure: impl FnOnce(PluginBuilder) -> PluginBuilder,
    ) -> Self {
        let helper = configure(node.builder().http_endpoint(ANY_PORT)).start(driver).await.unwrap();
        let kubelet = Kubelet::of(&helper).await;
        Self { node, helper, kubelet }
    }

    /// Stops the driver, and starts one on the same node.
    pub async fn restart(self, driver: impl DraPlugin, configure: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        self.helper.stop().await.unwrap();
        Self::on(self.node, driver, configure).await
    }
}
