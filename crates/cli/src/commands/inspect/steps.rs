//! The steps of a claim, up to the files on the host.

use drakkar_cdi::MetadataDevice;
use drakkar_plugin::node_files::ClaimRecord;
use serde::Serialize;
use serde_json::Value;

use super::ClaimId;
use crate::commands::doctor::{count, difference, spec_difference};
use crate::commands::node::timestamp;
use crate::node_facts::claims::{ClaimDirectory, FileContent};
use crate::node_facts::{Checkpoint, DriverFacts, NodeFiles};

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StepStatus {
    Ok,
    Missing,
    Differs,
    Skipped,
}

/// One step on the way of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// Who was looked at: `API server`, `Kubelet`, `Driver NAME` or `Containers`.
    pub(super) place: String,
    pub(super) status: StepStatus,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Step {
    pub(super) fn ok(place: &str, message: impl Into<String>) -> Self {
        Self { place: place.to_owned(), status: StepStatus::Ok, message: message.into(), remedy: None }
    }

    pub(super) fn skipped(place: &str, message: impl Into<String>) -> Self {
        Self { status: StepStatus::Skipped, ..Self::ok(place, message) }
    }

    fn missing(place: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: StepStatus::Missing, remedy: Some(remedy.into()), ..Self::ok(place, message) }
    }

    fn differs(place: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: StepStatus::Differs, remedy: Some(remedy.into()), ..Self::ok(place, message) }
    }
}

const API: &str = "API server";
const KUBELET: &str = "Kubelet";

/// The claim in the API server. `problem` is why it could not be asked.
pub(super) fn api(claim: &ClaimId, object: Option<&Value>, problem: Option<&str>) -> Vec<Step> {
    let Some(object) = object else {
        return vec![match problem {
            Some(problem) => Step::skipped(API, problem),
            None => Step::missing(
                API,
                "the claim does not exist, but is prepared here",
                "delete the driver's pod: its next start unprepares what is gone",
            ),
        }];
    };
    let mut steps = Vec::new();
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    if uid != claim.uid {
        let remedy = "delete the driver's pod: its next start unprepares the old claim";
        steps.push(Step::differs(API, format!("the claim of that name has uid {uid}"), remedy));
        return steps;
    }
    let results = allocated(object);
    if results.is_empty() {
        let remedy = "kubectl describe pod: the scheduler's events say why";
        steps.push(Step::missing(API, "the claim is not allocated", remedy));
    } else {
        let devices: Vec<String> = results.iter().map(|result| format!("{} → {result}", result.request)).collect();
        steps.push(Step::ok(API, format!("allocated: {}", devices.join(", "))));
    }
    let consumers = object.pointer("/status/reservedFor").and_then(Value::as_array).into_iter().flatten();
    let consumers: Vec<String> = consumers
        .filter_map(|consumer| {
            let text = |name: &str| consumer.get(name).and_then(Value::as_str);
            let resource = text("resource")?;
            let resource = if resource == "pods" { "pod" } else { resource };
            Some(format!("{resource} {} (uid {})", text("name")?, text("uid")?))
        })
        .collect();
    steps.push(match consumers.is_empty() {
        true => Step::missing(
            API,
            "reserved for no pod",
            "the kubelet prepares a claim only for a pod in status.reservedFor",
        ),
        false => Step::ok(API, format!("reserved for {}", consumers.join(", "))),
    });
    let reported = object.pointer("/status/devices").and_then(Value::as_array).map_or(0, Vec::len);
    steps.push(match reported {
        0 => Step::skipped(API, "status.devices: the drivers have reported nothing"),
        number => Step::ok(API, format!("status.devices has {number} of {} devices", results.len())),
    });
    steps
}

/// A device of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Allocated {
    request: String,
    driver: String,
    pool: String,
    device: String,
}

impl std::fmt::Display for Allocated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

fn allocated(object: &Value) -> Vec<Allocated> {
    let results = object.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    let text = |result: &Value, name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let results = results.into_iter().flatten();
    results
        .map(|result| Allocated {
            request: text(result, "request"),
            driver: text(result, "driver"),
            pool: text(result, "pool"),
            device: text(result, "device"),
        })
        .collect()
}

