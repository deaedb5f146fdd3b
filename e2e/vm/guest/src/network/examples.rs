//! The examples of a dummy and of a virtual function for DPDK, from their YAML files: the driver on an embedded node in the machine.
//!
//! Containers change their root, which the kernel does not allow from the initial file system of the machine. So the test runs once
//! more in a root of its own: a file system in memory with the same programs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drakkar_net::{DRIVER_NAME, Options, Running};
use drakkar_netlink::{Connection, LinkKind, Namespace, NewLinkKind};
use drakkar_node::{Node, PodHandle, nri};
use drakkar_plugin::PluginBuilder;
use drakkar_plugin::attributes::NumaForm;
use drakkar_sysfs::{Inventory, Sysfs};
use serde_json::Value;

use super::{Network, make_functions};
use crate::ensure_eq;
use crate::guest::{Guest, modprobe, names, run, wait};

/// The processor is emulated, on a host with other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// Makes the root, and runs the program in it again. What is mounted below the old root is mounted there, too.
const IN_ROOT: &str = "
set -e
mkdir -p /mnt/root
mount -t tmpfs tmpfs /mnt/root
for directory in bin lib lib64 usr etc sbin; do
    [ ! -e /$directory ] || cp -a /$directory /mnt/root/
done
cd /mnt/root
mkdir -p dev proc sys run tmp var root
ln -s ../run var/run
mount --bind /dev dev
mount --bind /sys sys
mount -t proc proc proc
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs run
cp \"$0\" run/guest
# Over the initial file system, so that whoever enters a container's mounts finds its root.
mount --move . /
exec chroot . /run/guest examples
";

const DUMMY: [&str; 4] = [
    include_str!("../../../../../examples/net-dummy/config.yaml"),
    include_str!("../../../../../examples/net-dummy/class.yaml"),
    include_str!("../../../../../examples/net-dummy/claim.yaml"),
    include_str!("../../../../../examples/net-dummy/pod.yaml"),
];
const DPDK: [&str; 4] = [
    include_str!("../../../../../examples/net-dpdk/config.yaml"),
    include_str!("../../../../../examples/net-dpdk/class.yaml"),
    include_str!("../../../../../examples/net-dpdk/claim.yaml"),
    include_str!("../../../../../examples/net-dpdk/pod.yaml"),
];

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    for module in ["bridge", "vfio-pci", "vfio_iommu_type1"] {
        modprobe(module)?;
    }
    // None but that of the example.
    run(Command::new("modprobe").args(["dummy", "numdummies=0"]))?;
    make_functions(guest, 2)?;
    Network::host()?.create("service0", NewLinkKind::Dummy)?;
    let program = std::env::current_exe().context("the path of this program")?;
    let printed = run(Command::new("sh").args(["-c", IN_ROOT]).arg(program))?;
    println!("{printed}");
    Ok(())
}

/// The test in its own root.
pub(crate) fn inside() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
    runtime.block_on(async {
        dummy().await.context("net-dummy")?;
        dpdk().await.context("net-dpdk")
    })
}

/// A node with the driver on it, with the configuration of an example and the objects of its users.
async fn start([config, class, claim, _]: [&str; 4]) -> Result<(Node, Running)> {
    let config_of_nri = nri::Config::default().request_timeout(PATIENCE).registration_timeout(PATIENCE);
    let node = Node::builder().nri(config_of_nri).start().await?;
    let file = node.directory().join("config.yaml");
    std::fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
    let options = Options {
        config: file,
        host_namespace: "/proc/self/ns/net".into(),
        roots: Default::default(),
        numa: NumaForm::Number,
        node_addresses: Vec::new(),
        state_directory: node.directory().join("state"),
        cdi_directory: node.cdi_directory(),
        nri_socket: Some(node.nri()?.socket().to_owned()),
        nri_index: 10,
    };
    let builder = PluginBuilder::new(DRIVER_NAME).on(node.environment(DRIVER_NAME)?);
    let driver = drakkar_net::start(builder, options).await?;
    node.wait_registered(DRIVER_NAME).await?;
    node.wait_published(DRIVER_NAME).await?;
    node.nri()?.wait_plugin(&format!("10-{DRIVER_NAME}")).await?;
    node.apply(class).await?;
    node.apply(claim).await?;
    Ok((node, driver))
}

