//! `cargo xtask bench`: builds the drivers and runs the comparison with Kubernetes' Go framework.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::e2e::cargo_command;

/// The path of the plot, relative to the top of the repository.
const PLOT: &str = "docs/performance.svg";

/// Builds both drivers and measures them. The arguments are passed to `drakkar-bench`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Both binaries, in release mode: `cargo run` below builds only `drakkar-bench`.
    run_in(&top, &mut cargo_command(&["build", "--release", "-p", "drakkar-bench", "--bins"]))?;
    let measure = ["run", "--release", "-p", "drakkar-bench", "--bin", "drakkar-bench", "--", "--plot", PLOT];
    run_in(&top, cargo_command(&measure).args(arguments))
}

fn run_in(directory: &Path, command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.current_dir(directory).status().with_context(|| format!("start {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}
