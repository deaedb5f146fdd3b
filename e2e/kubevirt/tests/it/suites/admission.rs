//! Admission: the causes of a rejection, by type and field. Messages are ours. Their order and number is compared for the rules
//! alone; not for webhooks, which run the rules about networks twice.

use std::collections::BTreeSet;

use drakkar_kubevirt::admission::{Cause, CauseType, as_remarshalled, schema_violations, validate};
use drakkar_kubevirt::vmi::Workload;
use drakkar_kubevirt::{Behaviour, FeatureGates};
use serde_json::{Value, json};

use super::{configuration, file, kubevirt};
use crate::suite::Suite;

/// The number of causes that a webhook returns; the message counts the others.
const MAX_CAUSES: usize = 10;

/// The rules about claims and networks alone, on the VMI as the user wrote it.
pub const RULES: Suite = Suite {
    name: "admission-rules",
    full: false,
    cases: || file("admission"),
    question: |case| question("rules", case),
    ours: |case, _, behaviour| {
        // Two rules that need the full program.
        let neighbours = ["spec.GPUs", "spec.HostDevices"];
        let causes = ours(&workload(case), case, behaviour);
        let causes = causes.into_iter().filter(|cause| !neighbours.contains(&&*cause.field));
        in_order(causes.map(|cause| (cause.reason.to_string(), cause.field)).collect())
    },
    theirs: |answer| {
        let causes = ["network", "dra"].map(|rules| answer["answer"][rules].as_array().unwrap());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        in_order(causes.into_iter().flatten().map(|cause| (text(&cause["reason"]), text(&cause["field"]))).collect())
    },
};

/// What a cluster answers: the mutating webhook, then the validating one.
pub const LIVE: Suite = Suite {
    name: "admission-live",
    full: true,
    cases: live_cases,
    question: |case| question("admit", case),
    ours: |case, _, behaviour| {
        let violations = schema_violations(&case["vmi"].to_string()).unwrap();
        if !violations.is_empty() {
            // Untyped causes differ in their messages only, so those are compared.
            let messages: BTreeSet<String> = violations.into_iter().map(|cause| cause.message).collect();
            return json!({"by": "mutating", "messages": messages});
        }
        response(ours(&as_remarshalled(workload(case)), case, behaviour))
    },
    theirs: |answer| {
        let review = &answer["answer"];
        if review["by"] == "mutating" {
            let causes = review["causes"].as_array().unwrap();
            let messages: BTreeSet<&str> = causes.iter().map(|cause| cause["message"].as_str().unwrap()).collect();
            return json!({"by": "mutating", "messages": messages});
        }
        their_response(review)
    },
};

/// The same with the rules about networks applied once, so that more than ten causes can be counted.
pub const LIVE_ONCE: Suite =
    Suite { name: "admission-live-once", question: |case| question("admit-once", case), ..LIVE };

/// The validating webhook, on the VMI as the user wrote it.
pub const UNMUTATED: Suite = Suite {
    name: "admission-unmutated",
    full: true,
    cases: || file("admission"),
    question: |case| question("admit-unmutated", case),
    ours: |case, _, behaviour| response(ours(&workload(case), case, behaviour)),
    theirs: |answer| their_response(&answer["answer"]),
};

/// The same VMIs as templates of VMs.
pub const VIRTUAL_MACHINE: Suite = Suite {
    name: "admission-vm",
    full: true,
    cases: || file("admission"),
    question: |case| json!({"kind": "vm-rules", "configuration": configuration(case), "vm": virtual_machine(case)}),
    ours: |case, _, behaviour| {
        let workload = Workload::from_json(&virtual_machine(case).to_string()).unwrap();
        comparable(ours(&workload, case, behaviour).into_iter())
    },
    theirs: |answer| comparable_causes(answer["answer"]["causes"].as_array().unwrap().iter()),
};

