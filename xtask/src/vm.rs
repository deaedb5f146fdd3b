//! `cargo xtask vm`: the virtual machine with a real kernel, and its tests.

use std::env;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use drakkar_vm::{Cache, Image, NETWORK_MODULES, PASSTHROUGH_MODULES};

use crate::e2e::check_filter;
use crate::programs::test_program;

/// Runs the tests, or those whose names contain one of the filters.
pub(crate) fn test(filter: &[&str]) -> Result<()> {
    let begin = Instant::now();
    let cache = Cache::of_checkout();
    if let Some(reason) = drakkar_vm::unsupported_reason(&cache) {
        bail!("cannot run: {reason}");
    }
    let image = Image::get(&cache, &PASSTHROUGH_MODULES).context("cannot run")?;
    Image::get(&cache, &NETWORK_MODULES).context("cannot run")?;
    println!("Debian {}, kernel {}", image.release().name(), image.release().kernel()?);
    let it = test_program("drakkar-vm", "it", None)?;
    let program = guest()?;
    check_filter(&it.list(&["--ignored"])?, filter)?;
    // Each has a machine of its own, which emulates one processor.
    let mut tests = it.command(&["--ignored", "--test-threads", "2"]);
    tests.args(filter).env("DRAKKAR_VM_GUEST", program);
    let status = tests.status().context("run the tests")?;
    if !status.success() {
        bail!(
            "the tests failed: {status}; the logs of the machines are in {}",
            cache.directory().join("log").display()
        );
    }
    println!("done after {:.0} s", begin.elapsed().as_secs_f32());
    Ok(())
}

/// Prints why the virtual machine cannot run on this host, on one line; nothing if it can.
pub(crate) fn unfit() {
    if let Some(reason) = drakkar_vm::unsupported_reason(&Cache::of_checkout()) {
        println!("{reason}");
    }
}

/// Returns the program that runs in the machine. The build of the tests has made it.
fn guest() -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = PathBuf::from(target).join("debug/drakkar-vm-guest");
    program.canonicalize().with_context(|| format!("find {}", program.display()))
}
