//! `drakkar`: what a container knows of its devices, for people and scripts.
//!
//! This file only wires: [`args`] is what can be said, [`commands`] does it, [`exit`] is how it ends.

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
