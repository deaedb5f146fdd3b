use std::process::ExitCode;

use clap::Parser;
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, Flags, PluginBuilder};

struct Gpus;

impl DraPlugin for Gpus {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let devices = claim.results().map(|result| Device {
            cdi_device_ids: vec![format!("example.com/gpu={}", result.device)],
            metadata: Some(DeviceMetadata::default().attribute("model", "m1")),
            ..Device::from(result)
        });
        Ok(devices.collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    plugin: Flags,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    PluginBuilder::new("gpu.example.com").flags(&arguments.plugin).run(Gpus).await
}

#[cfg(test)]
mod tests {
    use drakkar_node::{ClaimSpec, Container, Node, Pod};

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
        assert_eq!(devices[0].cdi_device_ids, ["example.com/gpu=gpu-0"]);
        assert_eq!(Gpus.prepare(&claim).await.unwrap(), devices, "a second prepare gives the same answer");
        Gpus.unprepare(claim.reference()).await.unwrap();
    }

    #[tokio::test]
    async fn a_pod_is_told_what_it_got() {
        let node = Node::start().await.unwrap();
        let _driver = PluginBuilder::new("gpu.example.com")
            .on(node.environment("gpu.example.com").unwrap())
            .device_metadata(true)
            .start(Gpus)
            .await
            .unwrap();
        node.publish("gpu.example.com", &["gpu-0"]).await.unwrap();
        node.add_cdi_device("example.com/gpu=gpu-0").unwrap();
        node.create(ClaimSpec::default().request("gpu", "gpu.example.com", 1).claim("mine")).await.unwrap();
        let main = Container::new("main", ["sleep", "infinity"]).claim("gpus");
        let pod = node.create_pod(Pod::new("pod").claim("gpus", "mine").container(main)).await.unwrap();
        pod.running().await.unwrap();
        let file = "/var/run/dra-device-attributes/mine/gpu/gpu.example.com-metadata.json";
        let read = pod.exec("main", ["cat", file]).await.unwrap();
        assert!(String::from_utf8_lossy(&read.stdout).contains("\"string\": \"m1\""));
        pod.delete().await.unwrap();
        assert!(node.leftovers("gpu.example.com").await.unwrap().is_empty());
    }
}
