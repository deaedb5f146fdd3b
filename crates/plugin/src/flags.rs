//! The command line of a driver, with its environment variables.

use std::net::SocketAddr;
use std::path::PathBuf;

use drakkar_metadata::Version;
use drakkar_metadata::path::Layout;

/// The flags that every driver has. A driver without flags of its own parses them as they are, `Flags::parse()`; any other
/// flattens them into its own:
///
/// ```
/// /// A driver of GPUs
/// #[derive(clap::Parser)]
/// struct Arguments {
///     /// Resets GPUs before they are handed out
///     #[arg(long)]
///     reset: bool,
///     #[command(flatten)]
///     plugin: drakkar_plugin::Flags,
/// }
/// ```
#[derive(Debug, Clone, clap::Parser)]
// Without these the comment above would be the description of every driver.
#[command(next_help_heading = "DRA plugin", about = None, long_about = None)]
pub struct Flags {
    /// Tell containers what devices they got: write a metadata file for each request of a claim and mount it into the
    /// containers that reference the request (KEP-5304)
    #[arg(long, env = "ENABLE_DEVICE_METADATA", num_args = 0..=1, require_equals = true, default_value_t = false,
          default_missing_value = "true", action = clap::ArgAction::Set, value_name = "true|false")]
    pub enable_device_metadata: bool,

    /// Versions that each metadata file is written in, in this order: v1alpha1, v1beta1
    #[arg(
        long,
        env = "METADATA_VERSIONS",
        value_delimiter = ',',
        default_value = "v1alpha1",
        value_name = "VERSION,…"
    )]
    pub metadata_versions: Vec<Version>,

    /// Paths under which containers see a metadata file: "kep" is below /var/run/dra-device-attributes, "kubernetes"
    /// below /var/run/kubernetes.io/dra-device-attributes
    #[arg(
        long,
        env = "METADATA_LAYOUT",
        value_delimiter = ',',
        default_value = "kep,kubernetes",
        value_name = "LAYOUT,…"
    )]
    pub metadata_layout: Vec<Layout>,

    /// The kubelet's directory. It must have the same path in the driver's container and on the host: the kubelet finds
    /// the driver's sockets there
    #[arg(long, env = "KUBELET_ROOT_DIR", default_value = crate::DEFAULT_KUBELET_ROOT, value_name = "PATH")]
    pub kubelet_root_dir: PathBuf,

    /// The directory from which the container runtime reads CDI specs
    #[arg(long, env = "CDI_DIR", default_value = crate::DEFAULT_CDI_DIRECTORY, value_name = "PATH")]
    pub cdi_dir: PathBuf,

    /// The node that the driver runs on; in a pod, from the field spec.nodeName
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// The UID of that node, which owns the published slices. Looked up if it is not set, which needs permission to get nodes
    #[arg(long, env = "NODE_UID", value_name = "UID")]
    pub node_uid: Option<String>,

    /// The pod that the driver runs in, from the field metadata.uid. Set it if an update of the driver runs the new
    /// instance beside the old one (a daemon set with "maxSurge"; needs a kubelet of 1.33 or newer)
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,

    /// Where to serve /metrics, /healthz, /readyz and /statusz, for example 127.0.0.1:9090 or 0.0.0.0:9090 [default: nowhere]
    #[arg(long, env = "HTTP_ENDPOINT", value_name = "ADDRESS:PORT")]
    pub http_endpoint: Option<SocketAddr>,
}
