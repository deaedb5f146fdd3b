//! A node with the driver on it, and a simulated kernel under it.

use std::path::PathBuf;
use std::time::Duration;

use drakkar_node::{ClaimSpec, Container, Node, Pod, PodHandle};
use drakkar_pci::{DRIVER_NAME, Options, Running, Source};
use drakkar_plugin::PluginBuilder;
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::k8s_openapi::api::resource::v1::Device;
use drakkar_sysfs::PciAddress;
use drakkar_sysfs::simulation::{Description, Simulation};
use serde_json::Value;

/// Two GPUs, of which one has types of mediated devices, and a network card with virtual functions.
pub const HOST: &str = "
drivers:
- {name: nvidia, ids: ['10de:2236']}
- {name: igb, ids: ['8086:10c9'], sriov: true}
- {name: igbvf, ids: ['8086:10ca']}
devices:
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 5, numaNode: 0, pcieRoot: 'pci0000:64'}
- address: '0000:b3:00.0'
  vendor: 10de
  device: '2236'
  class: '030200'
  iommuGroup: 6
  numaNode: 1
  pcieRoot: 'pci0000:b2'
  mdev: {capacity: 4, types: [{id: nvidia-63, cost: 1}, {id: nvidia-64, cost: 2}]}
- address: '0000:01:00.0'
  vendor: '8086'
  device: 10c9
  class: '020000'
  iommuGroup: 7
  sriov: {totalVfs: 4, vfDevice: 10ca}
";

/// Rules for all of them.
pub const RULES: &str = "
- {name: gpus, match: {ids: ['10de:*']}, mdevTypes: ['*']}
- {name: nics, match: {ids: ['8086:10c9']}, virtualFunctions: {count: 2}}
";

/// A node with the driver on it.
pub struct Bench {
    pub node: Node,
    pub simulation: Simulation,
    pub driver: Option<Running>,
    write_timeout: Duration,
    directory: tempfile::TempDir,
}

impl Bench {
    pub async fn start() -> Self {
        Self::start_with(HOST, RULES).await
    }

    /// Starts a driver that waits for the kernel for this time only.
    pub async fn start_slow(write_timeout: Duration) -> Self {
        Self::start_full(HOST, RULES, write_timeout).await
    }

    pub async fn start_with(host: &str, rules: &str) -> Self {
        Self::start_full(host, rules, drakkar_sysfs::DEFAULT_WRITE_TIMEOUT).await
    }

    async fn start_full(host: &str, rules: &str, write_timeout: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let description: Description = serde_saphyr::from_str(host).unwrap();
        let simulation = Simulation::create(directory.path().join("host"), &description).unwrap();
        let node = Node::start().await.unwrap();
        node.create(drakkar_node::device_class(DRIVER_NAME)).await.unwrap();
        let mut bench = Self { node, simulation, driver: None, write_timeout, directory };
        bench.configure(rules);
        bench.start_driver().await;
        bench
    }

    pub async fn start_driver(&mut self) {
        let builder = PluginBuilder::new(DRIVER_NAME).on(self.node.environment(DRIVER_NAME).unwrap());
        let builder = builder.device_metadata(true).http_endpoint("127.0.0.1:0".parse().unwrap());
        self.driver = Some(drakkar_pci::start(builder, self.options()).await.unwrap());
        self.node.wait_registered(DRIVER_NAME).await.unwrap();
    }

    pub fn options(&self) -> Options {
        Options {
            config: self.config(),
            source: Source::Simulation(self.simulation.clone()),
            numa: NumaForm::Number,
            write_timeout: self.write_timeout,
            state_directory: self.directory.path().join("state"),
            cdi_directory: self.node.cdi_directory().clone(),
        }
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("config.yaml")
    }

    /// Replaces the rules of the configuration.
    pub fn configure(&self, rules: &str) {
        self.write_config(&format!("apiVersion: pci.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{rules}\n"));
    }

