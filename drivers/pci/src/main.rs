//! The program `drakkar-pci`: command line and wiring.
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown, reason = "the comments on arguments are help texts, which show backticks as they are")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use drakkar_pci::{BoxError, Config, DRIVER_NAME, Options, Source, survey, table};
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::{Flags, PluginBuilder, logging};
use drakkar_sysfs::{DEFAULT_WRITE_TIMEOUT, Roots};

/// A DRA driver for PCI devices, virtual functions and mediated devices
///
/// It publishes the devices of a node that its configuration selects, and hands them to claims: bound to vfio-pci for virtual
/// machines, with their kernel driver, or as they are.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Begin with `drakkar-pci devices`, which shows what a node has. Write a configuration, look \
    at `drakkar-pci devices --config FILE` again, and run the driver with it."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the driver on a node, as its DaemonSet does
    Run(Box<Run>),
    /// List the PCI devices of this host and what becomes of each: published, refused (and why), or not selected
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
#[command(next_help_heading = "PCI driver")]
struct Run {
    /// The configuration: which devices are published, and how. Followed while the driver runs; a file that becomes invalid is
    /// reported, and the last valid one stays in use
    #[arg(long, env = "DRAKKAR_PCI_CONFIG", value_name = "FILE")]
    config: PathBuf,

    /// Where the host's sysfs is mounted. It must be writable
    #[arg(long, env = "SYSFS_ROOT", default_value = "/sys", value_name = "DIR")]
    sysfs_root: PathBuf,

    /// Where the host's /dev is mounted
    #[arg(long, env = "DEV_ROOT", default_value = "/dev", value_name = "DIR")]
    dev_root: PathBuf,

    /// Where the host's procfs is mounted. In a pod without hostPID it must not be the pod's own: the driver finds out from it
    /// which devices the host uses
    #[arg(long, env = "PROC_ROOT", default_value = "/proc", value_name = "DIR")]
    proc_root: PathBuf,

    /// The form of the attribute numaNode: a number, or a list of the nearest nodes, which needs the feature gate
    /// DRAListTypeAttributes in the cluster
    #[arg(long, env = "NUMA_FORM", default_value = "number", value_name = "FORM")]
    numa_form: Numa,

    /// Use a simulated host instead of this one: a YAML file with its devices. For a try without hardware
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sysfs_root", "dev_root", "proc_root"])]
    simulate: Option<PathBuf>,

    #[command(flatten)]
    plugin: Flags,
}

#[derive(Debug, Args)]
struct DevicesCommand {
    /// The configuration to try; without it nothing is selected
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// A directory with sys, dev and proc of the host
    #[arg(long, default_value = "/", value_name = "DIR")]
    root: PathBuf,

    /// Show a simulated host: a YAML file with its devices
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    simulate: Option<PathBuf>,

    /// Show bridges as well
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
        source: match run.simulate {
            Some(file) => Source::Simulated { file, directory: directory.join("simulation") },
            None => Source::Host(Roots { sys: run.sysfs_root, dev: run.dev_root, proc: run.proc_root }),
        },
        numa: match run.numa_form {
            Numa::Number => NumaForm::Number,
            Numa::List => NumaForm::List,
        },
        write_timeout: DEFAULT_WRITE_TIMEOUT,
        state_directory: directory.join("devices"),
        cdi_directory: run.plugin.cdi_dir.clone(),
    };
    drakkar_pci::run(builder, options).await
}

fn devices(command: &DevicesCommand) -> Result<(), BoxError> {
    let config = match &command.config {
        Some(file) => Arc::new(read_config(file)?),
        None => Arc::default(),
    };
    let directory;
    let source = match &command.simulate {
        Some(file) => {
            directory = tempfile::tempdir()?;
            Source::Simulated { file: file.clone(), directory: directory.path().to_owned() }
        }
        None => Source::Host(Roots::below(&command.root)),
    };
    let table = table::render(&survey(source.sysfs()?, config.clone())?, Some(&config), command.all);
    print(&table)
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