/// The claim on the node: in the kubelet's checkpoint, and in the files of each driver.
pub(super) fn on_node(claim: &ClaimId, object: Option<&Value>, node: &NodeFiles) -> Vec<Step> {
    let allocated = object.map(allocated).unwrap_or_default();
    let mut steps = vec![checkpoint(claim, node)];
    let uses = |driver: &DriverFacts| {
        allocated.iter().any(|device| device.driver == driver.name.as_str())
            || node
                .checkpoint
                .claim(&claim.uid)
                .is_some_and(|known| known.driver_state.contains_key(driver.name.as_str()))
            || record_of(driver, claim).is_some()
    };
    for driver in node.drivers.iter().filter(|driver| uses(driver)) {
        steps.extend(of_driver(claim, &allocated, driver, node));
    }
    let is_here = |name: &str| node.drivers.iter().any(|driver| driver.name.as_str() == name);
    let mut elsewhere: Vec<&str> =
        allocated.iter().map(|device| &*device.driver).filter(|driver| !is_here(driver)).collect();
    elsewhere.dedup();
    steps.extend(elsewhere.into_iter().map(|driver| {
        let remedy = "the claim is for another node, or the driver does not run here: kubectl get pods -A -o wide";
        Step::missing(&format!("Driver {driver}"), "it has neither sockets nor records on this node", remedy)
    }));
    steps
}

fn checkpoint(claim: &ClaimId, node: &NodeFiles) -> Step {
    match (&node.checkpoint, node.checkpoint.claim(&claim.uid)) {
        (_, Some(known)) => {
            let pods: Vec<&str> = known.pod_uids.iter().map(String::as_str).collect();
            let ids = known.driver_state.values().flat_map(|state| &state.devices);
            let ids: usize = ids.map(|device| device.cdi_device_ids.len()).sum();
            Step::ok(
                KUBELET,
                format!("checkpoint: prepared for pod {}, with {}", pods.join(", "), count(ids, "CDI device")),
            )
        }
        (Checkpoint::Missing, _) => Step::skipped(KUBELET, "there is no checkpoint: the kubelet has had no claim yet"),
        (Checkpoint::Denied(problem), _) => Step::skipped(KUBELET, format!("checkpoint: {problem}; run as root")),
        (Checkpoint::Unreadable(problem), _) => Step::skipped(KUBELET, format!("checkpoint: {problem}")),
        (Checkpoint::Read(_), None) => {
            let other = node
                .checkpoint
                .claims()
                .iter()
                .find(|other| other.namespace == claim.namespace && other.claim_name == claim.name);
            match other {
                Some(other) => Step::differs(
                    KUBELET,
                    format!("checkpoint: the claim of that name has uid {}", other.claim_uid),
                    "delete the pods that use the old claim",
                ),
                None => Step::missing(
                    KUBELET,
                    "checkpoint: the kubelet has not prepared the claim",
                    "kubectl describe pod: its events say why, FailedPrepareDynamicResources for example",
                ),
            }
        }
    }
}

fn record_of<'a>(driver: &'a DriverFacts, claim: &ClaimId) -> Option<(&'a ClaimDirectory, &'a ClaimRecord)> {
    let records = driver.files.claims.iter().filter_map(|directory| Some((directory, directory.record.as_ref().ok()?)));
    records.into_iter().find(|(_, record)| record.claim.uid.as_str() == claim.uid)
}

