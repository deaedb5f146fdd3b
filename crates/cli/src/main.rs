//! `drakkar`: reads the metadata of a container's DRA devices, for users and scripts.
//!
//! [`args`] defines the command line, [`commands`] has the subcommands, [`exit`] the exit codes and error messages.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod exit;
#[cfg(feature = "operate")]
mod node_facts;
mod output;
#[cfg(feature = "demo")]
mod sample_drivers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match args::parse(std::env::args_os()) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            if error.use_stderr() && args::is_env(std::env::args_os()) {
                commands::fail_shell(exit::Code::Usage as u8);
            }
            error.exit()
        }
    };
    match commands::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
