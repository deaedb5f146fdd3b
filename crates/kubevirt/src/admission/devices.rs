//! Rules about GPUs and host devices, the requests they share with networks, and the claims they need.

use std::collections::{HashMap, HashSet};

use super::{CauseType, Report};
use crate::gates::{FeatureGates, Gate};
use crate::vmi::{ClaimRequest, Gpu, HostDevice, VmiSpec};

pub(super) fn validate(spec: &VmiSpec, gates: &FeatureGates, report: &mut Report) {
    let devices = &spec.domain.devices;
    let gpus: Vec<Device<'_>> = devices.gpus.iter().map(Device::from).collect();
    let host_devices: Vec<Device<'_>> = devices.host_devices().iter().map(Device::from).collect();
    let gpus = list(&Kind::GPUS, &gpus, gates, report);
    let host_devices = list(&Kind::HOST_DEVICES, &host_devices, gates, report);

    let mut owners = HashMap::new();
    merge(&mut owners, "GPUs", "domain.devices.gpus", &gpus.requests, report);
    merge(&mut owners, "HostDevices", "domain.devices.hostDevices", &host_devices.requests, report);
    if gates.is_enabled(Gate::NetworkDevicesWithDra) {
        merge(&mut owners, "Networks", "networks", &network_requests(spec), report);
    }
    missing_claims(spec, &[gpus, host_devices], report);
}

/// What the rules look at in a GPU or host device.
struct Device<'a> {
    is_dra: bool,
    device_name: &'a str,
    claim_request: Option<&'a ClaimRequest>,
}

impl<'a> From<&'a Gpu> for Device<'a> {
    fn from(gpu: &'a Gpu) -> Self {
        Self { is_dra: gpu.is_dra(), device_name: &gpu.device_name, claim_request: gpu.claim_request.as_ref() }
    }
}

impl<'a> From<&'a HostDevice> for Device<'a> {
    fn from(device: &'a HostDevice) -> Self {
        Self { is_dra: device.is_dra(), device_name: &device.device_name, claim_request: device.claim_request.as_ref() }
    }
}

/// A list of devices and its rules.
struct Kind {
    key: &'static str,
    name: &'static str,
    gate: Gate,
    /// Whether DRA devices and others may be in one list.
    may_mix: bool,
}

impl Kind {
    const GPUS: Self = Self { key: "gpus", name: "GPU", gate: Gate::GpusWithDra, may_mix: false };
    const HOST_DEVICES: Self =
        Self { key: "hostDevices", name: "HostDevice", gate: Gate::HostDevicesWithDra, may_mix: true };
}

/// The requests that the valid DRA devices of a list use.
#[derive(Default)]
struct Used<'a> {
    /// Each request with the index of the first device that uses it, by index.
    requests: Vec<(String, usize)>,
    /// Each claim with the index of the first device that uses it.
    claims: Vec<(&'a str, usize)>,
    key: &'static str,
}