fn of_driver(claim: &ClaimId, allocated: &[Allocated], driver: &DriverFacts, node: &NodeFiles) -> Vec<Step> {
    let place = format!("Driver {}", driver.name);
    let restart = format!("delete the pod of {}: its next start repairs it; `drakkar doctor` says more", driver.name);
    let Some((directory, record)) = record_of(driver, claim) else {
        return vec![Step::missing(
            &place,
            format!(
                "no state record below {}: not prepared, or a driver without metadata and edits",
                driver.path.display()
            ),
            "kubectl logs of the driver: `claim prepared`, or why it failed",
        )];
    };
    let mut steps = vec![record_step(&place, allocated, driver, directory, record)];
    for (name, request) in &record.requests {
        let found = directory.requests.iter().find(|found| found.name == name.as_str());
        let step = match found.map(|found| (found, &found.content)) {
            Some((found, FileContent::Valid(metadata))) => match difference(driver, record, found, metadata) {
                Some(difference) => Step::differs(&place, format!("{}: {difference}", found.file.display()), &restart),
                None => {
                    let devices = metadata.requests.iter().flat_map(|request| &request.devices);
                    let devices: Vec<&str> = devices.map(|device| &*device.name).collect();
                    let generation = metadata.metadata.generation;
                    let file = found.file.display();
                    Step::ok(&place, format!("file {file}: generation {generation}, devices {}", devices.join(", ")))
                }
            },
            Some((found, FileContent::NotWritten)) => {
                Step::skipped(&place, format!("file {}: the driver has not written it yet", found.file.display()))
            }
            Some((found, FileContent::Invalid(problem))) => {
                Step::differs(&place, format!("file {}: {problem}", found.file.display()), &restart)
            }
            Some((_, FileContent::Missing)) | None => {
                Step::missing(&place, format!("request {name}: no metadata file"), &restart)
            }
        };
        steps.push(step);
        let device = MetadataDevice::new(driver.name.clone(), record.claim.uid.clone(), name.clone());
        if let Ok(device) = device {
            steps.push(spec_step(&place, directory, record, &device, request.gated, node, &restart));
        }
    }
    steps
}

fn record_step(
    place: &str,
    allocated: &[Allocated],
    driver: &DriverFacts,
    directory: &ClaimDirectory,
    record: &ClaimRecord,
) -> Step {
    let path = directory.path.display();
    let of_driver = |device: &&Allocated| device.driver == driver.name.as_str();
    let is_recorded = |wanted: &Allocated| {
        let requested = record.requests.values().flat_map(|request| &request.devices);
        requested.map(|device| (&device.pool, &device.name)).any(|device| device == (&wanted.pool, &wanted.device))
            || record.uses.iter().any(|used| used.pool == wanted.pool && used.name == wanted.device)
    };
    // Without an object nothing can differ. A record without any device is that of devices with admin access and edits.
    let has_devices = !record.uses.is_empty() || record.requests.values().any(|request| !request.devices.is_empty());
    match allocated.iter().filter(of_driver).find(|device| !is_recorded(device)) {
        Some(device) if has_devices => Step::differs(
            place,
            format!("record in {path}: {device} is allocated and not prepared"),
            "delete the pods that use the claim: the kubelet then prepares it again",
        ),
        _ => {
            let since = directory.since.and_then(timestamp).map(|since| format!(", since {since}")).unwrap_or_default();
            Step::ok(place, format!("record in {path}{since}"))
        }
    }
}

fn spec_step(
    place: &str,
    directory: &ClaimDirectory,
    record: &ClaimRecord,
    device: &MetadataDevice,
    is_gated: bool,
    node: &NodeFiles,
    restart: &str,
) -> Step {
    let name = device.file_name();
    let contents = node.cdi.iter().filter_map(|directory| directory.content.as_ref().ok());
    let mut files = contents.flat_map(|content| &content.specs);
    let file = files.find(|file| file.path.file_name().is_some_and(|found| found == name));
    let Some(file) = file else {
        return match is_gated {
            true => Step::skipped(place, format!("CDI spec {name}: withheld until the driver's first update")),
            false => Step::missing(place, format!("CDI spec {name}: in none of the directories"), restart),
        };
    };
    let path = file.path.display();
    let spec = match &file.spec {
        Ok(spec) => spec,
        Err(problem) => return Step::differs(place, format!("CDI spec {path}: {problem}"), restart),
    };
    if let Some(difference) = spec_difference(spec, device, record, &directory.path) {
        return Step::differs(place, format!("CDI spec {path}: {difference}"), restart);
    }
    let mounts = spec.devices.iter().flat_map(|device| &device.container_edits.mounts);
    let targets: Vec<&str> = mounts.map(|mount| &*mount.container_path).collect();
    Step::ok(place, format!("CDI spec {path}: mounts it at {}", targets.join(" and ")))
}
