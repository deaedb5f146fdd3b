//! A controller without a kubelet plugin: it publishes the accelerators of a rack, which are attached to the network, to all
//! nodes of that rack.
//!
//! ```console
//! $ cargo run -p drakkar-slices --example slice_controller -- rack-7
//! ```
//!
//! It runs against the cluster of your kubeconfig, or in a pod with the RBAC rule of the crate's README. Nodes of the rack
//! have the label `topology.example.com/rack`. Ctrl-C removes the slices.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::DraClient;
use drakkar_slices::{
    DriverResources, NodeSelection, Observer, Pool, PublishError, PublishStatus, PublishedDevice, Publisher,
    PublisherConfig, ResourcePublisher,
};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use tokio::time::timeout;

/// The driver that publishes the devices. Device classes select by it.
pub const DRIVER: &str = "fabric.example.com";
/// The node label whose value is the rack.
pub const RACK_LABEL: &str = "topology.example.com/rack";
/// The time that the API server has to store the resources.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);

/// Publishes the accelerators of one rack.
#[derive(Debug)]
pub struct Controller {
    rack: String,
    /// The memory of each accelerator.
    accelerators: BTreeMap<String, String>,
    publisher: Publisher,
    handle: ResourcePublisher,
}

impl Controller {
    /// Starts a controller that owns the pool with the name of the rack. Pools of other racks are left to their controllers.
    pub fn start(client: DraClient, rack: &str) -> Self {
        let config = PublisherConfig::new(DRIVER).only_pool(rack);
        let publisher = Publisher::start(client, config, Arc::new(PrintErrors));
        let handle = publisher.handle();
        Self { rack: rack.to_owned(), accelerators: BTreeMap::new(), publisher, handle }
    }

    /// Publishes another accelerator.
    pub fn add(&mut self, name: &str, memory: &str) -> Result<(), PublishError> {
        self.accelerators.insert(name.to_owned(), memory.to_owned());
        self.publish()
    }

    /// Stops publishing an accelerator. Claims that it is allocated to keep it.
    pub fn remove(&mut self, name: &str) -> Result<(), PublishError> {
        self.accelerators.remove(name);
        self.publish()
    }

    /// Publishes the whole inventory. The publisher finds out what has changed, and writes only that.
    fn publish(&self) -> Result<(), PublishError> {
        let devices = self.accelerators.iter().map(|(name, memory)| {
            PublishedDevice::new(name).attribute("rack", self.rack.as_str()).capacity("memory", memory.as_str())
        });
        let nodes = NodeSelection::Selector(Box::new(nodes_of(&self.rack)));
        self.handle.publish(DriverResources::default().pool(&self.rack, Pool::default().nodes(nodes).devices(devices)))
    }

    /// Waits until the API server stores what was published last. [`PrintErrors`] prints errors on the way.
    pub async fn published(&self) -> Result<(), Box<dyn Error>> {
        let mut status = self.handle.status();
        let is_over = |status: &PublishStatus| matches!(status, PublishStatus::Published | PublishStatus::Stopped);
        match timeout(PUBLISH_TIMEOUT, status.wait_for(is_over)).await {
            Ok(Ok(status)) if *status == PublishStatus::Published => Ok(()),
            Ok(_) => Err(PublishError::Stopped.into()),
            Err(_) => {
                Err(format!("not published within {PUBLISH_TIMEOUT:?}: {:?}", *self.handle.status().borrow()).into())
            }
        }
    }

    /// Removes the slices and stops. For a restart drop the controller instead, which leaves the slices to the next process.
    pub async fn remove_all(self) -> Result<(), Box<dyn Error>> {
        self.handle.publish(DriverResources::default())?;
        self.published().await?;
        drop(self.publisher);
        Ok(())
    }

    /// Returns the handle to the publisher, for tasks that follow its status.
    pub fn handle(&self) -> ResourcePublisher {
        self.handle.clone()
    }
}

/// Selects the nodes of a rack.
fn nodes_of(rack: &str) -> NodeSelector {
    let requirement = NodeSelectorRequirement {
        key: RACK_LABEL.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![rack.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
    NodeSelector { node_selector_terms: vec![term] }
}

/// Prints each error once. A controller might set a condition of its custom resource instead.
struct PrintErrors;

impl Observer for PrintErrors {
    fn publish_failed(&self, error: &PublishError, is_new: bool) {
        if is_new {
            let next = if error.is_permanent() { "publish other resources" } else { "retrying" };
            eprintln!("publishing failed, {next}: {error}");
        }
    }
}

/// Prints each status, until the publisher stops.
async fn print_status(handle: ResourcePublisher) {
    let mut status = handle.status();
    loop {
        let current = status.borrow_and_update().clone();
        println!("{current:?}");
        if current == PublishStatus::Stopped || status.changed().await.is_err() {
            return;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rack = std::env::args().nth(1).unwrap_or_else(|| "rack-7".to_owned());
    let client = DraClient::connect(None).await?;
    let mut controller = Controller::start(client, &rack);
    let status = tokio::spawn(print_status(controller.handle()));

    // The inventory of a real controller comes from the fabric's management API, or from a custom resource.
    controller.add("accelerator-0", "80Gi")?;
    controller.add("accelerator-1", "80Gi")?;
    controller.published().await?;
    controller.add("accelerator-2", "141Gi")?;
    controller.remove("accelerator-0")?;
    controller.published().await?;

    println!("published; press Ctrl-C to remove the slices");
    tokio::signal::ctrl_c().await?;
    controller.remove_all().await?;
    status.await?;
    Ok(())
}
