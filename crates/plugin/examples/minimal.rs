//! The smallest driver that does everything: it hands out what was allocated, tells containers about it, and registers
//! with the kubelet of its node.
//!
//! ```console
//! $ cargo run -p drakkar-plugin --example minimal -- --help
//! ```

use std::process::ExitCode;

use clap::Parser;
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, Flags, PluginBuilder, logging};

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::init(&arguments.plugin);
    let builder = PluginBuilder::new(arguments.driver_name).version(env!("CARGO_PKG_VERSION"));
    builder.flags(&arguments.plugin).run(Minimal).await
}
