//! KubeVirt's own clients of hook sidecars and plugins, against our hook on its sockets.
//!
//! The clients look for sockets below `/var/run`, so they run in a mount namespace of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use drakkar_kubevirt::hook::{Hook, HookOptions, HookServer, ServeError};
use drakkar_kubevirt::resolve::Resolver;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::full;

/// A domain as virt-launcher has it: KubeVirt's own PCI device, which has no mode, and two NUMA nodes.
const DOMAIN: &str = r#"<domain type="kvm"><name>lab_vm</name><memory unit="KiB">1048576</memory>
<os><type arch="x86_64" machine="q35">hvm</type></os>
<cpu><numa><cell id="0" cpus="0" memory="524288" unit="KiB"></cell><cell id="1" cpus="1" memory="524288" unit="KiB"></cell></numa></cpu>
<numatune><memnode cellid="0" mode="strict" nodeset="0"></memnode><memnode cellid="1" mode="strict" nodeset="1"></memnode></numatune>
<devices><controller type="pci" index="0" model="pcie-root"></controller>OWN</devices></domain>"#;
const OWN: &str = r#"<hostdev type="pci" managed="no"><source><address type="pci" domain="0x0000" bus="0x65" slot="0x00" function="0x0"></address></source><alias name="ua-dra-gpu-own"></alias></hostdev>"#;

fn vmi() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "vm",
            "namespace": "lab",
            "annotations": {"drakkar.dev/gpus": "g=train/gpus", "drakkar.dev/numa-placement": "required"},
        },
        "spec": {
            "resourceClaims": [{"name": "train", "resourceClaimName": "gold"}],
            "domain": {"devices": {"gpus": [{"name": "own", "claimName": "train", "requestName": "own"}]}},
        },
    })
}

/// Our hook with its sockets and files, on a runtime of its own.
struct Running {
    directory: TempDir,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
    runtime: Runtime,
}

impl Running {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let request = |name: &str, devices: &[(&str, u32)]| {
            let base = "root/var/run/kubernetes.io/dra-device-attributes/resourceclaims/gold";
            let files = directory.path().join(base).join(name);
            fs::create_dir_all(&files).unwrap();
            let devices: Vec<Value> = devices
                .iter()
                .map(|(address, node)| {
                    json!({"driver": "d.example", "pool": "p", "name": address.replace([':', '.'], "-"), "attributes": {
                        "resource.kubernetes.io/pciBusID": {"string": address},
                        "resource.kubernetes.io/numaNode": {"int": node},
                    }})
                })
                .collect();
            let document = json!({
                "apiVersion": "metadata.resource.k8s.io/v1alpha1",
                "kind": "DeviceMetadata",
                "metadata": {"name": "gold", "namespace": "lab", "uid": "u", "generation": 1},
                "requests": [{"name": name, "devices": devices}],
            });
            fs::write(files.join("d.example-metadata.json"), document.to_string()).unwrap();
        };
        request("own", &[("0000:65:00.0", 0)]);
        request("gpus", &[("0000:66:00.0", 1), ("0000:67:00.0", 0)]);
        let sockets: Vec<PathBuf> = ["hooks/hook-sidecar-0/drakkar-hook-sidecar-0.sock", "plugin/drakkar/hook.sock"]
            .map(|socket| directory.path().join(socket))
            .to_vec();
        for socket in &sockets {
            fs::create_dir_all(socket.parent().unwrap()).unwrap();
        }
        let resolver = Resolver::with_root(directory.path().join("root")).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let stop = CancellationToken::new();
        let task = {
            let _context = runtime.enter();
            let hook = Arc::new(Hook::new(resolver, HookOptions::default()));
            runtime.spawn(HookServer::listen(&sockets, hook).unwrap().serve(stop.clone()))
        };
        Self { directory, stop, task, runtime }
    }

    /// Asks KubeVirt's clients, which find our sockets. `None` if this host has no mount namespaces for us.
    fn ask(&self, questions: &[Value]) -> Option<Vec<Value>> {
        let program = full()?;
        let command = in_namespace(self.directory.path(), program.path());
        Some(program.ask_in(command, questions).unwrap())
    }

    fn ended(self) {
        let limit = std::time::Duration::from_secs(60);
        let ended = self.runtime.block_on(async { tokio::time::timeout(limit, self.task).await });
        ended.expect("the hook ends").unwrap().unwrap();
    }
}

