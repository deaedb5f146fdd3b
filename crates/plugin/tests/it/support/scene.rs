//! A driver on a node with its kubelet.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use drakkar_plugin::{DraPlugin, Helper, PluginBuilder};

use super::{Kubelet, Node};

/// The address of an HTTP endpoint on a free port.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A node, a driver on it that serves its metrics, and its kubelet.
pub struct Scene {
    pub node: Node,
    pub helper: Helper,
    pub kubelet: Kubelet,
}

impl Scene {
    /// Starts a driver on a new node.
    pub async fn new(driver: impl DraPlugin) -> Self {
        Self::with(driver, |builder| builder).await
    }

    /// Starts a driver with settings on a new node.
    pub async fn with(driver: impl DraPlugin, set: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        Self::on(Node::default(), driver, set).await
    }

    /// Starts a driver with settings on a node.
    pub async fn on(node: Node, driver: impl DraPlugin, set: impl FnOnce(PluginBuilder) -> PluginBuilder) -> Self {
        let helper = set(node.builder().http_endpoint(ANY_PORT)).start(driver).await.unwrap();
        let kubelet = Kubelet::of(&helper).await;
        Self { node, helper, kubelet }
    }
}
