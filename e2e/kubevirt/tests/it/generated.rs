//! Random cases, the same in each run, to both sides at once. A difference is reduced to the smallest case that has it.

use crate::generate;
use crate::suites::{admission, devices, gates, metadata};
use crate::support::light;

/// The number of random cases of each kind, and of those with files.
const CASES: usize = 1000;
const CASES_WITH_FILES: usize = 300;

#[test]
fn random_configurations_enable_the_same_gates() {
    let Some(program) = light() else { return };
    let cases = generate::generated(&generate::configuration(), CASES);
    let cases = cases.into_iter().map(|configuration| serde_json::json!({"configuration": configuration})).collect();
    gates::GATES.compare_generated(program, cases, 20);
}

#[test]
fn random_vmis_break_the_same_rules() {
    let Some(program) = light() else { return };
    admission::RULES.compare_generated(program, generate::generated(&generate::admission(), CASES), 300);
}

#[test]
fn random_files_resolve_alike() {
    let Some(program) = light() else { return };
    metadata::RESOLUTION.compare_generated(program, generate::generated(&generate::resolution(), CASES_WITH_FILES), 10);
}

#[test]
fn random_devices_become_the_same_elements() {
    let Some(program) = light() else { return };
    devices::DRA.compare_generated(program, generate::generated(&generate::devices(), CASES_WITH_FILES), 30);
}

#[cfg(feature = "full")]
mod full {
    use super::*;
    use crate::suites::render;
    use crate::support::full;

    #[test]
    fn random_vmis_pass_both_webhooks_alike() {
        let Some(program) = full() else { return };
        admission::LIVE_ONCE.compare_generated(program, generate::generated(&generate::admission(), CASES), 300);
    }

    #[test]
    fn random_virtual_machines_break_the_same_rules() {
        let Some(program) = full() else { return };
        admission::VIRTUAL_MACHINE.compare_generated(program, generate::generated(&generate::admission(), CASES), 300);
    }

    #[test]
    fn random_vmis_have_the_same_pod() {
        let Some(program) = full() else { return };
        render::RENDER.compare_generated(program, generate::generated(&generate::admission(), CASES), 300);
    }

    #[test]
    fn random_devices_of_all_kinds_become_the_same_domain() {
        let Some(program) = full() else { return };
        devices::DOMAIN.compare_generated(program, generate::generated(&generate::domain(), CASES_WITH_FILES), 30);
    }

    #[test]
    fn random_domains_are_placed_alike() {
        let Some(program) = full() else { return };
        devices::NUMA.compare_generated(program, generate::generated(&generate::numa(), CASES), 100);
    }
}