    pub fn write_config(&self, text: &str) {
        let new = self.directory.path().join("new.yaml");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.config()).unwrap();
    }

    /// Returns the published devices.
    pub async fn published(&self) -> Vec<Device> {
        let slices = self.node.slices(DRIVER_NAME).await.unwrap();
        slices.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default()).collect()
    }

    pub async fn device(&self, name: &str) -> Option<Device> {
        self.published().await.into_iter().find(|device| device.name == name)
    }

    pub async fn has_taint(&self, name: &str, key: &str, effect: &str) -> bool {
        let taints = self.device(name).await.and_then(|device| device.taints).unwrap_or_default();
        taints.iter().any(|taint| taint.key == key && taint.effect == effect)
    }

    /// Returns the kernel driver of a function.
    pub fn kernel_driver(&self, address: &str) -> Option<String> {
        let address: PciAddress = address.parse().unwrap();
        let link = self.simulation.roots().pci_device(&address).join("driver");
        Some(std::fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
    }

    /// Creates a claim `NAME` with one request `device` for what an expression selects, and a pod of the same name with it.
    pub async fn pod(&self, name: &str, cel: &str) -> PodHandle<'_> {
        let mut claim = ClaimSpec::default().request("device", DRIVER_NAME, 1).claim(name);
        claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] =
            serde_json::json!([{"cel": {"expression": cel}}]);
        self.node.create(claim).await.unwrap();
        self.pod_with_claim(name, name).await
    }

    pub async fn pod_with_claim(&self, name: &str, claim: &str) -> PodHandle<'_> {
        let main = Container::new("main", ["sleep", "infinity"]).claim("devices");
        let pod = Pod::new(name).claim("devices", claim).container(main);
        self.node.create_pod(pod).await.unwrap()
    }

    /// Returns a metric of the driver.
    pub async fn metric(&self, name: &str) -> Option<String> {
        self.metrics().await.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    }

    /// Returns all metrics of the driver.
    pub async fn metrics(&self) -> String {
        let address = self.driver.as_ref().unwrap().helper().http_address().unwrap();
        let response = tokio::task::spawn_blocking(move || {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
        .await
        .unwrap();
        response.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

/// An expression that selects a device by an attribute of the driver.
pub fn by(attribute: &str, value: &str) -> String {
    format!(
        "has(device.attributes['pci.drakkar.dev'].{attribute}) && device.attributes['pci.drakkar.dev'].{attribute} == '{value}'"
    )
}

/// Returns the attributes of the only device in the metadata of a claim's request, as a container sees them.
pub async fn attributes(pod: &PodHandle<'_>, claim: &str, request: &str) -> Value {
    let path = format!(
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim}/{request}/{DRIVER_NAME}-metadata.json"
    );
    let output = pod.exec("main", ["cat", &path]).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file: Value = serde_json::from_slice(&output.stdout).unwrap();
    file["requests"][0]["devices"][0]["attributes"].clone()
}

pub async fn delete_claim(bench: &Bench, name: &str) {
    use drakkar_plugin::k8s_openapi::api::resource::v1::ResourceClaim;
    use drakkar_plugin::kube::api::{Api, DeleteParams};
    let claims: Api<ResourceClaim> = Api::namespaced(bench.node.client(), "default");
    claims.delete(name, &DeleteParams::default()).await.unwrap();
}

/// Returns whether the scheduler has found no place for a pod.
pub async fn is_unschedulable(pod: &PodHandle<'_>) -> bool {
    let conditions = pod.object().await.unwrap().and_then(|pod| pod.status?.conditions).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// The events of a pod.
pub trait PodEvents {
    /// Returns whether the pod has an event with all of these texts.
    fn has_event(&self, texts: &[&str]) -> impl Future<Output = bool>;
}

impl PodEvents for PodHandle<'_> {
    async fn has_event(&self, texts: &[&str]) -> bool {
        let events = self.events().await.unwrap();
        events.iter().any(|event| texts.iter().all(|text| event.contains(text)))
    }
}
