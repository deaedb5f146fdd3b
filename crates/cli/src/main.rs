//! `drakkar`: reads the metadata of a container's DRA devices, for users and scripts.
//!
//! [`args`] defines the command line, [`commands`] has the subcommands, [`exit`] the exit codes and error messages.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod exit;
mod output;
#[cfg(feature = "demo")]
mod sample_drivers;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    match commands::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
