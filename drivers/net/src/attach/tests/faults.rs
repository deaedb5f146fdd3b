//! Every kernel call fails in turn.

use std::sync::Arc;

use drakkar_netlink::{Child, MacvlanMode};
use rstest::rstest;

use super::machine::{Fault, Machine};
use crate::attach::{Attachment, InterfacePlan, Limits, attach};
use crate::restore::restore;

fn plan(machine: &Machine, is_child: bool) -> InterfacePlan {
    let child = is_child.then_some(Child::Macvlan { mode: MacvlanMode::Bridge });
    InterfacePlan { child, ..machine.full_plan("fast0", 1) }
}

#[rstest]
fn a_call_that_fails_during_an_attach_is_reported_and_everything_is_as_it_was(
    #[values(false, true)] is_child: bool,
    #[values(false, true)] is_made_nevertheless: bool,
) {
    let Some(machine) = Machine::new() else { return };
    let before = (machine.host.state(), machine.pods[0].state());
    for number in 0.. {
        let attachment = machine.attachment(plan(&machine, is_child), 0);
        let fault = Fault::new(number, is_made_nevertheless, false);
        let kernel = machine.kernel().with_faults(Arc::clone(&fault) as _);
        match attach(&kernel, &attachment, &Limits::default()) {
            Ok(_) => {
                assert!(fault.calls() <= number, "the fault is not swallowed");
                assert!(number > 15, "there are more calls than {number}");
                machine.restore(&attachment);
                assert_eq!((machine.host.state(), machine.pods[0].state()), before);
                return;
            }
            Err(error) => {
                assert_eq!(error.undo, None, "call {number}: {error}");
                assert_eq!((machine.host.state(), machine.pods[0].state()), before, "call {number}: {error}");
            }
        }
    }
}

#[rstest]
fn an_undo_that_fails_as_well_is_reported_and_a_later_restore_brings_everything_back(
    #[values(false, true)] is_child: bool,
) {
    let Some(machine) = Machine::new() else { return };
    let before = (machine.host.state(), machine.pods[0].state());
    for number in 0.. {
        let attachment = machine.attachment(plan(&machine, is_child), 0);
        let kernel = machine.kernel().with_faults(Fault::new(number, false, true));
        let Err(error) = attach(&kernel, &attachment, &Limits::default()) else { break };
        assert!(error.undo.is_some() && error.to_string().contains("could not be taken back"), "{error}");
        machine.restore(&attachment);
        assert_eq!((machine.host.state(), machine.pods[0].state()), before, "call {number}: {error}");
    }
}

#[rstest]
fn a_call_that_fails_during_a_restore_is_reported_and_the_next_restore_completes_it(
    #[values(false, true)] is_child: bool,
    #[values(false, true)] is_made_nevertheless: bool,
) {
    let Some(machine) = Machine::new() else { return };
    let before = (machine.host.state(), machine.pods[0].state());
    for number in 0.. {
        let (attachment, _): (Attachment, _) = machine.attach(plan(&machine, is_child), 0);
        let fault = Fault::new(number, is_made_nevertheless, false);
        let restored = restore(&machine.kernel().with_faults(Arc::clone(&fault) as _), &attachment);
        let is_over = fault.calls() <= number;
        if restored.as_ref().is_ok_and(crate::restore::Restored::is_complete) {
            assert_eq!((machine.host.state(), machine.pods[0].state()), before, "call {number}: {restored:?}");
        } else {
            assert!(!is_over, "{restored:?}");
            machine.restore(&attachment);
            assert_eq!((machine.host.state(), machine.pods[0].state()), before, "call {number}: {restored:?}");
        }
        if is_over {
            return;
        }
    }
}
