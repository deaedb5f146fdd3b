//! The command line of `drakkar net`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

/// The subcommands of `drakkar net`.
#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// Validate the parameters for net.drakkar.dev in claims and classes.
    ///
    /// Checks what the driver checks when it prepares a claim, and prints all errors, each with the path of its field.
    #[command(after_help = "\
FILE has one or more documents: ResourceClaim, ResourceClaimTemplate,
DeviceClass, or parameters alone (kind: ClaimConfig). Documents of other kinds
and parameters for other drivers are left out.

Examples:
  drakkar net validate claim.yaml
  kubectl get deviceclasses -o yaml | drakkar net validate -")]
    Validate {
        /// The files; - means standard input.
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
}
