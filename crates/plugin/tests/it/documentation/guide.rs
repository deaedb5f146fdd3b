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
    use drakkar_plugin::{http, kube};

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
    async fn the_driver_starts_and_leaves_no_socket_behind() {
        let node = tempfile::tempdir().unwrap();
        std::fs::create_dir(node.path().join("plugins_registry")).unwrap();
        // An API server that has nothing.
        let api_server = tower::service_fn(async |_: http::Request<_>| {
            let body = kube::client::Body::empty();
            let answer = http::Response::builder().status(404).body(body).unwrap();
            Ok::<_, std::convert::Infallible>(answer)
        });
        let client = kube::Client::new(api_server, "default");

        let builder = PluginBuilder::new("gpu.example.com").client(client).device_metadata(true);
        let builder = builder.kubelet_root(node.path()).cdi_directory(node.path().join("cdi"));
        let helper = builder.start(Gpus).await.unwrap();

        let registration = helper.registration_socket().unwrap().to_owned();
        assert_eq!(registration, node.path().join("plugins_registry/gpu.example.com@reg.sock"));
        assert!(registration.exists());
        helper.stop().await.unwrap();
        assert!(!registration.exists());
    }
}
