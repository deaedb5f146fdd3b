//! The command line of `drakkar doctor`, `drakkar node` and `drakkar inspect`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use drakkar_metadata::name::DriverName;

use super::Output;

/// Where the files of a node are.
#[derive(Debug, Args)]
pub(crate) struct HostOptions {
    /// The root of the host's file system, as it is mounted into a pod. All other paths are those on the host.
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    pub(crate) host_root: PathBuf,
    /// The kubelet's directory.
    #[arg(long, value_name = "DIR", env = "KUBELET_ROOT_DIR", hide_env = true, default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_dir: PathBuf,
    /// A directory of CDI specs; can be repeated.
    #[arg(long = "cdi-dir", value_name = "DIR", env = "CDI_DIR", hide_env = true)]
    #[arg(default_values = ["/etc/cdi", "/var/run/cdi"])]
    pub(crate) cdi_dirs: Vec<PathBuf>,
    /// Look at this driver only; can be repeated. By default at all that have sockets or records here.
    #[arg(long = "driver", value_name = "NAME")]
    pub(crate) drivers: Vec<DriverName>,
}

/// How the API server is reached.
#[derive(Debug, Args)]
pub(crate) struct ApiOptions {
    /// The kubeconfig; by default KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Do not ask the API server.
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) no_api: bool,
    /// The node's name; by default `NODE_NAME` in the environment, or the host's name.
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env = true)]
    pub(crate) node_name: Option<String>,
}

/// The options of `drakkar doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    pub(crate) host: HostOptions,
    #[command(flatten)]
    pub(crate) api: ApiOptions,
    /// The configuration of containerd; by default /etc/containerd/config.toml, or that of CRI-O if it is there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) containerd_config: Option<PathBuf>,
    /// The NRI socket, for a driver that needs NRI; /var/run/nri/nri.sock in most runtimes.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) nri_socket: Option<PathBuf>,
    /// The driver's HTTP endpoint, to ask whether it is ready; for example localhost:9464.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http_endpoint: Option<String>,
    /// Where the kubelet says whether it is healthy.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10248")]
    pub(crate) kubelet_healthz: String,
    /// Warnings are errors: the exit code is 1.
    #[arg(long)]
    pub(crate) strict: bool,
    /// The output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: super::LineOutput,
}

/// The subcommands of `drakkar node`.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the claims that are prepared on this node.
    ///
    /// From the state records of drivers on this framework; the pods are those in the kubelet's checkpoint.
    #[command(after_help = "\
GEN is the highest generation of the claim's metadata files: 1 after the
prepare, and one more with each update. AGE is the time since the prepare.

Examples:
  drakkar node claims
  drakkar node claims --driver gpu.example.com
  drakkar node claims -o json | jq -r '.[].claim.uid'")]
    Claims {
        #[command(flatten)]
        host: HostOptions,
        /// The output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },

    /// List the devices that claims use on this node.
    #[command(after_help = "\
Examples:
  drakkar node devices
  drakkar node devices -o json | jq -r '.[] | select(.claim.name==\"train\")'")]
    Devices {
        #[command(flatten)]
        host: HostOptions,
        /// The output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
}

/// The options of `drakkar inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectOptions {
    /// The claim: its UID, or its namespace and name.
    #[arg(value_name = "NAMESPACE/NAME|UID")]
    pub(crate) claim: String,
    #[command(flatten)]
    pub(crate) host: HostOptions,
    #[command(flatten)]
    pub(crate) api: ApiOptions,
    /// The output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: super::LineOutput,
}
