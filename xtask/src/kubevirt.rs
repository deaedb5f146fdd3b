//! `cargo xtask kubevirt`: the tests that ask KubeVirt's own code, with the full Go program.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::e2e::cargo_command;

/// Runs the tests, or records KubeVirt's answers anew.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let bless = match *arguments {
        [] => false,
        ["--bless"] => true,
        [option, ..] => bail!("kubevirt: unknown option `{option}`"),
    };
    let tests: &[&str] = &["test", "-p", "drakkar-e2e-kubevirt", "--features", "full", "--", "--nocapture"];
    let mut command = cargo_command(tests);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    if bless {
        command.env("DRAKKAR_BLESS", "1");
    }
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
