//! Any sequence of calls, failed writes and kills ends with everything as it was, once all claims are unprepared.

use drakkar_sysfs::simulation::{Effect, Fault, When};
use proptest::prelude::*;
use rustix::io::Errno;

use super::machine::{AUDIO, DISK, GPU, Life, Machine, address, claim, function, gpu_with_audio, mdev, vf};
use crate::prepare::DeviceRequest;

#[derive(Debug, Clone, Copy)]
enum Action {
    Prepare {
        claim: usize,
        devices: usize,
    },
    Unprepare {
        claim: usize,
    },
    /// One of the next writes fails, before or after it has had its effect.
    Fail {
        writes: u64,
        late: bool,
    },
    /// The driver starts again, and dies after some steps.
    Die {
        steps: u64,
    },
}

const CLAIMS: [&str; 3] = ["a", "b", "c"];

fn devices(choice: usize) -> Vec<DeviceRequest> {
    let audio = DeviceRequest { companions: vec![address(GPU)], ..function(AUDIO) };
    match choice {
        0 => vec![gpu_with_audio()],
        1 => vec![audio],
        2 => vec![vf(0), function(DISK)],
        3 => vec![vf(1)],
        4 => vec![mdev("nvidia-1", 0), mdev("nvidia-2", 0)],
        _ => vec![mdev("nvidia-2", 1), vf(2)],
    }
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0..CLAIMS.len(), 0..6usize).prop_map(|(claim, devices)| Action::Prepare { claim, devices }),
        2 => (0..CLAIMS.len()).prop_map(|claim| Action::Unprepare { claim }),
        2 => (0..6u64, any::<bool>()).prop_map(|(writes, late)| Action::Fail { writes, late }),
        2 => (0..25u64).prop_map(|steps| Action::Die { steps }),
    ];
    prop::collection::vec(action, 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everything_is_as_it_was_in_the_end(actions in actions()) {
        let machine = Machine::new();
        let before = machine.kernel_state();
        let mut manager = machine.start();
        for action in actions {
            match action {
                // Refusals and failures are part of it.
                Action::Prepare { claim: name, devices: choice } => {
                    drop(manager.prepare(&claim(CLAIMS[name]), &devices(choice)));
                }
                Action::Unprepare { claim: name } => drop(manager.unprepare(&claim(CLAIMS[name]).uid)),
                Action::Fail { writes, late } => {
                    let effect = if late { Effect::FailsLate(Errno::IO) } else { Effect::Fails(Errno::IO) };
                    machine.kernel.inject(Fault::once(When::Nth(machine.kernel.writes() + writes), effect));
                }
                Action::Die { steps } => {
                    manager = machine.mortal(&Life::of(steps));
                    drop(manager.recover(|_| true));
                }
            }
        }
        machine.kernel.clear_faults();
        let (manager, recovery) = machine.restart(|_| true);
        prop_assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
        for claim in &recovery.prepared {
            let devices = manager.prepared(&claim.uid).unwrap();
            prop_assert!(devices.iter().all(|device| device.cdi_id.is_some()), "{devices:?}");
        }
        for name in CLAIMS {
            manager.unprepare(&claim(name).uid).unwrap();
        }
        machine.assert_state(&before, "in the end");
        prop_assert_eq!(machine.driver_files(), Vec::<String>::new());
    }
}
