use rstest::rstest;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::cases::{Row, rows};
use crate::gates::Gate;
use crate::vmi::KubeVirt;

#[derive(Debug, Deserialize)]
struct Expected {
    causes: Vec<ExpectedCause>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct ExpectedCause {
    reason: String,
    field: String,
}

const FILE: &str = include_str!("../../testdata/cases/admission.json");

fn found(causes: &[Cause]) -> Vec<ExpectedCause> {
    let cause = |cause: &Cause| ExpectedCause { reason: cause.reason.to_string(), field: cause.field.clone() };
    causes.iter().map(cause).collect()
}

/// Both behaviours, a VMI and the same as a template of a VM: same types, same fields below the prefix.
fn check(row: &Row<Expected>) {
    let gates = row.gates();
    for behaviour in [Behaviour::Strict, Behaviour::Extended] {
        let causes = validate(&row.workload(), &gates, behaviour);
        assert_eq!(found(&causes), row.expected.causes, "row {}, {behaviour:?}: {causes:#?}", row.id);
        assert!(causes.iter().all(|cause| !cause.message.is_empty()));

        let mut of_vm = validate(&row.as_vm(), &gates, behaviour);
        for cause in &mut of_vm {
            cause.field = cause.field.replacen("spec.template.spec.", "spec.", 1);
        }
        assert_eq!(found(&of_vm), row.expected.causes, "row {} as a VM, {behaviour:?}", row.id);
    }
}

rows!(Expected, FILE, check, {
    a01_no_devices_no_claims = "A01",
    a02a_an_existing_claim_no_devices_gates_off = "A02a",
    a02b_a_template_no_devices_gates_off = "A02b",
    a03_claim_without_name = "A03",
    a04_repeated_claim_name = "A04",
    a05_claim_name_that_is_no_label = "A05",
    a06_resourceclaimname_that_is_no_subdomain = "A06",
    a07_resourceclaimtemplatename_that_is_no_subdomain = "A07",
    a08_both_sources = "A08",
    a09_no_source = "A09",
    a10a_device_plugin_gpu_gates_off = "A10a",
    a10b_device_plugin_host_device_gates_off = "A10b",
    a11_gpu_with_device_name_and_claim = "A11",
    a12_host_device_with_device_name_and_claim = "A12",
    a13_dra_gpu_gate_off_no_claim = "A13",
    a14_dra_host_device_gate_off_no_claim = "A14",
    a15_gpu_with_claimname_and_requestname_r = "A15",
    a16_gpu_with_claimname_c_and_requestname = "A16",
    a17_gpu_with_claimname_and_requestname = "A17",
    a18a_host_device_with_claimname_and_requestname_r = "A18a",
    a18b_host_device_with_claimname_c_and_requestname = "A18b",
    a18c_host_device_with_claimname_and_requestname = "A18c",
    a19_the_gpu_s_claim_is_not_listed = "A19",
    a20_one_of_two_claims_is_not_listed = "A20",
    a21_two_requests_of_one_claim = "A21",
    a22_one_request_twice = "A22",
    a23_an_incomplete_gpu_and_one_request_twice = "A23",
    a24_a_device_plugin_gpu_beside_a_dra_gpu = "A24",
    a25_a_device_plugin_host_device_beside_a_dra_host_device = "A25",
    a26_an_incomplete_host_device_after_another = "A26",
    a27_one_request_twice_between_device_plugin_host_devices = "A27",
    a28_an_incomplete_host_device_after_two_others = "A28",
    a29_a_gpu_and_a_host_device_with_a_claim_each = "A29",
    a30_the_host_device_s_claim_is_not_listed = "A30",
    a31_a_gpu_and_a_host_device_share_a_claim = "A31",
    a32_a_gpu_and_a_host_device_share_a_request = "A32",
    a33_gpu_with_a_name_only = "A33",
    a34_a_gpu_and_a_network_share_a_request = "A34",
    a35_a_host_device_and_a_network_share_a_request = "A35",
    a36_network_of_a_claim_gate_off = "A36",
    a37a_network_without_claimname = "A37a",
    a37b_network_without_requestname = "A37b",
    a38_the_network_s_claim_is_not_listed = "A38",
    a39_two_networks_share_a_request = "A39",
    a40_a_multus_network_beside_a_network_of_a_claim = "A40",
    a41_network_of_a_claim_with_a_bridge = "A41",
    a42_network_of_a_claim_with_a_binding_plugin_beside_a_pod_network = "A42",
    a43_network_of_a_claim_without_interface = "A43",
    rc6_an_empty_resourceclaimname_is_present = "RC6",
    rc6l_a_resourceclaimname_too_long_and_malformed_has_two_causes = "RC6L",
    rc3l_a_name_too_long_and_malformed_has_one_cause = "RC3L",
    rc4n_both_sources_both_malformed = "RC4N",
    d2_two_host_devices_without_source = "D2",
    d1_a_gpu_with_both_sources_beside_a_dra_gpu = "D1",
    d4_gate_off_and_what_was_found_before_stays = "D4",
    x1_two_shared_requests_by_index = "X1",
    n_hd_dra_host_device_without_gate_hostdevices = "N-HD",
    n_fb_two_displays_with_frame_buffers = "N-FB",
    n_fb0_two_displays_one_without_frame_buffer = "N-FB0",
    w8_network_with_two_types = "W8",
    w9_network_without_type = "W9",
    w3b_interface_without_binding = "W3B",
    w3m_network_of_a_claim_with_masquerade = "W3M",
    w0_interface_without_network_repeated_names_malformed_address = "W0",
    order_networks_come_before_claims_and_devices = "ORDER",
});

mod live_objects;
mod texts;
mod warned;
