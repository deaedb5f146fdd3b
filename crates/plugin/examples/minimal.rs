//! The smallest driver that does everything: it hands out what was allocated, tells containers about it, and registers
//! with the kubelet of its node.
//!
//! ```console
//! $ cargo run -p drakkar-plugin --example minimal -- --help
//! ```

use std::process::ExitCode;

use clap::Parser;
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, Flags, PluginBuilder};

/// A DRA driver that hands out what was allocated
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The driver's name: a domain name that its vendor owns
    #[arg(long, default_value = "gpu.example.com", value_name = "NAME")]
    driver_name: String,
    #[command(flatten)]
    plugin: Flags,
}

struct Minimal;

impl DraPlugin for Minimal {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let devices = claim.results().map(|result| Device {
            metadata: Some(DeviceMetadata::default().attribute("model", "minimal")),
            ..Device::from(result)
        });
        Ok(devices.collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

fn filter() -> tracing_subscriber::EnvFilter {
    let level = tracing_subscriber::filter::LevelFilter::INFO;
    tracing_subscriber::EnvFilter::builder().with_default_directive(level.into()).from_env_lossy()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // RUST_LOG=drakkar_plugin=debug tells of every claim.
    tracing_subscriber::fmt().with_env_filter(filter()).with_writer(std::io::stderr).init();
    PluginBuilder::new(arguments.driver_name).flags(&arguments.plugin).run(Minimal).await
}
