//! Tests of container edits in containers: what a driver returns with a device is there.

use drakkar_node::{ClaimSpec, Container, Isolation, Node, Pod, PodHandle, assert_eventually, device_class};
use drakkar_plugin::{
    BoxError, Claim, ClaimRef, ContainerEdits, Device, DeviceMetadata, DeviceNode, DraPlugin, DriverResources, Handles,
    Mount, Pool, PublishedDevice,
};

use crate::support::{DRIVER, kep_path, plugin, read};

/// A driver that publishes two devices, each with a node, a file and a variable.
struct Cards {
    directory: std::path::PathBuf,
}

impl Cards {
    fn new(handles: &Handles, directory: std::path::PathBuf) -> Result<Self, BoxError> {
        let node = handles.node_name().ok_or("no node")?;
        let cards = ["card-0", "card-1"].map(PublishedDevice::new);
        for card in ["card-0", "card-1"] {
            std::fs::write(directory.join(card), format!("firmware of {card}\n"))?;
        }
        handles.publish_resources(DriverResources::default().pool(node, Pool::default().devices(cards)))?;
        Ok(Self { directory })
    }
}

impl DraPlugin for Cards {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let devices = claim.results().map(|result| {
            let name = result.device.as_str();
            let firmware = self.directory.join(name).display().to_string();
            Device {
                container_edits: ContainerEdits::default()
                    .device_node(DeviceNode::mapped("/dev/zero", format!("/dev/{name}")))
                    .mount(Mount::read_only(firmware, format!("/run/{name}/firmware")))
                    .env_var(name.to_uppercase().replace('-', "_"), "present"),
                metadata: Some(DeviceMetadata::default().attribute("model", name)),
                ..Device::from(result)
            }
        });
        Ok(devices.collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Returns what a shell in a container prints.
async fn shell(pod: &PodHandle<'_>, container: &str, script: &str) -> String {
    let output = pod.exec(container, ["sh", "-c", script]).await.unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
}

async fn check(node: Node, metadata: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let builder = plugin(&node).device_metadata(metadata);
    let helper = builder.start_with(move |handles| Cards::new(&handles, path)).await.unwrap();
    node.wait_published(DRIVER).await.unwrap();
    node.create(device_class(DRIVER)).await.unwrap();
    let spec = ClaimSpec::default().request("one", DRIVER, 1).request("two", DRIVER, 1);
    node.create(spec.claim("cards")).await.unwrap();
    let pod = Pod::new("pod").claim("cards", "cards");
    // The environment of the container's process, not of a shell that is started in it.
    let both = Container::new("both", ["sh", "-c", "env; echo done; exec sleep infinity"]).claim("cards");
    let first = Container::new("first", ["sh", "-c", "env; echo done; exec sleep infinity"]).request("cards", "one");
    let none = Container::new("none", ["sh", "-c", "env; echo done; exec sleep infinity"]);
    let pod = node.create_pod(pod.container(both).container(first).container(none)).await.unwrap();
    pod.running().await.unwrap();

    for container in ["both", "first", "none"] {
        assert_eventually!(pod.logs(container).unwrap().contains("done"));
    }
    let variables = |container: &str| {
        let logs = pod.logs(container).unwrap();
        let mut cards: Vec<String> = logs.lines().filter(|line| line.starts_with("CARD_")).map(str::to_owned).collect();
        cards.sort();
        cards
    };
    assert_eq!(variables("both"), ["CARD_0=present", "CARD_1=present"]);
    assert_eq!(variables("first"), ["CARD_0=present"]);
    assert_eq!(variables("none"), [""; 0]);
    assert_eq!(shell(&pod, "first", "cat /run/card-0/firmware").await, "firmware of card-0");
    assert_eq!(shell(&pod, "both", "cat /run/card-1/firmware").await, "firmware of card-1");
    assert_eq!(shell(&pod, "first", "test -e /run/card-1/firmware || echo no").await, "no");
    assert_eq!(shell(&pod, "none", "test -e /run/card-0/firmware || echo no").await, "no");
    let zeros = "head -c 2 /dev/card-0 | od -An -tx1";
    assert_eq!(shell(&pod, "first", zeros).await, "00 00");
    assert_eq!(shell(&pod, "both", zeros).await, "00 00");
    assert_eq!(shell(&pod, "first", "test -e /dev/card-1 || echo no").await, "no");
    assert_eq!(shell(&pod, "none", "test -e /dev/card-0 || echo no").await, "no");
    assert!(shell(&pod, "first", "echo x > /run/card-0/firmware").await.contains("Read-only"), "a read-only mount");
    assert_eq!(read(&pod, "first", &kep_path("cards", "one")).await.is_some(), metadata);
    assert_eq!(read(&pod, "first", &kep_path("cards", "two")).await, None);

    pod.delete().await.unwrap();
    assert_eq!(node.leftovers(DRIVER).await.unwrap(), Vec::<String>::new());
    helper.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_gets_node_mount_and_variable_of_its_devices_with_metadata() {
    check(Node::start().await.unwrap(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_gets_node_mount_and_variable_of_its_devices_without_metadata() {
    check(Node::start().await.unwrap(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oci_runtime_does_the_same() {
    let Some(runtime) = crate::usage::oci_runtime() else { return };
    check(Node::builder().isolation(Isolation::Oci(runtime)).start().await.unwrap(), true).await;
}
