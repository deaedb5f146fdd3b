//! The arguments of `drakkar new`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use drakkar_metadata::name::DriverName;

#[derive(Debug, Subcommand)]
pub(crate) enum NewCommand {
    /// Create the project of a DRA driver in Rust.
    ///
    /// A driver that publishes devices and prepares them, its tests on an embedded
    /// node, manifests, a Containerfile and a CI workflow.
    #[command(after_help = "\
Examples:
  drakkar new driver gpu.example.com
  drakkar new driver gpu.example.com --path my-driver
  drakkar new driver gpu.example.com --drakkar-path ../drakkar")]
    Driver(NewDriver),
}

#[derive(Debug, Args)]
pub(crate) struct NewDriver {
    /// The driver's name: a domain name that you own.
    #[arg(value_parser = parse_driver_name)]
    pub(crate) name: DriverName,
    /// The directory to create; gpu-driver for gpu.example.com.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) path: Option<PathBuf>,
    /// The directory with Drakkar's source, as its crates are not on a registry yet; by default the one that contains
    /// the current directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) drakkar_path: Option<PathBuf>,
}

/// Parses the name of a driver, which is also a CDI vendor.
fn parse_driver_name(text: &str) -> Result<DriverName, String> {
    let name: DriverName = text.parse().map_err(|error| format!("{error}"))?;
    if !text.contains('.') {
        return Err(format!("must be a domain name that you own, such as {text}.example.com"));
    }
    if !text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err("must start with a letter, because it becomes a CDI vendor".to_owned());
    }
    Ok(name)
}
