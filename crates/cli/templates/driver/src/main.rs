//! The DRA driver gpu.example.com: this file reads the command line and starts it.

mod driver;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser;
use drakkar_plugin::{Flags, PluginBuilder, logging};

use self::driver::{DRIVER, Driver};

/// The DRA driver gpu.example.com
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The number of devices to publish
    #[arg(long, env = "DEVICES", default_value_t = 2)]
    devices: u16,
    #[command(flatten)]
    plugin: Flags,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::init(&arguments.plugin);
    let builder = PluginBuilder::new(DRIVER).version(env!("CARGO_PKG_VERSION")).flags(&arguments.plugin);
    builder.run_with(|handles| Driver::new(&handles, arguments.devices)).await
}
