use std::process::ExitCode;

use drakkar_plugin::{
    BoxError, Claim, ClaimRef, ContainerEdits, Device, DeviceMetadata, DeviceNode, DraPlugin, DriverResources, Flags,
    Handles, PluginBuilder, Pool, PublishedDevice, logging,
};

struct Gpus;

impl Gpus {
    fn new(handles: Handles) -> Result<Self, BoxError> {
        let node = handles.node_name().ok_or("--node-name is missing")?;
        let gpus = ["gpu-0", "gpu-1"].map(|name| PublishedDevice::new(name).attribute("model", "m1"));
        handles.publish_resources(DriverResources::default().pool(node, Pool::default().devices(gpus)))?;
        Ok(Self)
    }
}

impl DraPlugin for Gpus {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let devices = claim.results().map(|result| Device {
            // /dev/null stands for the device node of a real GPU.
            container_edits: ContainerEdits::default()
                .device_node(DeviceNode::mapped("/dev/null", format!("/dev/{}", result.device)))
                .env_var("GPU", &result.device),
            metadata: Some(DeviceMetadata::default().attribute("model", "m1")),
            ..Device::from(result)
        });
        Ok(devices.collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse_with_version(env!("CARGO_PKG_VERSION"));
    logging::init(&flags);
    PluginBuilder::new("gpu.example.com").flags(&flags).run_with(Gpus::new).await
}

#[cfg(test)]
mod tests {
    use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually};

    use super::*;

    fn claim() -> Claim {
        let object = serde_json::json!({
            "metadata": {"namespace": "default", "name": "train", "uid": "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [
                {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"},
                {"request": "nic", "driver": "net.example.com", "pool": "node-1", "device": "eth1"},
            ]}}},
        });
        Claim::from_object("gpu.example.com", serde_json::from_value(object).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn an_allocated_gpu_is_prepared_and_unprepared() {
        let claim = claim();

        let devices = Gpus.prepare(&claim).await.unwrap();

        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].container_edits.env, ["GPU=gpu-0"]);
        assert_eq!(Gpus.prepare(&claim).await.unwrap(), devices, "a second prepare gives the same answer");
        Gpus.unprepare(claim.reference()).await.unwrap();
    }

    #[tokio::test]
    async fn a_pod_has_its_gpu_and_reads_its_metadata() {
        let node = Node::start().await.unwrap();
        let builder = PluginBuilder::new("gpu.example.com").on(node.environment("gpu.example.com").unwrap());
        let _driver = builder.device_metadata(true).start_with(Gpus::new).await.unwrap();
        node.wait_published("gpu.example.com").await.unwrap();
        node.create(drakkar_node::device_class("gpu.example.com")).await.unwrap();
        node.create(ClaimSpec::default().request("gpu", "gpu.example.com", 1).claim("mine")).await.unwrap();
        let main = Container::new("main", ["sh", "-c", "echo $GPU; exec sleep infinity"]).claim("gpus");
        let pod = node.create_pod(Pod::new("pod").claim("gpus", "mine").container(main)).await.unwrap();
        pod.running().await.unwrap();
        assert_eventually!(pod.logs("main").unwrap() == "gpu-0\n");
        assert!(pod.exec("main", ["test", "-c", "/dev/gpu-0"]).await.unwrap().status.success());
        let file = "/var/run/dra-device-attributes/mine/gpu/gpu.example.com-metadata.json";
        let read = pod.exec("main", ["cat", file]).await.unwrap();
        assert!(String::from_utf8_lossy(&read.stdout).contains("\"string\": \"m1\""));
        pod.delete().await.unwrap();
        assert!(node.leftovers("gpu.example.com").await.unwrap().is_empty());
    }
}
