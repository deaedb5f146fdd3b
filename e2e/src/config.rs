//! The command line and configuration file of each component.
//!
//! Paths are the components' defaults, since the node has its own `/etc`, `/run`, `/var/lib` and `/var/log`, so manifests
//! for ordinary clusters work unchanged. Defaults outside of these directories are moved into them.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use crate::component::Component;
use crate::error::{IoContext, Result};
use crate::kubelet::Kubelet;
use crate::paths::ClusterPaths;

/// The name of the node.
pub(crate) const NODE: &str = "drakkar-e2e";

/// The image of pods' sandbox containers.
pub(crate) const PAUSE_IMAGE: &str = "localhost/pause:e2e";

/// The path of containerd's socket in the node.
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// The client-side rate limit of components towards the API server, in requests per second.
const API_QPS: u32 = 1000;

/// The path of the kubelet's configuration file in the node.
const KUBELET_CONFIG: &str = "/etc/kubernetes/kubelet.json";

/// The path of containerd's configuration file in the node.
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// The DRA feature gates that can be set in Kubernetes 1.37, and the gates that they depend on.
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

/// How a cluster differs from the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Enable all DRA feature gates and all API versions, instead of Kubernetes' defaults.
    pub all_dra_gates: bool,
    /// The kubelet release of the node. An older one gets only the feature gates that it needs, since it does not know the
    /// others.
    pub kubelet: Kubelet,
}

/// Writes the configuration files and the command line of every component.
pub(crate) fn write(paths: &ClusterPaths, options: Options) -> Result<()> {
    let files = [
        ("/etc/hosts", "127.0.0.1 localhost\n".to_owned()),
        ("/etc/resolv.conf", "# There is no DNS here.\n".to_owned()),
        ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n".to_owned()),
        ("/etc/group", "root:x:0:\n".to_owned()),
        ("/etc/machine-id", format!("{}\n", paths.id().repeat(4))),
        ("/etc/cni/net.d/10-bridge.conflist", format!("{:#}\n", network())),
        (CONTAINERD_CONFIG, containerd(&paths.bin(), lacks_sys_resource()?)),
        (KUBELET_CONFIG, format!("{:#}\n", kubelet(paths, options))),
    ];
    for (path, content) in files {
        let path = paths.host_path(Path::new(path));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    // Directories that components watch or expect to exist.
    for directory in ["/etc/cdi", "/run/cdi", "/run/lock", "/var/lib/kubelet"] {
        let path = paths.host_path(Path::new(directory));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    }
    for component in Component::ALL {
        let path = paths.command_line(component.name());
        fs::write(&path, command_line(component, paths, options).join("\n"))
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The program and arguments of a component. None contains a line break: they are stored one per line.
fn command_line(component: Component, paths: &ClusterPaths, options: Options) -> Vec<String> {
    let (_, address) = paths.link();
    let pki = paths.certificates();
    let pki = pki.display();
    let kubeconfig = paths.kubeconfig(component.name());
    let kubeconfig = kubeconfig.display();
    let program = if component == Component::Kubelet { options.kubelet.program() } else { component.name() };
    let mut line = vec![paths.bin().join(program).display().to_string()];
    let gates = || DRA_GATES.map(|gate| format!("{gate}=true")).join(",");
    let arguments: Vec<String> = match component {
        Component::Etcd => vec![
            "--data-dir=/var/lib/etcd".to_owned(),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            // The cluster does not have to survive a crash of the host.
            "--unsafe-no-fsync".to_owned(),
        ],
        Component::ApiServer => vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            // All addresses include the cluster IP of the service `kubernetes`, so no kube-proxy is needed.
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
            // Drivers may run privileged.
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
            // The load test should be limited by the host, not by the client's rate limit.
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
    // `all_dra_gates` enables all API versions below, which includes this one.
    if let (Component::ApiServer, Some(api), false) = (component, options.kubelet.api(), options.all_dra_gates) {
        line.push(format!("--runtime-config={api}=true"));
    }
    if options.all_dra_gates {
        match component {
            Component::ApiServer => {
                line.extend([format!("--feature-gates={}", gates()), "--runtime-config=api/all=true".to_owned()]);
            }
            Component::ControllerManager | Component::Scheduler => line.push(format!("--feature-gates={}", gates())),
            // The kubelet's gates are in its configuration file.
            Component::Etcd | Component::Containerd | Component::Kubelet => {}
        }
    }
    line
}

fn kubelet(paths: &ClusterPaths, options: Options) -> Value {
    let pki = paths.certificates();
    let (_, address) = paths.link();
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
        // So that neither systemd nor cgroup v2 is required.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", paths.cgroup()),
        "failCgroupV1": false,
        "failSwapOn": false,
        // A negative score needs CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        // There is no kube-proxy that would use these chains.
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 250,
        // As for the controller manager.
        "kubeAPIQPS": API_QPS,
        "kubeAPIBurst": API_QPS,
        // The kubelet renews its lease every quarter of this; tests wait for a renewal after they restart something.
        "nodeLeaseDurationSeconds": 4,
        // How soon a node reports that it is ready again; the default of ten seconds is too long for tests.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "5m",
        // The retry delay of failed pods, plus up to half as much jitter; the default of a minute is too long for tests.
        "syncFrequency": "2s",
        // So that tests also run on a host whose disk is nearly full.
        "evictionHard": {
            "imagefs.available": "0%",
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // Enough to debug failures; the next level prints the whole status of each pod at each change.
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

/// containerd's configuration. CDI is always on in containerd 2, and NRI by default.
fn containerd(bin: &Path, restrict_oom_score: bool) -> String {
    let bin = bin.display();
    format!(
        "version = 3

[grpc]
  address = '{CONTAINERD_SOCKET}'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE_IMAGE}'

[plugins.'io.containerd.cri.v1.images']
  # The statistics are not used, and collecting them at the default period is a noticeable load on a small host.
  stats_collect_period = 600

[plugins.'io.containerd.cri.v1.runtime']
  stats_collect_period = '10m'
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  # AppArmor profiles would stay loaded in the host's kernel.
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE a process cannot have a lower score than its parent.
  restrict_oom_score_adj = {restrict_oom_score}

[plugins.'io.containerd.cri.v1.runtime'.cni]
  # Saves two plugin executions per pod.
  use_internal_loopback = true
  bin_dirs = ['{bin}']
  conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '{bin}/runc'
  SystemdCgroup = false

# The cluster does not have to survive a crash of the host.
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

/// The pod network: a bridge in the node. Pods reach each other and the node with its API server, and nothing else.
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

/// Whether this process, and so every process of the node, lacks `CAP_SYS_RESOURCE`.
fn lacks_sys_resource() -> Result<bool> {
    let path = "/proc/self/status";
    let status = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(!has_capability(&status, 24))
}

fn has_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests;
