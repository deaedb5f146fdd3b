//! The command line of a driver, with its environment variables.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use drakkar_metadata::Version;
use drakkar_metadata::path::Layout;

use crate::http_endpoint::HttpDetails;

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

    /// Where to serve health, metrics and the driver's pages: 127.0.0.1:9464 or localhost:9464 for this machine or pod alone, :9464
    /// for all of its addresses [default: nowhere]
    #[arg(long, env = "HTTP_ENDPOINT", value_name = "[ADDRESS]:PORT", value_parser = parse_endpoint)]
    pub http_endpoint: Option<SocketAddr>,

    /// Who may see the pages that name claims, pods, devices and settings: /, /statusz and /flagz
    #[arg(long, env = "HTTP_DETAILS", value_enum, default_value_t, value_name = "CLIENTS")]
    pub http_details: HttpDetails,

    /// The kubeconfig of the API server [default: the user's, or the pod's service account]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,

    /// The driver's own version, if [`Self::parse_with_version`] was given one.
    #[arg(skip)]
    pub version: Option<&'static str>,

    /// What is logged, and how.
    #[cfg(feature = "logging")]
    #[command(flatten)]
    pub log: crate::logging::LogFlags,
}

impl Flags {
    /// Parses the command line of a driver without flags of its own. `--version` prints this version, usually
    /// `env!("CARGO_PKG_VERSION")`, and [`PluginBuilder::flags`](crate::PluginBuilder::flags) takes it over. A wrong command line
    /// ends the process, as with `clap::Parser::parse`.
    pub fn parse_with_version(version: &'static str) -> Self {
        // The name that `--version` prints; that of the command is of this crate.
        let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        let program = program.file_name().unwrap_or("driver".as_ref()).to_string_lossy().into_owned();
        let command = <Self as clap::CommandFactory>::command().version(version).display_name(program);
        let flags = <Self as clap::FromArgMatches>::from_arg_matches(&command.get_matches());
        Self { version: Some(version), ..flags.unwrap_or_else(|error| error.exit()) }
    }
}

/// Parses the address of the HTTP endpoint.
fn parse_endpoint(text: &str) -> Result<SocketAddr, String> {
    let port = |text: &str| text.parse::<u16>().map_err(|error| format!("port {text:?}: {error}"));
    if let Some(any) = text.strip_prefix(':') {
        return Ok((Ipv6Addr::UNSPECIFIED, port(any)?).into());
    }
    if let Some(local) = text.strip_prefix("localhost:") {
        return Ok((Ipv4Addr::LOCALHOST, port(local)?).into());
    }
    text.parse().map_err(|_error| "use ADDRESS:PORT, localhost:PORT, or :PORT for all addresses".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    fn endpoint(text: &str) -> Result<String, String> {
        parse_endpoint(text).map(|address| address.to_string())
    }

    #[test]
    fn an_endpoint_is_an_address_localhost_or_a_port_alone() {
        assert_eq!(endpoint(":9464").unwrap(), "[::]:9464");
        assert_eq!(endpoint("localhost:9464").unwrap(), "127.0.0.1:9464");
        assert_eq!(endpoint("0.0.0.0:9464").unwrap(), "0.0.0.0:9464");
        assert_eq!(endpoint("[::1]:0").unwrap(), "[::1]:0");
        for wrong in ["9464", "everywhere", "localhost", "example.com:9464", ""] {
            let error = endpoint(wrong).unwrap_err();
            assert_eq!(error, "use ADDRESS:PORT, localhost:PORT, or :PORT for all addresses", "{wrong}");
        }
        assert!(endpoint(":99999").unwrap_err().starts_with("port \"99999\": "));
    }

    /// A driver that flattens the flags has its own description, or none.
    #[test]
    fn the_help_of_a_driver_does_not_show_the_documentation_of_this_type() {
        #[derive(clap::Parser)]
        struct Undescribed {
            #[command(flatten)]
            plugin: Flags,
        }
        /// A driver of GPUs
        #[derive(clap::Parser)]
        #[command(version = "1.2.3")]
        struct Described {
            #[command(flatten)]
            plugin: Flags,
        }
        for mut command in [Flags::command(), Undescribed::command(), Described::command()] {
            for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
                for hidden in ["```", "derive(", "every driver", "flatten", "log, as a part"] {
                    assert!(!help.contains(hidden), "{hidden} in {help}");
                }
                assert!(help.contains("--log-format") && help.contains("--kubeconfig"), "{help}");
            }
        }
        let mut described = Described::command();
        assert!(described.render_help().to_string().starts_with("A driver of GPUs\n"));
        assert!(described.render_version().contains("1.2.3"));
        let parsed = Undescribed::parse_from(["driver", "-vv", "--log-format=json"]).plugin.log;
        assert_eq!((parsed.verbose, parsed.log_format), (2, crate::logging::LogFormat::Json));
        assert_eq!(Described::parse_from(["driver"]).plugin.log.verbose, 0);
    }
}