/// The first device in the file of a request, as a container sees it.
async fn device(pod: &PodHandle<'_>, request: &str) -> Result<Value> {
    let path = format!(
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/{request}/{DRIVER_NAME}-metadata.json"
    );
    let output = pod.exec("main", ["cat", &path]).await?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    let file: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("parse {path}"))?;
    Ok(file["requests"][0]["devices"][0].clone())
}

async fn dummy() -> Result<()> {
    let mut host = Network::host()?;
    let before = host.state()?;
    let (node, driver) = start(DUMMY).await?;
    let pod: Value = serde_saphyr::from_str(DUMMY[3])?;
    let pod = node.create_pod(pod).await?.with_timeout(PATIENCE);
    pod.running().await?;

    let process = pod.process("main").context("a process")?;
    let mut network = Connection::open(&Namespace::open(format!("/proc/{process}/ns/net"))?)?;
    let link = network.link_by_name("svc0")?.context("no svc0 in the pod")?;
    ensure_eq!((&link.kind, link.mtu, link.is_up), (&LinkKind::Dummy, 9000, true));
    let mac = link.address.as_ref().map(ToString::to_string).unwrap_or_default();
    let data = &device(&pod, "service/link").await?["networkData"];
    println!("{data}");
    ensure_eq!(data["interfaceName"], "svc0");
    ensure_eq!(data["hardwareAddress"], mac.as_str());
    ensure_eq!(data["ips"], serde_json::json!(["192.0.2.10/32", "2001:db8::10/128"]));
    let mut addresses: Vec<String> =
        network.addresses_of(link.index)?.iter().map(|address| address.address.to_string()).collect();
    addresses.retain(|address| !address.starts_with("fe80"));
    ensure_eq!(addresses, ["192.0.2.10/32", "2001:db8::10/128"]);
    ensure!(!host.names()?.contains(&"service0".to_owned()), "it is in the pod");

    pod.delete().await?;
    wait("service0 to be back", || Ok(host.names()?.contains(&"service0".to_owned())))?;
    ensure_eq!(host.state()?, before);
    driver.stop().await?;
    node.stop().await?;
    Ok(())
}

async fn dpdk() -> Result<()> {
    let mut host = Network::host()?;
    let before = host.names()?;
    let (node, driver) = start(DPDK).await?;
    let mut pod: Value = serde_saphyr::from_str(DPDK[3])?;
    // There is no DPDK here: what it would be started with is looked at.
    pod["spec"]["containers"][0]["command"] = serde_json::json!(["sleep", "infinity"]);
    let pod = node.create_pod(pod).await?.with_timeout(PATIENCE);
    pod.running().await?;

    let attributes = &device(&pod, "dpdk/port").await?["attributes"];
    println!("{attributes}");
    let text = |name: &str| attributes[name]["string"].as_str().unwrap_or_default().to_owned();
    let address = text("resource.kubernetes.io/pciBusID").parse().context("a PCI address")?;
    let function = |sysfs: &Sysfs| -> Result<drakkar_sysfs::PciDevice> {
        Inventory::scan(sysfs)?.devices.remove(&address).context("the function")
    };
    let sysfs = Sysfs::default();
    let bound = function(&sysfs)?;
    ensure_eq!((bound.driver.as_deref(), text("driver").as_str()), (Some("vfio-pci"), "vfio-pci"));
    let group = bound.iommu_group.context("a group")?;
    ensure_eq!(attributes["iommuGroup"]["int"], group);
    ensure_eq!(text("vfioNode"), format!("/dev/vfio/{group}"));
    let nodes = pod.exec("main", ["ls", "/dev/vfio"]).await?;
    let nodes = String::from_utf8_lossy(&nodes.stdout).into_owned();
    ensure!(nodes.lines().any(|node| node == group.to_string()) && nodes.contains("vfio"), "{nodes}");
    ensure_eq!(host.names()?.len(), before.len() - 1, "its interface is gone");

    pod.delete().await?;
    wait("the interface to be back", || Ok(host.names()? == before))?;
    ensure_eq!(function(&sysfs)?.driver.as_deref(), Some("igbvf"));
    ensure!(names(node.cdi_directory()).iter().all(|name| !name.starts_with(DRIVER_NAME)));
    driver.stop().await?;
    node.stop().await?;
    Ok(())
}
