//! Metadata files: the addresses of a request, and the text of PCI addresses.

use std::path::Path;

use drakkar_kubevirt::Behaviour;
use drakkar_kubevirt::hostdev::PciFields;
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::ClaimRequest;
use serde_json::{Value, json};

use super::{failed, file, vmi};
use crate::suite::Suite;

/// The PCI address and the UUID of a request.
pub const RESOLUTION: Suite = Suite {
    name: "resolution",
    full: false,
    cases: lookups,
    question: |case| json!({"kind": "resolve", "vmi": case["vmi"], "claim": case["claim"], "request": case["request"]}),
    ours: |case, root, behaviour| {
        let claims = vmi(case).spec.resource_claims;
        let name = |member: &str| case[member].as_str().unwrap().to_owned();
        let request = ClaimRequest { claim_name: name("claim"), request_name: name("request") };
        let resolver = resolver(root, behaviour);
        json!({
            "pci": resolver.pci_bus_id(&claims, &request).map_or_else(failed, Value::from),
            "mdev": resolver.mdev_uuid(&claims, &request).map_or_else(failed, Value::from),
        })
    },
    theirs: |answer| {
        let outcome = |kind: &str| {
            let outcome = &answer["answer"][kind];
            outcome.get("value").cloned().unwrap_or_else(|| failed(()))
        };
        json!({"pci": outcome("pci"), "mdev": outcome("mdev")})
    },
};

/// Names that KubeVirt's reader takes for file patterns. Ours are literal in both behaviours.
pub const PATTERNS: Suite = Suite { name: "patterns", cases: patterns, ..RESOLUTION };

/// The text of a PCI address.
pub const PCI_TEXT: Suite = Suite {
    name: "pci-text",
    full: false,
    cases: || file("pci-text"),
    question: |case| json!({"kind": "pci", "text": case["text"]}),
    ours: |case, _, behaviour| {
        let fields = PciFields::parse(case["text"].as_str().unwrap(), behaviour);
        fields.map_or_else(failed, |fields| json!([fields.domain, fields.bus, fields.slot, fields.function]))
    },
    theirs: |answer| answer.get("answer").cloned().unwrap_or_else(|| failed(())),
};

/// A resolver for the files of a case.
pub fn resolver(root: &Path, behaviour: Behaviour) -> Resolver {
    Resolver::with_root(root).unwrap().with_behaviour(behaviour)
}

/// One case per lookup of the file's cases.
fn lookups() -> Vec<(String, Value)> {
    let split = |(id, case): (String, Value)| {
        let lookups = case["lookups"].as_array().unwrap().clone();
        let count = lookups.len();
        let lookup = move |(index, lookup): (usize, Value)| {
            let id = if count == 1 { id.clone() } else { format!("{id}-{index}") };
            let mut single = case.clone();
            single["claim"] = lookup["claimName"].clone();
            single["request"] = lookup["requestName"].clone();
            (id, single)
        };
        lookups.into_iter().enumerate().map(lookup)
    };
    file("resolution").into_iter().flat_map(split).collect()
}

fn patterns() -> Vec<(String, Value)> {
    let case = |claim: &str, request: &str, directory: &str| {
        let device = json!({"driver": "d.example", "pool": "p", "name": "d", "attributes": {
            "resource.kubernetes.io/pciBusID": {"string": "0000:02:00.0"},
        }});
        let document = json!({
            "apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "kind": "DeviceMetadata",
            "requests": [{"name": request, "devices": [device]}],
        });
        let mut files = serde_json::Map::new();
        files.insert(format!("{directory}/d.example-metadata.json"), document);
        // Directories that the pattern passes through.
        files.insert("resourceclaims/gold/".to_owned(), Value::Null);
        let spec = json!({"resourceClaims": [{"name": "ref", "resourceClaimName": claim}]});
        json!({"vmi": super::new_vmi(&spec), "files": files, "claim": "ref", "request": request})
    };
    vec![
        ("wildcard-in-request".to_owned(), case("gold", "r*", "resourceclaims/gold/r1")),
        ("wildcard-in-claim".to_owned(), case("g?ld", "r", "resourceclaims/gold/r")),
        ("parent-directory".to_owned(), case("../outside", "r", "outside/r")),
    ]
}
