//! The measured network driver: what `drakkar-net run` does, with the arguments that a benchmark needs.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use drakkar_net::{DRIVER_NAME, Options};
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::{Flags, PluginBuilder};
use drakkar_sysfs::Roots;

/// The network driver, for benchmarks
#[derive(Parser)]
struct Arguments {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The network namespace of the host
    #[arg(long, value_name = "PATH")]
    host_network_namespace: PathBuf,
    /// The socket of the container runtime for NRI plugins
    #[arg(long, value_name = "PATH")]
    nri_socket: PathBuf,
    #[command(flatten)]
    plugin: Flags,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { config, host_network_namespace, nri_socket, plugin } = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let root = &plugin.kubelet_root_dir;
    let options = Options {
        config,
        host_namespace: host_network_namespace,
        // The machine's own cards are not those of the host, which is a namespace of the benchmark.
        roots: Roots { sys: root.join("no-sysfs"), dev: root.join("no-dev"), proc: "/proc".into() },
        numa: NumaForm::Number,
        node_addresses: Vec::new(),
        state_directory: root.join("plugins").join(DRIVER_NAME).join("state"),
        cdi_directory: plugin.cdi_dir.clone(),
        nri_socket: Some(nri_socket),
        nri_index: 10,
    };
    drakkar_net::run(PluginBuilder::new(DRIVER_NAME).flags(&plugin), options).await
}
