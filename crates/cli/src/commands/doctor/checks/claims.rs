//! The driver's records against the kubelet's checkpoint and the API server's claims.

use drakkar_kubelet_api::checkpoint::ClaimState;
use drakkar_plugin::node_files::ClaimRecord;
use serde_json::Value;

use crate::commands::doctor::finding::{Finding, count, or_ok};
use crate::commands::doctor::kind::Kind;
use crate::node_facts::api::Answer;
use crate::node_facts::{Checkpoint, DriverFacts, Facts};

/// Returns the readable records of a driver.
fn records_of(driver: &DriverFacts) -> impl Iterator<Item = &ClaimRecord> {
    driver.files.claims.iter().filter_map(|claim| claim.record.as_ref().ok())
}

pub(super) fn checkpoint(facts: &Facts) -> Vec<Finding> {
    let file = facts.node.kubelet_dir.join(drakkar_kubelet_api::checkpoint::FILE);
    let claims = match &facts.node.checkpoint {
        Checkpoint::Read(claims) => claims,
        Checkpoint::Missing => {
            return vec![Finding::skipped(format!(
                "{} does not exist: the kubelet has had no claim yet",
                file.display()
            ))];
        }
        Checkpoint::Denied(problem) => {
            return vec![Finding::skipped(format!("{}: {problem}; run as root", file.display()))];
        }
        Checkpoint::Unreadable(problem) => {
            return vec![Finding::problem(
                Kind::CheckpointUnreadable,
                format!("{}: {problem}", file.display()),
                "the kubelet does not start with it: drain the node, remove the file, restart the kubelet",
            )];
        }
    };
    let mut findings = Vec::new();
    for driver in &facts.node.drivers {
        let mut problems: Vec<Finding> = records_of(driver)
            .filter(|record| !claims.iter().any(|claim| claim.claim_uid == record.claim.uid.as_str()))
            .map(|record| {
                Finding::problem(
                    Kind::ClaimUnknownToKubelet,
                    format!(
                        "{}: claim {} is prepared, and the kubelet will never unprepare it",
                        driver.name, record.claim
                    ),
                    format!(
                        "if no pod uses it: kubectl delete resourceclaim -n {} {}; after its next start, the driver unprepares it",
                        record.claim.namespace, record.claim.name
                    ),
                )
            })
            .collect();
        let of_driver = || claims.iter().filter(|claim| claim.driver_state.contains_key(driver.name.as_str()));
        problems.extend(of_driver().filter_map(|claim| not_prepared(driver, claim)));
        findings.extend(or_ok(problems, || {
            format!("{}: the kubelet's checkpoint has the same {}", driver.name, count(of_driver().count(), "claim"))
        }));
    }
    findings
}

/// A claim that the kubelet counts on and the driver has no files of. A driver that uses neither metadata nor container edits has
/// no records, so only a claim with one of their CDI devices is judged.
fn not_prepared(driver: &DriverFacts, claim: &ClaimState) -> Option<Finding> {
    let devices = &claim.driver_state.get(driver.name.as_str())?.devices;
    let ids = devices.iter().flat_map(|device| &device.cdi_device_ids);
    let kinds =
        [drakkar_cdi::METADATA_CLASS, drakkar_cdi::DEVICE_CLASS].map(|class| format!("{}/{class}=", driver.name));
    let has_record = || records_of(driver).any(|record| record.claim.uid.as_str() == claim.claim_uid);
    let is_ours = ids.into_iter().any(|id| kinds.iter().any(|kind| id.starts_with(kind)));
    (is_ours && driver.files.is_complete() && !has_record()).then(|| {
        let ClaimState { namespace, claim_name, claim_uid, .. } = claim;
        Finding::problem(
            Kind::ClaimNotPrepared,
            format!(
                "{}: the kubelet has claim {namespace}/{claim_name} (uid {claim_uid}) as prepared, the driver does not",
                driver.name
            ),
            "systemctl restart kubelet: it prepares the claim again before it starts a container with it",
        )
    })
}

pub(super) fn api_claims(facts: &Facts) -> Vec<Finding> {
    let Some(api) = facts.api.facts() else {
        return vec![Finding::skipped("claims in the API server: it was not asked")];
    };
    let mut findings = Vec::new();
    for driver in &facts.node.drivers {
        let mut problems = Vec::new();
        let mut agreed = 0;
        let mut not_asked = 0;
        for record in records_of(driver) {
            let key = (record.claim.namespace.to_string(), record.claim.name.to_string());
            match api.claims.get(&key) {
                Some(Answer::Got(found)) => match compare(driver, record, found.as_ref()) {
                    Some(problem) => problems.push(problem),
                    None => agreed += 1,
                },
                Some(Answer::Forbidden(message)) => {
                    problems.push(Finding::problem(
                        Kind::ApiForbidden,
                        format!("get resourceclaims: {message}"),
                        "a driver needs this permission: see the RBAC rules of its manifests",
                    ));
                    // The same for all others.
                    break;
                }
                Some(Answer::Failed(message)) => problems.push(Finding::skipped(message.clone())),
                None => not_asked += 1,
            }
        }
        if not_asked > 0 {
            problems.push(Finding::skipped(format!("{not_asked} further claims of {} were not compared", driver.name)));
        }
        findings.extend(or_ok(problems, || {
            format!("{}: {} as allocated in the API server", driver.name, count(agreed, "prepared claim"))
        }));
    }
    findings
}

fn compare(driver: &DriverFacts, record: &ClaimRecord, found: Option<&Value>) -> Option<Finding> {
    let unprepare = || format!("delete the pod of {}: its next start unprepares what is gone", driver.name);
    let name = &driver.name;
    let Some(claim) = found else {
        return Some(Finding::problem(
            Kind::ClaimGone,
            format!("{name}: claim {} is prepared and no longer exists in the API server", record.claim),
            unprepare(),
        ));
    };
    let uid = claim.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    if uid != record.claim.uid.as_str() {
        return Some(Finding::problem(
            Kind::ClaimReplaced,
            format!("{name}: claim {} is prepared; the claim of that name now has uid {uid}", record.claim),
            unprepare(),
        ));
    }
    let differs = |what: String| {
        Some(Finding::problem(
            Kind::AllocationDiffers,
            format!("{name}: claim {}: {what}", record.claim),
            "delete the pods that use the claim: the kubelet then unprepares it",
        ))
    };
    let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    let Some(results) = results else { return differs("it is prepared and not allocated".to_owned()) };
    let is_allocated = |pool: &str, device: &str| {
        results.iter().any(|result| {
            result["driver"] == driver.name.as_str() && result["pool"] == pool && result["device"] == device
        })
    };
    let recorded = record.requests.values().flat_map(|request| &request.devices);
    let recorded = recorded.map(|device| (&device.pool, &device.name));
    let used = record.uses.iter().map(|device| (&device.pool, &device.name));
    let other = recorded.chain(used).find(|(pool, device)| !is_allocated(pool, device))?;
    differs(format!("device {}/{} is prepared and not allocated", other.0, other.1))
}
