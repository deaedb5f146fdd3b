//! Feature gates: which are enabled in a cluster.

use drakkar_kubevirt::{FeatureGates, Gate};
use serde_json::{Value, json};

use super::{configuration, kubevirt};
use crate::suite::Suite;

pub const GATES: Suite = Suite {
    name: "gates",
    full: false,
    cases,
    question: |case| json!({"kind": "gates", "configuration": configuration(case)}),
    ours: |case, _, _| {
        let gates = FeatureGates::from_kubevirt(&kubevirt(case));
        // Those that the program knows by name.
        let about_hooks = |gate: &Gate| matches!(gate, Gate::Sidecar | Gate::Plugins);
        let enabled = Gate::ALL.into_iter().filter(|gate| !about_hooks(gate) && gates.is_enabled(*gate));
        enabled.map(Gate::name).collect()
    },
    theirs: |answer| answer["answer"]["enabled"].clone(),
};

fn cases() -> Vec<(String, Value)> {
    let names: Vec<&str> = Gate::ALL.into_iter().map(Gate::name).collect();
    let lists = |enabled: &[&str], disabled: &[&str]| json!({"gates": {"enabled": enabled, "disabled": disabled}});
    let mut cases = vec![
        ("default".to_owned(), json!({"configuration": {}})),
        ("all-on".to_owned(), lists(&names, &[])),
        ("all-off".to_owned(), lists(&[], &names)),
        ("all-in-both".to_owned(), lists(&names, &names)),
        ("unknown".to_owned(), lists(&["NoSuchGate", "gpuswithdra"], &["NoSuchGate", "gpuswithdra"])),
    ];
    for name in names {
        cases.push((format!("{name}-on"), lists(&[name], &[])));
        cases.push((format!("{name}-off"), lists(&[], &[name])));
    }
    cases
}
