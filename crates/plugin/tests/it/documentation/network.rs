use std::process::ExitCode;

use drakkar_plugin::{
    BoxError, Claim, ClaimRef, DeferredMetadata, Device, DeviceMetadata, DraPlugin, DriverResources, Flags, Handles,
    NetworkDeviceData, PluginBuilder, Pool, PublishedDevice, logging,
};

struct Nics {
    handles: Handles,
}

impl Nics {
    fn new(handles: Handles) -> Result<Self, BoxError> {
        let node = handles.node_name().ok_or("--node-name is missing")?;
        let pool = Pool::default().device(PublishedDevice::new("eth1").attribute("speed", 100));
        handles.publish_resources(DriverResources::default().pool(node, pool))?;
        Ok(Self { handles })
    }
}

impl DraPlugin for Nics {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        for result in claim.results() {
            let handles = self.handles.clone();
            let claim = claim.reference().clone();
            let request = result.request.clone();
            let device = Device::from(result);
            tokio::spawn(async move {
                if let Err(error) = attach(&handles, &claim, &request, device).await {
                    tracing::warn!(%claim, error, "attaching the interface failed");
                }
            });
        }
        Ok(Vec::new())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Moves the interface into the pod. A real driver does this in an NRI hook (`RunPodSandbox`).
async fn attach(handles: &Handles, claim: &ClaimRef, request: &str, device: Device) -> Result<(), BoxError> {
    let network_data = NetworkDeviceData {
        interface_name: "net1".into(),
        ips: vec!["10.9.0.5/24".into()],
        hardware_address: "02:00:00:00:00:01".into(),
    };
    let metadata = DeviceMetadata { network_data: Some(network_data), ..DeviceMetadata::default() };
    let device = Device { metadata: Some(metadata), ..device };
    match handles.update_request_metadata(claim, request, vec![device]).and_report().await {
        Ok(_generation) => Ok(()),
        // Unprepared in the meantime, or metadata is off.
        Err(error) if error.is_not_prepared() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse_with_version(env!("CARGO_PKG_VERSION"));
    logging::init(&flags);
    let builder = PluginBuilder::new("net.example.com").flags(&flags);
    builder.deferred_metadata(DeferredMetadata::Gate).run_with(Nics::new).await
}

#[cfg(test)]
mod tests {
    use drakkar_node::{ClaimSpec, Container, Node, Pod};

    use super::*;

    #[tokio::test]
    async fn pod_and_api_server_learn_the_address() {
        let node = Node::start().await.unwrap();
        let builder = PluginBuilder::new("net.example.com").on(node.environment("net.example.com").unwrap());
        let builder = builder.device_metadata(true).deferred_metadata(DeferredMetadata::Gate);
        let _driver = builder.start_with(Nics::new).await.unwrap();
        node.wait_published("net.example.com").await.unwrap();
        node.create(drakkar_node::device_class("net.example.com")).await.unwrap();
        node.create(ClaimSpec::default().request("nic", "net.example.com", 1).claim("mine")).await.unwrap();
        let main = Container::new("main", ["sleep", "infinity"]).claim("net");
        let pod = node.create_pod(Pod::new("pod").claim("net", "mine").container(main)).await.unwrap();
        pod.running().await.unwrap();
        let file = "/var/run/dra-device-attributes/mine/nic/net.example.com-metadata.json";
        let read = pod.exec("main", ["cat", file]).await.unwrap();
        assert!(String::from_utf8_lossy(&read.stdout).contains("10.9.0.5/24"));
        let status = node.wait_device_status("mine").await.unwrap();
        assert_eq!(status[0].network_data.as_ref().unwrap().ips.as_deref(), Some(&["10.9.0.5/24".to_owned()][..]));
        pod.delete().await.unwrap();
        assert!(node.leftovers("net.example.com").await.unwrap().is_empty());
    }
}
