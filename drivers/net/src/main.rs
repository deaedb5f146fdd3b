//! The program `drakkar-net`: command line and wiring.
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown, reason = "the comments on arguments are help texts, which show backticks as they are")]

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use drakkar_net::{BoxError, Config, DRIVER_NAME, Options, survey, table};
use drakkar_netlink::Namespace;
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::{Flags, PluginBuilder, logging};
use drakkar_sysfs::{Roots, Sysfs};

/// The network namespace of this process: that of the host, in a pod with hostNetwork.
const OWN_NAMESPACE: &str = "/proc/self/ns/net";

/// A DRA driver for network interfaces
///
/// It publishes the interfaces of a node that its configuration selects, and gives them to the pods of claims: moved, shared by
/// macvlan and ipvlan, or bound for DPDK. It is a plugin of the container runtime (NRI), too.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Begin with `drakkar-net devices`, which shows what a node has. Write a configuration, look \
    at `drakkar-net devices --config FILE` again, and run the driver with it."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the driver on a node, as its DaemonSet does
    Run(Box<Run>),
    /// List the interfaces of this host and what becomes of each: published, refused (and why), or not selected
    Devices(DevicesCommand),
    /// Check a configuration file
    ///
    /// Prints the place, the field and what is allowed if it is not valid. The exit code is 0 or 1.
    CheckConfig {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Network driver")]
struct Run {
    /// The configuration: which interfaces are published, and how. Followed while the driver runs; a file that becomes invalid
    /// is reported, and the last valid one stays in use
    #[arg(long, env = "DRAKKAR_NET_CONFIG", value_name = "FILE")]
    config: PathBuf,

    /// The socket of the container runtime for NRI plugins. In a pod its directory must be mounted, not the socket: the runtime
    /// makes it again when it starts
    #[arg(long, env = "NRI_SOCKET", default_value = drakkar_nri::DEFAULT_SOCKET, value_name = "PATH")]
    nri_socket: PathBuf,

    /// The place among the NRI plugins of the node: those with lower numbers are called first
    #[arg(long, env = "NRI_INDEX", default_value_t = 10, value_name = "0-99", value_parser = clap::value_parser!(u8).range(0..=99))]
    nri_index: u8,

    /// The addresses of the node, in a pod from the field status.hostIPs. Interfaces that have them are not published unless
    /// the configuration names them
    #[arg(long, env = "NODE_IPS", value_delimiter = ',', value_name = "ADDRESS,…")]
    node_ips: Vec<IpAddr>,

    /// The network namespace of the host
    #[arg(long, env = "HOST_NETWORK_NAMESPACE", default_value = OWN_NAMESPACE, value_name = "PATH")]
    host_network_namespace: PathBuf,

    /// Where the host's sysfs is mounted. It must be writable for devices for DPDK
    #[arg(long, env = "SYSFS_ROOT", default_value = "/sys", value_name = "DIR")]
    sysfs_root: PathBuf,

    /// Where the host's /dev is mounted
    #[arg(long, env = "DEV_ROOT", default_value = "/dev", value_name = "DIR")]
    dev_root: PathBuf,

    /// Where the host's procfs is mounted. Its directory sys/net must be writable, which that of a container is not: the settings of
    /// interfaces in pods are there
    #[arg(long, env = "PROC_ROOT", default_value = "/proc", value_name = "DIR")]
    proc_root: PathBuf,

    /// The form of the attribute numaNode: a number, or a list of the nearest nodes, which needs the feature gate
    /// DRAListTypeAttributes in the cluster
    #[arg(long, env = "NUMA_FORM", default_value = "number", value_name = "FORM")]
    numa_form: Numa,

    #[command(flatten)]
    plugin: Flags,
}

#[derive(Debug, Args)]
struct DevicesCommand {
    /// The configuration to try; without it nothing is selected
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The network namespace to look at
    #[arg(long, default_value = OWN_NAMESPACE, value_name = "PATH")]
    network_namespace: PathBuf,

    /// The addresses of the node
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    node_ips: Vec<IpAddr>,

    /// Show the loopback interface and those of pods as well
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Numa {
    Number,
    List,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command_line = Arguments::command();
    let matches = command_line.clone().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match arguments.command {
        Command::Run(run) => {
            let builder = PluginBuilder::new(DRIVER_NAME).version(env!("CARGO_PKG_VERSION")).flags(&run.plugin);
            return start(*run, builder.command_line(&command_line, &matches)).await;
        }
        Command::Devices(command) => devices(&command),
        Command::CheckConfig { file } => check_config(&file),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn start(run: Run, builder: PluginBuilder) -> ExitCode {
    logging::init(&run.plugin);
    let directory = run.plugin.kubelet_root_dir.join("plugins").join(DRIVER_NAME);
    let options = Options {
        config: run.config,
        host_namespace: run.host_network_namespace,
        roots: Roots { sys: run.sysfs_root, dev: run.dev_root, proc: run.proc_root },
        numa: match run.numa_form {
            Numa::Number => NumaForm::Number,
            Numa::List => NumaForm::List,
        },
        node_addresses: run.node_ips,
        state_directory: directory.join("state"),
        cdi_directory: run.plugin.cdi_dir.clone(),
        nri_socket: Some(run.nri_socket),
        nri_index: run.nri_index,
    };
    drakkar_net::run(builder, options).await
}

fn devices(command: &DevicesCommand) -> Result<(), BoxError> {
    let config = match &command.config {
        Some(file) => Arc::new(read_config(file)?),
        None => Arc::default(),
    };
    let namespace = Namespace::open(&command.network_namespace)?;
    let interfaces = survey(&namespace, Sysfs::at(Roots::default()), config.clone(), command.node_ips.clone())?;
    print(&table::render(&interfaces, Some(&config), command.all))
}

fn check_config(file: &Path) -> Result<(), BoxError> {
    let config = read_config(file)?;
    print(&format!("{}: valid, with {} rules\n", file.display(), config.devices.len()))
}

fn read_config(file: &Path) -> Result<Config, BoxError> {
    Config::from_file(file).map_err(|error| format!("{}: {error}", file.display()).into())
}

/// Prints a text. A reader that has seen enough (`head`) is no error.
fn print(text: &str) -> Result<(), BoxError> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
