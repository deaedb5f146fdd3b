//! The Node object and its lease: a kubelet creates the node if it does not exist, describes the machine in its status, and
//! renews the lease for as long as it runs.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::pods::time;
use super::release::Release;
use super::timing::Timing;

/// The namespace of the leases of nodes.
const LEASES: &str = "kube-node-lease";
/// How long a lease is good for, and the interval between renewals, as of a real kubelet.
const LEASE_DURATION: Duration = Duration::from_secs(40);
const LEASE_INTERVAL: Duration = Duration::from_secs(10);
/// The pods that a real kubelet accepts by default.
const MAX_PODS: &str = "110";

/// Registers the node, and retries until the API server has it. Then renews its lease.
pub(super) async fn register(client: Client, name: String, release: Release, timing: Timing) {
    let api: Api<Node> = Api::all(client.clone());
    let mut retry = timing.api_backoff.retry();
    while let Err(error) = attempt(&api, &name, release).await {
        tracing::warn!(node = name, %error, "kubelet: registering the node failed, retrying");
        sleep(retry.next_delay()).await;
    }
    let leases: Api<Lease> = Api::namespaced(client, LEASES);
    loop {
        match renew(&leases, &name).await {
            Ok(()) => retry.reset(),
            Err(error) => {
                tracing::debug!(node = name, %error, "kubelet: renewing the lease failed, retrying");
                sleep(retry.next_delay()).await;
                continue;
            }
        }
        sleep(LEASE_INTERVAL).await;
    }
}

async fn attempt(api: &Api<Node>, name: &str, release: Release) -> Result<(), kube::Error> {
    if api.get_opt(name).await?.is_none() {
        let labels =
            json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture()});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
        match api.create(&PostParams::default(), &node).await {
            // Another client was faster.
            Err(kube::Error::Api(answer)) if answer.is_already_exists() => {}
            created => drop(created?),
        }
    }
    let now = time(SystemTime::now());
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the kubelet is ready",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    let patch = json!({"status": {
        "conditions": [ready],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        "capacity": capacity(),
        "nodeInfo": node_info(release),
    }});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

async fn renew(api: &Api<Lease>, name: &str) -> Result<(), kube::Error> {
    let renewed = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let spec = json!({
        "holderIdentity": name, "leaseDurationSeconds": LEASE_DURATION.as_secs(), "renewTime": renewed,
    });
    let patch = json!({"spec": spec});
    match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(answer)) if answer.is_not_found() => {
            let lease = json!({"metadata": {"name": name, "namespace": LEASES}, "spec": spec});
            let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
            api.create(&PostParams::default(), &lease).await.map(drop)
        }
        renewed => renewed.map(drop),
    }
}

/// Describes the machine as far as it is known.
fn node_info(release: Release) -> Value {
    let system = rustix::system::uname();
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let image = read("/etc/os-release");
    let image = image.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
    json!({
        "machineID": read("/etc/machine-id"),
        "systemUUID": "",
        "bootID": read("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": system.release().to_string_lossy(),
        "osImage": image.trim_matches('"'),
        "containerRuntimeVersion": format!("drakkar://{}", env!("CARGO_PKG_VERSION")),
        "kubeletVersion": release.version(),
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture(),
    })
}

fn capacity() -> Value {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let memory = format!("{}Ki", kibibytes.unwrap_or("0"));
    json!({"cpu": processors.to_string(), "memory": memory, "pods": MAX_PODS})
}

/// Returns Go's name of the architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