/// The cases of the file, and what only a cluster sees: the mutating webhook's schema, and more than ten causes.
fn live_cases() -> Vec<(String, Value)> {
    let claim = json!([{"name": "c", "resourceClaimName": "c"}]);
    let gpus = |gpus: Value| json!({"resourceClaims": claim, "domain": {"devices": {"gpus": gpus}}});
    let host_devices =
        |devices: Value| json!({"resourceClaims": claim, "domain": {"devices": {"hostDevices": devices}}});
    let request = json!({"name": "g", "claimName": "c", "requestName": "r"});
    let many: Vec<Value> = (0..21).map(|index| json!({"name": format!("g{index}"), "claimName": "c"})).collect();
    let specs = [
        ("null-claim-name", gpus(json!([{"name": "g", "claimName": null, "requestName": "r"}]))),
        (
            "null-resource-claim",
            json!({"resourceClaims": [{"name": "c", "resourceClaimName": null}], "domain": {"devices": {}}}),
        ),
        ("unknown-key", gpus(json!([{"name": "g", "claimName": "c", "requestName": "r", "foo": 1}]))),
        ("empty-claim-name", gpus(json!([{"name": "g", "claimName": ""}]))),
        ("empty-beside-dra", gpus(json!([request, {"name": "g2", "claimName": ""}]))),
        ("no-name", gpus(json!([{"claimName": "c", "requestName": "r"}]))),
        ("empty-host-devices", host_devices(json!([]))),
        ("more-than-ten", gpus(many.into())),
    ];
    let case = |(id, mut spec): (&str, Value)| {
        spec["domain"]["memory"] = json!({"guest": "128Mi"});
        spec["architecture"] = "amd64".into();
        (id.to_owned(), json!({"vmi": super::new_vmi(&spec), "configuration": {}}))
    };
    file("admission").into_iter().chain(specs.map(case)).collect()
}

fn question(kind: &str, case: &Value) -> Value {
    json!({"kind": kind, "configuration": configuration(case), "vmi": case["vmi"]})
}

fn virtual_machine(case: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": {"runStrategy": "Halted", "template": {"spec": case["vmi"]["spec"]}},
    })
}

fn workload(case: &Value) -> Workload {
    Workload::from_json(&case["vmi"].to_string()).unwrap()
}

fn ours(workload: &Workload, case: &Value, behaviour: Behaviour) -> Vec<Cause> {
    validate(workload, &FeatureGates::from_kubevirt(&kubevirt(case)), behaviour)
}

/// Causes in their order, except that repeated pairs of names are sorted: KubeVirt finds them in a hash map.
fn in_order(mut causes: Vec<(String, String)>) -> Value {
    for run in causes.chunk_by_mut(|first, second| first.0 == second.0) {
        if run[0].0 == CauseType::Duplicate.as_str() {
            run.sort();
        }
    }
    causes.into_iter().map(|(reason, field)| format!("{reason} {field}")).collect()
}

fn comparable(causes: impl Iterator<Item = Cause>) -> Value {
    causes.map(|cause| format!("{} {}", cause.reason, cause.field)).collect::<BTreeSet<_>>().into_iter().collect()
}

fn comparable_causes<'a>(causes: impl Iterator<Item = &'a Value>) -> Value {
    let text = |cause: &Value| format!("{} {}", cause["reason"].as_str().unwrap(), cause["field"].as_str().unwrap());
    causes.map(text).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Our answer as a webhook: more causes than it returns are compared by their number alone, since KubeVirt returns some of
/// them.
fn response(causes: Vec<Cause>) -> Value {
    if causes.len() > MAX_CAUSES {
        return json!({"more": causes.len() - MAX_CAUSES});
    }
    comparable(causes.into_iter())
}

fn their_response(review: &Value) -> Value {
    let more =
        |message: &str| message.strip_suffix(" more validation errors")?.rsplit(' ').next()?.parse::<usize>().ok();
    match review["message"].as_str().and_then(more) {
        Some(more) => json!({"more": more}),
        None => comparable_causes(review["causes"].as_array().unwrap().iter()),
    }
}