fn list<'a>(kind: &Kind, devices: &[Device<'a>], gates: &FeatureGates, report: &mut Report) -> Used<'a> {
    let Kind { key, name, .. } = kind;
    let list = format_args!("domain.devices.{key}");
    let has_dra = devices.iter().any(|device| device.is_dra);
    if !kind.may_mix && has_dra && !devices.iter().all(|device| device.is_dra) {
        report.add(
            CauseType::Invalid,
            list,
            format!("{list} mixes {name}s of DRA claims with other {name}s: either all or none may come from claims"),
        );
        return Used::default();
    }
    for device in devices.iter().filter(|device| !device.is_dra) {
        if device.device_name.is_empty() {
            let message =
                format!("{list} has a {name} without a source: each needs a deviceName, or claimName and requestName");
            report.add(CauseType::Required, list, message);
        } else if device.claim_request.is_some() {
            let message = format!("{list} has a {name} with both a deviceName and a claim: they exclude each other");
            report.add(CauseType::Invalid, list, message);
        }
    }
    if has_dra && !gates.is_enabled(kind.gate) {
        let message = format!("{list} has {name}s of DRA claims, but the feature gate {} is not enabled", kind.gate);
        report.add_gate(kind.gate, list, message);
        return Used::default();
    }

    let mut used = Used { key, ..Used::default() };
    let mut pairs = HashSet::with_capacity(devices.len());
    let mut claims = HashSet::new();
    for (index, device) in devices.iter().enumerate() {
        let Some(request) = device.claim_request.filter(|_| device.is_dra) else { continue };
        let entry = format_args!("{list}[{index}]");
        if request.claim_name.is_empty() {
            let message = format!("claimName is required for a DRA {name}");
            report.add(CauseType::Required, format_args!("{entry}.claimName"), message);
        }
        if request.request_name.is_empty() {
            let message = format!("requestName is required for a DRA {name}");
            report.add(CauseType::Required, format_args!("{entry}.requestName"), message);
        }
        let Some(pair) = pair(request) else { continue };
        if claims.insert(&*request.claim_name) {
            used.claims.push((&request.claim_name, index));
        }
        if pairs.contains(&pair) {
            report.add(CauseType::Duplicate, entry, format!("duplicate claimName/requestName pair {pair:?}"));
        } else {
            pairs.insert(pair.clone());
            used.requests.push((pair, index));
        }
    }
    used
}

/// The text by which KubeVirt compares requests, if both names are there.
pub(super) fn pair(request: &ClaimRequest) -> Option<String> {
    let ClaimRequest { claim_name, request_name } = request;
    (!claim_name.is_empty() && !request_name.is_empty()).then(|| format!("{claim_name}/{request_name}"))
}

/// The first use of each request by a network, by index.
fn network_requests(spec: &VmiSpec) -> Vec<(String, usize)> {
    let mut seen = HashSet::new();
    let pairs = spec.networks.iter().enumerate().filter_map(|(index, network)| {
        let pair = pair(network.resource_claim.as_ref()?)?;
        seen.insert(pair.clone()).then_some((pair, index))
    });
    pairs.collect()
}

/// Reports the requests that another kind of device already uses, and remembers the others.
fn merge<'a>(
    owners: &mut HashMap<&'a str, (&'static str, usize)>,
    kind: &'static str,
    list: &'static str,
    requests: &'a [(String, usize)],
    report: &mut Report,
) {
    for (pair, index) in requests {
        if let Some((owner, first)) = owners.get(&**pair) {
            report.add(
                CauseType::Duplicate,
                format_args!("{list}[{index}]"),
                format!("duplicate claimName/requestName pair {pair:?} between {owner}[{first}] and {kind}[{index}]"),
            );
        } else {
            owners.insert(pair, (kind, *index));
        }
    }
}

/// The most missing claims that one message names; a message is shown on a terminal.
const MAX_NAMED: usize = 5;

/// One cause for all missing claims, as KubeVirt does. Networks have a rule of their own.
fn missing_claims(spec: &VmiSpec, used: &[Used<'_>], report: &mut Report) {
    let known: HashSet<&str> = spec.resource_claims.iter().map(|claim| &*claim.name).collect();
    let mut missing: Vec<String> = used
        .iter()
        .flat_map(|list| list.claims.iter().map(|(claim, index)| (list.key, *claim, *index)))
        .filter(|(_, claim, _)| !known.contains(claim))
        .map(|(key, claim, index)| format!("{claim:?} (used by {key}[{index}])"))
        .collect();
    if missing.is_empty() {
        return;
    }
    let others = missing.len().saturating_sub(MAX_NAMED);
    if others > 0 {
        missing.truncate(MAX_NAMED);
        missing.push(format!("and {others} more"));
    }
    let rule = "resourceClaims must have every claim that domain.devices.gpus and domain.devices.hostDevices use";
    let message =
        if report.behaviour.is_strict() { rule.to_owned() } else { format!("{rule}: missing {}", missing.join(", ")) };
    report.add(CauseType::Invalid, "resourceClaims", message);
}
