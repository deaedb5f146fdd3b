//! `cargo xtask soak`: pods come and go for a given time, and nothing may grow.

use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::e2e;
use crate::programs::test_program;

/// Runs the soak on the embedded node, or on the real cluster.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::parse(arguments)?;
    if options.cluster {
        return e2e::soak(options.minutes);
    }
    let program = |package, target| -> Result<Command> {
        let mut command = test_program(package, target, None)?.command(&["--ignored", "soak::", "--nocapture"]);
        command.env(MINUTES, options.minutes);
        Ok(command)
    };
    let mut samples = program("drakkar", "it")?;
    let network = program("drakkar-net", "node")?;
    // Both mostly wait, so they run at the same time. The output of the second is printed when the first is done.
    let network = thread::spawn(move || e2e::run_captured(network));
    println!("-- the sample drivers");
    let status = samples.status().with_context(|| format!("start {samples:?}"))?;
    let Ok(finished) = network.join() else { bail!("the thread that ran the soak of drakkar-net panicked") };
    let (output, network_succeeded) = finished?;
    println!("-- drakkar-net\n{output}");
    ensure!(status.success(), "{samples:?}: {status}");
    ensure!(network_succeeded, "the soak of drakkar-net failed");
    Ok(())
}

/// The variable that tells the tests how long they run.
pub(crate) const MINUTES: &str = "DRAKKAR_SOAK_MINUTES";

#[derive(Debug, PartialEq)]
struct Options<'a> {
    minutes: &'a str,
    cluster: bool,
}

impl<'a> Options<'a> {
    fn parse(arguments: &[&'a str]) -> Result<Self> {
        let mut options = Self { minutes: "60", cluster: false };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--minutes" => options.minutes = rest.next().context("soak: `--minutes` needs a number")?,
                "--cluster" => options.cluster = true,
                other => bail!("soak: unknown argument `{other}`"),
            }
        }
        let minutes = options.minutes;
        let is_time = minutes.parse::<f64>().is_ok_and(|minutes| minutes.is_finite() && minutes > 0.0);
        ensure!(is_time, "soak: `--minutes` needs a number above 0, not {minutes:?}");
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn the_time_is_a_number_of_minutes() {
        assert_eq!(Options::parse(&[]).unwrap(), Options { minutes: "60", cluster: false });
        let chosen = Options::parse(&["--cluster", "--minutes", "0.5"]).unwrap();
        assert_eq!(chosen, Options { minutes: "0.5", cluster: true });
        for (arguments, expected) in [
            (&["--minutes"][..], "needs a number"),
            (&["--minutes", "0"], "needs a number above 0, not \"0\""),
            (&["--minutes", "NaN"], "needs a number above 0"),
            (&["--hours"], "unknown argument `--hours`"),
        ] {
            let error = Options::parse(arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
