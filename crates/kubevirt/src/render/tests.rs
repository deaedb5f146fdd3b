use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::cases::{Row, rows};

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Expected {
    Error { error: String },
    Rendered(Rendered),
}

#[derive(Debug, Deserialize, PartialEq)]
struct Rendered {
    pod_claims: Vec<ResourceClaimRef>,
    claims: Vec<Claim>,
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
    memory_overhead: u64,
    network_info: bool,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Claim {
    name: String,
    request: String,
}

const FILE: &str = include_str!("../../testdata/cases/render.json");

fn check(row: &Row<Expected>) {
    let rendered = render(row.workload().vmi(), &row.gates(), row.permitted.as_ref());
    match (&row.expected, rendered) {
        (Expected::Error { error }, Err(found)) => assert_eq!(*error, found.to_string(), "row {}", row.id),
        (Expected::Rendered(expected), Ok(found)) => {
            let claim = |claim: ContainerClaim| Claim { name: claim.name, request: claim.request };
            let found = Rendered {
                pod_claims: found.resource_claims,
                claims: found.claims.into_iter().map(claim).collect(),
                requests: found.resources.requests,
                limits: found.resources.limits,
                memory_overhead: found.memory_overhead,
                network_info: found.network_info,
            };
            assert_eq!(*expected, found, "row {}", row.id);
        }
        (expected, found) => panic!("row {}: expected {expected:?}, found {found:?}", row.id),
    }
}

rows!(Expected, FILE, check, {
    p01a_no_claims = "P01a",
    p01b_an_empty_list_of_claims = "P01b",
    p01c_claims_null = "P01c",
    p02_an_existing_claim_and_a_template_used_by_nothing = "P02",
    p03_a_device_plugin_gpu_beside_a_dra_gpu = "P03",
    p04_a_device_plugin_host_device_beside_a_dra_host_device = "P04",
    p05_two_requests_of_one_claim = "P05",
    p06_a_gpu_and_a_host_device_share_a_claim = "P06",
    p07_a_gpu_a_host_device_and_a_network_in_this_order = "P07",
    p08_a_network_with_a_template = "P08",
    p09_a_network_gate_off = "P09",
    p10_cpu_and_memory_are_untouched = "P10",
    p11_a_permitted_host_device_beside_a_dra_host_device = "P11",
    p12_a_host_device_that_is_not_permitted = "P12",
    perm_gate_permitted_devices_dra_gpu_with_its_gate_off = "PERM-GATE",
    perm_two_two_devices_that_are_not_permitted = "PERM-TWO",
    count_three_device_plugin_devices_of_one_resource = "COUNT",
    both_an_entry_with_both_sources_renders_neither = "BOTH",
    off_all_gates_off_the_pod_keeps_its_claims = "OFF",
    iommufd_gate_iommufd_adds_its_device_to_every_pod = "IOMMUFD",
    plugin_a_network_of_a_binding_plugin_adds_no_memory = "PLUGIN",
});

/// P01: a list that is empty is absent in the pod.
#[test]
fn p01_empty_lists_are_absent_in_json() {
    let json = serde_json::to_value(LauncherResources::default()).unwrap();
    assert_eq!(json, serde_json::json!({"memoryOverhead": 0, "networkInfo": false}));
}

/// A claim without a request is all of its requests: Kubernetes has no empty name for that.
#[test]
fn an_empty_request_is_absent_in_json() {
    let claim = |request: &str| ContainerClaim { name: "c".into(), request: request.into() };
    assert_eq!(serde_json::to_value(claim("")).unwrap(), serde_json::json!({"name": "c"}));
    assert_eq!(serde_json::to_value(claim("r")).unwrap(), serde_json::json!({"name": "c", "request": "r"}));
}
