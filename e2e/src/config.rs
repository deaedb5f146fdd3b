//! What each component is told: its command line and its configuration file.
//!
//! Paths are those that components have by default, as the node has its own `/etc`, `/run`, `/var/lib` and `/var/log`;
//! manifests that are made for ordinary clusters fit. Where a default lies elsewhere, it is moved there.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use crate::component::Component;
use crate::error::{Doing, Result};
use crate::kubelet::Kubelet;
use crate::place::Place;

/// The name of the one node.
pub(crate) const NODE: &str = "drakkar-e2e";

/// The image of the container that holds a pod's namespaces.
pub(crate) const PAUSE_IMAGE: &str = "localhost/pause:e2e";

/// Where containerd listens, in the node.
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// Requests in a second that a component may make of the API server.
const API_QPS: u32 = 1000;

/// Where the node has the kubelet's configuration and that of containerd.
const KUBELET_CONFIG: &str = "/etc/kubernetes/kubelet.json";
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// The gates of DRA that Kubernetes 1.37 lets one set, and those that they depend on.
const DRA_GATES: [&str; 19] = [
    "DRAConsumableCapacity",
    "DRADerivedAttributes",
    "DRADeviceBindingConditions",
    "DRADeviceCompatibilityGroups",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAFractionalCapacityRange",
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
    "DRAPartitionableDevices",
    "DRAPartitionableDevicesType",
    "DRAResourcePoolStatus",
    "DRASchedulerFilterTimeout",
    "DRAWorkloadResourceClaims",
    "GenericWorkload",
    "NodeDeclaredFeatures",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
];

/// How a cluster differs from an ordinary one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Turn on all feature gates of DRA, and all versions of all APIs, rather than what Kubernetes has on by default.
    pub all_dra_gates: bool,
    /// Which kubelet the node has. An older one does not know all gates, so it is given none but those that it needs.
    pub kubelet: Kubelet,
}

