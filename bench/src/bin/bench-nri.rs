//! The measured NRI plugin: it answers every pod at once. `interop nri-stub` in e2e/interop does the same on containerd's Go
//! library.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use drakkar_nri::{BoxError, Call, Events, NriPlugin, Plugin, PodSandbox};

/// Answer every pod at once
#[derive(Parser)]
struct Arguments {
    /// The path of the runtime's socket
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

struct Minimal;

impl NriPlugin for Minimal {
    async fn run_pod_sandbox(&self, _: &Call, _: &PodSandbox) -> Result<(), BoxError> {
        Ok(())
    }

    async fn stop_pod_sandbox(&self, _: &Call, _: &PodSandbox) {}

    async fn remove_pod_sandbox(&self, _: &Call, _: &PodSandbox) {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let socket = Arguments::parse().socket;
    match Plugin::new("bench", 10).events(Events::POD_LIFECYCLE).socket(socket).start(Arc::new(Minimal)) {
        Ok(plugin) => {
            plugin.ended().await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
