//! The sample drivers as a process, for tests that kill it.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use drakkar_node::samples::Sample;
use drakkar_plugin::{Flags, PluginBuilder};

/// A DRA driver without hardware
#[derive(Parser)]
struct Arguments {
    /// Which of the two
    kind: Kind,
    /// How many GPUs it has
    #[arg(long, default_value_t = 2)]
    count: u16,
    #[command(flatten)]
    plugin: Flags,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Gpu,
    Net,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let sample = match arguments.kind {
        Kind::Gpu => Sample::Gpu { count: arguments.count },
        Kind::Net => Sample::Net,
    };
    let Some(node) = arguments.plugin.node_name.clone() else {
        eprintln!("--node-name is missing");
        return ExitCode::FAILURE;
    };
    match sample.run(PluginBuilder::new(sample.driver()).flags(&arguments.plugin), &node).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