/// Writes the configuration files and the command line of every component.
pub(crate) fn write(place: &Place, options: Options) -> Result<()> {
    let files = [
        ("/etc/hosts", "127.0.0.1 localhost\n".to_owned()),
        ("/etc/resolv.conf", "# There is no DNS here.\n".to_owned()),
        ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n".to_owned()),
        ("/etc/group", "root:x:0:\n".to_owned()),
        ("/etc/machine-id", format!("{}\n", place.id().repeat(4))),
        ("/etc/cni/net.d/10-bridge.conflist", format!("{:#}\n", network())),
        (CONTAINERD_CONFIG, containerd(&place.bin(), lacks_sys_resource()?)),
        (KUBELET_CONFIG, format!("{:#}\n", kubelet(place, options))),
    ];
    for (path, content) in files {
        let path = place.of_node(Path::new(path));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).doing(|| format!("make {}", parent.display()))?;
        }
        fs::write(&path, content).doing(|| format!("write {}", path.display()))?;
    }
    // Directories that components watch or expect.
    for directory in ["/etc/cdi", "/run/cdi", "/run/lock", "/var/lib/kubelet"] {
        let path = place.of_node(Path::new(directory));
        fs::create_dir_all(&path).doing(|| format!("make {}", path.display()))?;
    }
    for component in Component::ALL {
        let path = place.command_line(component.name());
        fs::write(&path, command_line(component, place, options).join("\n"))
            .doing(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Program and arguments; none of them has a line break.
fn command_line(component: Component, place: &Place, options: Options) -> Vec<String> {
    let (_, address) = place.link();
    let pki = place.certificates();
    let pki = pki.display();
    let kubeconfig = place.kubeconfig(component.name());
    let kubeconfig = kubeconfig.display();
    let program = if component == Component::Kubelet { options.kubelet.program() } else { component.name() };
    let mut line = vec![place.bin().join(program).display().to_string()];
    let gates = || DRA_GATES.map(|gate| format!("{gate}=true")).join(",");
    let arguments: Vec<String> = match component {
        Component::Etcd => vec![
            "--data-dir=/var/lib/etcd".to_owned(),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            // What a crash of the machine would lose, nobody wants back.
            "--unsafe-no-fsync".to_owned(),
        ],
        Component::ApiServer => vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            // At the port and, among others, at the address of the service `kubernetes`, which therefore needs no
            // proxy.
            "--bind-address=0.0.0.0".to_owned(),
            "--secure-port=443".to_owned(),
            format!("--advertise-address={address}"),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--tls-cert-file={pki}/kube-apiserver.crt"),
            format!("--tls-private-key-file={pki}/kube-apiserver.key"),
            format!("--client-ca-file={pki}/ca.crt"),
            format!("--kubelet-certificate-authority={pki}/ca.crt"),
            format!("--kubelet-client-certificate={pki}/kube-apiserver-to-kubelet.crt"),
            format!("--kubelet-client-key={pki}/kube-apiserver-to-kubelet.key"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={pki}/service-accounts.key"),
            format!("--service-account-key-file={pki}/service-accounts.pub"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            // Drivers run privileged or with paths of the node.
            "--allow-privileged=true".to_owned(),
        ],
        Component::ControllerManager => vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={pki}/service-accounts.key"),
            format!("--root-ca-file={pki}/ca.crt"),
            "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins".to_owned(),
            // A hundred pods at once shall wait for the machine, and not for a limit that is made for large clusters.
            format!("--kube-api-qps={API_QPS}"),
            format!("--kube-api-burst={API_QPS}"),
        ],
        Component::Scheduler => vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            // As for the controller manager.
            format!("--kube-api-qps={API_QPS}"),
            format!("--kube-api-burst={API_QPS}"),
        ],
        Component::Containerd => vec![format!("--config={CONTAINERD_CONFIG}")],
        Component::Kubelet => vec![
            format!("--config={KUBELET_CONFIG}"),
            format!("--kubeconfig={kubeconfig}"),
            format!("--hostname-override={NODE}"),
            format!("--node-ip={address}"),
        ],
    };
    line.extend(arguments);
    // All versions of all APIs are more than those.
    if let (Component::ApiServer, Some(api), false) = (component, options.kubelet.api(), options.all_dra_gates) {
        line.push(format!("--runtime-config={api}=true"));
    }
    if options.all_dra_gates {
        match component {
            Component::ApiServer => {
                line.extend([format!("--feature-gates={}", gates()), "--runtime-config=api/all=true".to_owned()]);
            }
            Component::ControllerManager | Component::Scheduler => line.push(format!("--feature-gates={}", gates())),
            // The kubelet has them in its file.
            Component::Etcd | Component::Containerd | Component::Kubelet => {}
        }
    }
    line
}

fn kubelet(place: &Place, options: Options) -> Value {
    let pki = place.certificates();
    let (_, address) = place.link();
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzBindAddress": Ipv4Addr::LOCALHOST,
        "tlsCertFile": pki.join("kubelet.crt"),
        "tlsPrivateKeyFile": pki.join("kubelet.key"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        // Neither systemd nor cgroup v2 is needed.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", place.cgroup()),
        "failCgroupV1": false,
        "failSwapOn": false,
        // A lower one needs CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        // There is no proxy whose rules it would prepare.
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 250,
        // As for the controller manager.
        "kubeAPIQPS": API_QPS,
        "kubeAPIBurst": API_QPS,
        // A quarter of it is how often the kubelet says that it lives, which tests wait for after they ended something.
        "nodeLeaseDurationSeconds": 4,
        // A node that was not ready says that it is again after this; ten seconds are too long for tests.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "5m",
        // What failed is tried again after this, and up to a half of it more by chance; a minute is too long for tests.
        "syncFrequency": "2s",
        // A machine that is nearly full still runs tests.
        "evictionHard": {
            "imagefs.available": "0%",
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // Enough to look for trouble; the next level prints the whole status of each pod at each change of it.
        "logging": {"verbosity": 2},
    });
    let gates = match options.kubelet {
        Kubelet::SameRelease if options.all_dra_gates => &DRA_GATES[..],
        kubelet => kubelet.gates(),
    };
    if !gates.is_empty() {
        config["featureGates"] = gates.iter().map(|gate| ((*gate).to_owned(), Value::Bool(true))).collect();
    }
    config
}

/// CDI is always on in containerd 2, and NRI by default.
fn containerd(bin: &Path, restrict_oom_score: bool) -> String {
    let bin = bin.display();
    format!(
        "version = 3

[grpc]
  address = '{CONTAINERD_SOCKET}'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE_IMAGE}'

[plugins.'io.containerd.cri.v1.images']
  # Nobody asks how much is used; as often as by default, it is a part of what keeps a small machine busy.
  stats_collect_period = 600

[plugins.'io.containerd.cri.v1.runtime']
  stats_collect_period = '10m'
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  # Its profiles would stay in the kernel.
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE no process may have a lower score than its parent.
  restrict_oom_score_adj = {restrict_oom_score}

[plugins.'io.containerd.cri.v1.runtime'.cni]
  # Two programs less to run for each pod.
  use_internal_loopback = true
  bin_dirs = ['{bin}']
  conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '{bin}/runc'
  SystemdCgroup = false

# What a crash of the machine would lose, nobody wants back.
[plugins.'io.containerd.metadata.v1.bolt']
  no_sync = true

[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '/var/run/nri/nri.sock'
  plugin_path = '/var/lib/nri/plugins'
  plugin_config_path = '/etc/nri/conf.d'

[plugins.'io.containerd.image-verifier.v1.bindir']
  bin_dir = '/var/lib/containerd/image-verifier'

[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
"
    )
}

/// Pods on a bridge of the node. They reach the node and with it the API server, each other, and nothing else.
fn network() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.244.0.0/24"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
        ],
    })
}

/// Whether this process, and so the node's, lacks `CAP_SYS_RESOURCE`.
fn lacks_sys_resource() -> Result<bool> {
    let path = "/proc/self/status";
    let status = fs::read_to_string(path).doing(|| format!("read {path}"))?;
    Ok(!has_capability(&status, 24))
}

fn has_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests;
