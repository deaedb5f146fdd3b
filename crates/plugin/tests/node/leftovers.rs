//! Tests of leftovers: what remains of a claim, and what a driver keeps for itself, such as a checkpoint or a CDI spec.

use std::fs;
use std::path::PathBuf;

use drakkar_node::{ClaimSpec, Container, Leftovers, Node, Pod};
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin};
use serde_json::json;

use crate::support::{DRIVER, plugin, publish};

/// A driver with files of its own, like the official example driver, besides those of the framework.
#[derive(Clone)]
struct CheckpointDriver {
    directory: PathBuf,
    cdi: PathBuf,
    /// Whether it does not clean up after a claim.
    leaks: bool,
}

impl CheckpointDriver {
    fn new(node: &Node, leaks: bool) -> Self {
        let directory = node.kubelet_root().join("plugins").join(DRIVER);
        let driver = Self { directory, cdi: node.cdi_directory(), leaks };
        fs::create_dir_all(&driver.directory).unwrap();
        fs::create_dir_all(&driver.cdi).unwrap();
        driver.checkpoint(None);
        let common = json!({"cdiVersion": "0.3.0", "kind": "k8s.gpu.example.com/gpu", "devices": [
            {"name": "common", "containerEdits": {"env": ["KUBERNETES_NODE_NAME=node-1"]}},
        ]});
        fs::write(driver.cdi.join("k8s.gpu.example.com-common.json"), common.to_string()).unwrap();
        driver
    }

    fn checkpoint(&self, claim: Option<&str>) {
        let claims = claim.map_or(json!({}), |uid| json!({uid: [{"DeviceName": "gpu-0"}]}));
        let content = json!({"checksum": 1, "v1": {"preparedClaims": claims}});
        fs::write(self.directory.join("checkpoint.json"), content.to_string()).unwrap();
    }

    fn spec_of(&self, uid: &str) -> PathBuf {
        self.cdi.join(format!("k8s.gpu.example.com-claim_{uid}.json"))
    }
}

impl DraPlugin for CheckpointDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let uid = claim.reference().uid.to_string();
        self.checkpoint(Some(&uid));
        fs::write(self.directory.join("driver.log"), format!("prepared claim {uid}\n"))?;
        let spec = json!({"cdiVersion": "0.3.0", "kind": "k8s.gpu.example.com/claim", "devices": [
            {"name": uid, "containerEdits": {"env": ["GPU=gpu-0"]}},
        ]});
        fs::write(self.spec_of(&uid), spec.to_string())?;
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        if !self.leaks {
            self.checkpoint(None);
            fs::remove_file(self.spec_of(claim.uid.as_ref()))?;
        }
        Ok(())
    }
}

/// Creates and deletes a pod with a claim; returns the claim and the leftovers.
async fn after_a_pod(node: &Node, leaks: bool) -> (ClaimRef, Leftovers) {
    let driver = CheckpointDriver::new(node, leaks);
    let helper = plugin(node).device_metadata(true).start(driver).await.unwrap();
    publish(node, &["gpu-0"]).await;
    node.create(ClaimSpec::default().request("gpu", DRIVER, 1).claim("my-claim")).await.unwrap();
    let main = Container::new("main", ["sleep", "infinity"]).claim("gpus");
    let pod = node.create_pod(Pod::new("pod").claim("gpus", "my-claim").container(main)).await.unwrap();
    pod.running().await.unwrap();
    let claim = node.claim_ref("my-claim").await.unwrap();
    let during = node.leftovers_of(DRIVER, std::slice::from_ref(&claim)).await.unwrap();
    let metadata = format!("kubelet/plugins/{DRIVER}/dra-device-metadata/default_my-claim");
    assert!(during.of_claims.contains(&metadata), "{during:?}");
    pod.delete().await.unwrap();
    let leftovers = node.leftovers_of(DRIVER, std::slice::from_ref(&claim)).await.unwrap();
    helper.stop().await.unwrap();
    (claim, leftovers)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_driver_keeps_for_itself_are_not_leftovers_of_a_claim() {
    let node = Node::start().await.unwrap();
    let (_, leftovers) = after_a_pod(&node, false).await;
    assert_eq!(leftovers.of_claims, Vec::<String>::new());
    let own = ["checkpoint.json", "driver.log"].map(|file| format!("kubelet/plugins/{DRIVER}/{file}"));
    let common = "cdi/k8s.gpu.example.com-common.json".to_owned();
    assert_eq!(leftovers.of_driver, [common].into_iter().chain(own).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_driver_leaks_are_leftovers_of_the_claim() {
    let node = Node::start().await.unwrap();
    let (claim, leftovers) = after_a_pod(&node, true).await;
    let spec = format!("cdi/k8s.gpu.example.com-claim_{}.json", claim.uid);
    assert_eq!(leftovers.of_claims, [spec, format!("kubelet/plugins/{DRIVER}/checkpoint.json")]);
}
