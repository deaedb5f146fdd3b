//! The comparison with Kubernetes' Go framework: both are built, and the program that measures them is run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::e2e::cargo_command;

/// Where the plot goes, from the top of the repository.
const PLOT: &str = "docs/performance.svg";

/// Builds everything and measures it. More arguments are those of `drakkar-bench`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Both binaries: the driver is measured as it is released.
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