fn in_namespace(directory: &Path, program: &Path) -> Command {
    let script = r#"set -e
mount -t tmpfs tmpfs /var/run
mkdir /var/run/kubevirt-hooks /var/run/kubevirt-plugin
mount --bind "$1/hooks" /var/run/kubevirt-hooks
mount --bind "$1/plugin" /var/run/kubevirt-plugin
exec "$2""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(directory).arg(program);
    command
}

/// Whether this process may create a mount namespace.
fn has_namespaces() -> bool {
    let allowed = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        eprintln!("skipped: no permission for `unshare --mount`");
    }
    allowed
}

/// The aliases of a domain's host devices and the buses that they are on in the guest.
fn placed(domain: &str) -> Vec<(String, Option<String>)> {
    let devices = drakkar_kubevirt::xml::edit::host_devices(domain).unwrap();
    devices
        .into_iter()
        .map(|found| (found.device.alias, found.device.guest_address.map(|address| address.bus)))
        .collect()
}

#[test]
fn kubevirts_sidecar_client_gets_the_devices_once_and_its_shutdown_ends_the_hook() {
    if !has_namespaces() {
        return;
    }
    let hook = Running::start();
    let question = json!({"id": "s", "kind": "sidecar", "vmi": vmi(), "domain": DOMAIN.replace("OWN", OWN)});
    let Some(answers) = hook.ask(&[question]) else { return };
    let [first, second] = serde_json::from_value::<[String; 2]>(answers[0]["answer"].clone())
        .unwrap_or_else(|error| panic!("{error}: {}", answers[0]));
    let expected = [("dra-gpu-own", "2"), ("dra-gpu-g-0", "5"), ("dra-gpu-g-1", "3")];
    let expected = expected.map(|(alias, bus)| (alias.to_owned(), Some(format!("0x0{bus}"))));
    assert_eq!(placed(&first), expected, "{first}");
    assert_eq!(placed(&second), expected, "{second}");
    assert_eq!(second.matches("pcie-root-port").count(), 3, "{second}");
    assert!(!second.contains("<hostdev type=\"pci\" managed=\"no\">"), "{second}");
    hook.ended();
}

#[test]
fn kubevirts_plugin_client_gets_the_devices_once_and_fails_by_itself_on_its_own_pci_device() {
    if !has_namespaces() {
        return;
    }
    let hook = Running::start();
    let question = |id: &str, domain: String| {
        let socket = "/var/run/kubevirt-plugin/drakkar/hook.sock";
        json!({"id": id, "kind": "plugin", "vmi": vmi(), "domain": domain, "socket": socket})
    };
    let questions = [question("annotated", DOMAIN.replace("OWN", "")), question("own", DOMAIN.replace("OWN", OWN))];
    let Some(answers) = hook.ask(&questions) else { return };
    for domain in answers[0]["answer"].as_array().unwrap_or_else(|| panic!("{}", answers[0])) {
        let buses = placed(domain.as_str().unwrap());
        assert_eq!(buses.iter().map(|(alias, _)| alias.as_str()).collect::<Vec<_>>(), ["dra-gpu-g-0", "dra-gpu-g-1"]);
        assert!(buses.iter().all(|(_, bus)| bus.is_some()), "{domain}");
    }
    // KubeVirt 1.9 converts the domain before it calls a plugin, and that fails (kubevirt#18861).
    let error = answers[1]["error"].as_str().unwrap();
    assert!(error.contains("Missing 'mode' attribute on domain hostdev"), "{error}");
    hook.stop.cancel();
    hook.ended();
}
