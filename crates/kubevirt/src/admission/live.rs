//! What KubeVirt's validator sees in a cluster, which is not what the user wrote.
//!
//! KubeVirt's mutating webhook runs first. It refuses what its schema forbids ([`schema_violations`]), applies defaults,
//! and writes the specification again, which drops empty strings and empty lists ([`as_remarshalled`]).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, IgnoredAny};

use super::{Cause, CauseType};
use crate::vmi::{ClaimRequest, Workload};

/// The object as KubeVirt's mutating webhook hands it on.
///
/// A claim request with two empty names is none; an empty list of host devices is absent; a frame buffer without
/// `enabled` is on.
#[must_use]
pub fn as_remarshalled(mut workload: Workload) -> Workload {
    let is_vmi = matches!(workload, Workload::Vmi(_));
    let devices = &mut workload.vmi_mut().spec.domain.devices;
    for gpu in &mut devices.gpus {
        drop_empty(&mut gpu.claim_request);
        // The defaults of a VM's template are applied when its VMI is made.
        let display = gpu.virtual_gpu_options.as_mut().and_then(|options| options.display.as_mut());
        if let Some(ram_fb) = display.and_then(|display| display.ram_fb.as_mut()).filter(|_| is_vmi) {
            ram_fb.enabled.get_or_insert(true);
        }
    }
    for device in devices.host_devices.iter_mut().flatten() {
        drop_empty(&mut device.claim_request);
    }
    devices.host_devices.take_if(|devices| devices.is_empty());
    workload
}

fn drop_empty(request: &mut Option<ClaimRequest>) {
    request.take_if(|request| request.claim_name.is_empty() && request.request_name.is_empty());
}

/// The violations of KubeVirt's schema in the claims, GPUs, host devices and networks' claims of a JSON document: `null`
/// where a value must be, and unknown keys.
///
/// A cluster answers with these alone, before any rule is checked.
///
/// # Errors
///
/// The text is not JSON, or a list or object is of another type.
pub fn schema_violations(json: &str) -> Result<Vec<Cause>, serde_json::Error> {
    let object: Object<'_> = serde_json::from_str(json)?;
    let (prefix, spec) = match object.spec.template {
        Some(template) if object.kind == "VirtualMachine" => ("spec.template.spec", template.spec),
        _ => ("spec", Spec { template: None, ..object.spec }),
    };
    let devices = spec.domain.devices;
    let mut causes = Vec::new();
    check(&format!("{prefix}.domain.devices.gpus"), &devices.gpus, GPU_KEYS, &mut causes);
    check(&format!("{prefix}.domain.devices.hostDevices"), &devices.host_devices, HOST_DEVICE_KEYS, &mut causes);
    for network in &spec.networks {
        let list = format!("{prefix}.networks.resourceClaim");
        match &network.resource_claim {
            Presence::Absent => {}
            Presence::Null => causes.push(not_null(&list, "object")),
            Presence::Present(entry) => check(&list, std::slice::from_ref(entry), NETWORK_CLAIM_KEYS, &mut causes),
        }
    }
    check(&format!("{prefix}.resourceClaims"), &spec.resource_claims, CLAIM_KEYS, &mut causes);
    Ok(causes)
}

/// The keys of an entry and their types.
type Keys = &'static [(&'static str, &'static str)];

const GPU_KEYS: Keys = &[
    ("claimName", "string"),
    ("deviceName", "string"),
    ("name", "string"),
    ("requestName", "string"),
    ("tag", "string"),
    ("virtualGPUOptions", "object"),
];
const HOST_DEVICE_KEYS: Keys = &[
    ("claimName", "string"),
    ("deviceName", "string"),
    ("name", "string"),
    ("requestName", "string"),
    ("tag", "string"),
];
const CLAIM_KEYS: Keys =
    &[("name", "string"), ("resourceClaimName", "string"), ("resourceClaimTemplateName", "string")];
const NETWORK_CLAIM_KEYS: Keys = &[("claimName", "string"), ("requestName", "string")];

fn check(list: &str, entries: &[Entry<'_>], keys: Keys, causes: &mut Vec<Cause>) {
    for (key, is_null) in entries.iter().flatten() {
        match keys.iter().find(|(known, _)| known == key) {
            None => causes.push(untyped(format!("{list}.{key} in body is a forbidden property"))),
            Some((_, kind)) if is_null.0 => causes.push(not_null(&format!("{list}.{key}"), kind)),
            Some(_) => {}
        }
    }
}

fn not_null(field: &str, kind: &str) -> Cause {
    untyped(format!("{field} in body must be of type {kind}: \"null\""))
}

fn untyped(message: String) -> Cause {
    Cause { reason: CauseType::Untyped, message, field: String::new() }
}

type Entry<'a> = BTreeMap<Cow<'a, str>, IsNull>;

#[derive(serde::Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "crate::vmi::null_as_default")]
    spec: Spec<'a>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow)]
    template: Option<Box<Template<'a>>>,
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    resource_claims: Vec<Entry<'a>>,
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    domain: Domain<'a>,
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    networks: Vec<Network<'a>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Network<'a> {
    #[serde(borrow)]
    resource_claim: Presence<'a>,
}

/// An object that may be absent, which is not the same as `null`.
#[derive(Default)]
enum Presence<'a> {
    #[default]
    Absent,
    Null,
    Present(Entry<'a>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Presence<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Present))
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Template<'a> {
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    spec: Spec<'a>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Domain<'a> {
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    devices: Devices<'a>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Devices<'a> {
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    gpus: Vec<Entry<'a>>,
    #[serde(borrow, deserialize_with = "crate::vmi::null_as_default")]
    host_devices: Vec<Entry<'a>>,
}

/// Whether a value is `null`; the value itself is skipped.
struct IsNull(bool);

impl<'de> Deserialize<'de> for IsNull {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Option::<IgnoredAny>::deserialize(deserializer)?.is_none()))
    }
}
