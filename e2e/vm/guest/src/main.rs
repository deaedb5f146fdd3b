//! The tests that run in the virtual machine: `drakkar-vm-guest TEST`. It fails with what it found.

#![forbid(unsafe_code)]

mod binding;
mod conformance;
mod debian;
mod discovery;
mod faults;
mod functions;
mod guest;
mod libvirt;
mod manager;
mod mediated;
mod network;
mod uevents;

use std::env;

use anyhow::{Context, Result, bail};

use crate::guest::Guest;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // In a root of its own, without the line to the host, which the test that starts it has.
    if arguments == ["examples"] {
        return network::examples_inside();
    }
    let mut guest = Guest::new()?;
    let test = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [test] => test.to_owned(),
        // A process of a test, which starts it.
        ["die", "attach", number] => return network::die(number),
        ["die", call, number] => return manager::die(&mut guest, call, number),
        _ => bail!("usage: drakkar-vm-guest TEST"),
    };
    let test: fn(&mut Guest) -> Result<()> = match test.as_str() {
        "binding" => binding::test,
        "conformance" => conformance::test,
        "discovery" => discovery::test,
        "faults" => faults::test,
        "functions" => functions::test,
        "group" => binding::group,
        "kills" => manager::kills,
        "libvirt" => libvirt::test,
        "manager" => manager::test,
        "mediated" => mediated::test,
        "nvme" => functions::nvme,
        "uevents" => uevents::test,
        other => network::test(other).with_context(|| format!("unknown test: {other}"))?,
    };
    test(&mut guest)
}
