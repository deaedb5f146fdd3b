//! `cargo xtask campaign`: the randomized tests, run for a given time.

use anyhow::{Context, Result, bail, ensure};

use crate::programs::test_program;

/// The crates with randomized tests, each in the module `campaign` of its integration tests.
const CRATES: &[&str] = &["drakkar", "drakkar-plugin"];

/// Runs all campaigns, or those whose names match, for a number of seconds each.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut seconds = "600";
    let mut filter = "campaign::".to_owned();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--seconds" => seconds = rest.next().context("campaign: `--seconds` needs a number")?,
            option if option.starts_with('-') => bail!("campaign: unknown option `{option}`"),
            name => filter = format!("campaign::{name}"),
        }
    }
    ensure!(
        seconds.parse::<u64>().is_ok_and(|seconds| seconds > 0),
        "campaign: `--seconds` needs a number above 0, not {seconds:?}"
    );
    let mut is_found = false;
    for package in CRATES {
        let program = test_program(package, "it", None)?;
        if program.list(&[&filter])?.trim().is_empty() {
            continue;
        }
        is_found = true;
        let mut command = program.command(&[&filter, "--nocapture"]);
        command.env("DRAKKAR_CAMPAIGN_SECONDS", seconds);
        let status = command.status().with_context(|| format!("start {command:?}"))?;
        ensure!(status.success(), "{command:?}: {status}");
    }
    ensure!(is_found, "campaign: there is none with the name `{filter}`");
    Ok(())
}
