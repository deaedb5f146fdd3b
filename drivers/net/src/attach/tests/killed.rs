//! A driver process that is really killed, with signal 9, before or after every kernel call.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drakkar_netlink::{Child, Errno, MacvlanMode};
use rstest::rstest;
use rustix::process::{Signal, getpid, kill_process};

use super::machine::Machine;
use crate::attach::{Attachment, InterfacePlan, Limits, attach};
use crate::kernel::{Call, Faults, Kernel};
use crate::restore::restore;

const HOST: &str = "DRAKKAR_TEST_KILLED_HOST";
const JOURNAL: &str = "DRAKKAR_TEST_KILLED_JOURNAL";
const CALL: &str = "DRAKKAR_TEST_KILLED_CALL";
const SIGKILL: i32 = 9;

/// Ends the process with the n-th call, before it is made.
#[derive(Debug)]
struct Kill(AtomicUsize);

impl Faults for Kill {
    fn before(&self, _: Call) -> Result<(), Errno> {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 0 {
            kill_process(getpid(), Signal::KILL)?;
            loop {
                std::thread::park();
            }
        }
        Ok(())
    }

    fn after(&self, _: Call) -> Result<(), Errno> {
        Ok(())
    }
}

/// The driver process: started by the other test, with its journal and the number of its last call.
#[test]
#[ignore = "is started by another test"]
fn the_process() {
    let (Ok(host), Ok(journal), Ok(call)) = (std::env::var(HOST), std::env::var(JOURNAL), std::env::var(CALL)) else {
        return;
    };
    let attachment: Attachment = serde_json::from_slice(&std::fs::read(journal).unwrap()).unwrap();
    let faults = Arc::new(Kill(AtomicUsize::new(call.parse().unwrap())));
    let kernel = Kernel::new(host).with_faults(faults);
    attach(&kernel, &attachment, &Limits::default()).unwrap();
    assert!(restore(&kernel, &attachment).unwrap().is_complete());
}

#[rstest]
fn a_process_that_is_killed_at_any_call_leaves_nothing_that_the_next_one_cannot_bring_back(
    #[values(false, true)] is_child: bool,
) {
    let Some(machine) = Machine::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("claim.json");
    let before = (machine.host.state(), machine.pods[0].state());
    let child = is_child.then_some(Child::Macvlan { mode: MacvlanMode::Bridge });
    for call in 0.. {
        let plan = InterfacePlan { child, ..machine.full_plan("fast0", 1) };
        let attachment = machine.attachment(plan, 0);
        std::fs::write(&journal, serde_json::to_vec(&attachment).unwrap()).unwrap();
        let status = run(&machine.host.path(), &journal, call);
        assert!(status.success() || status.signal() == Some(SIGKILL), "call {call}: {status}");

        // The next process knows nothing but the journal.
        let attachment: Attachment = serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
        machine.restore(&attachment);
        assert_eq!((machine.host.state(), machine.pods[0].state()), before, "killed at call {call}");
        if status.success() {
            assert!(call > 20, "there are more calls than {call}");
            return;
        }
    }
}

fn run(host: &Path, journal: &Path, call: usize) -> std::process::ExitStatus {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--ignored", "attach::tests::killed::the_process"]);
    process.stdout(Stdio::null()).stderr(Stdio::null());
    process.env(HOST, host).env(JOURNAL, journal).env(CALL, call.to_string());
    process.status().unwrap()
}
