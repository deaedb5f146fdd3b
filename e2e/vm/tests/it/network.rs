//! Network interfaces on a real kernel: kinds that the host's kernel may lack, virtual functions, RDMA.

use drakkar_vm::{Features, Machine, NETWORK_MODULES};

use crate::run_with;

fn network(test: &str) {
    run_with(&NETWORK_MODULES, Machine::network, test, |_| None);
}

/// For tests with virtual functions.
fn functions(test: &str) {
    run_with(&NETWORK_MODULES, Machine::network, test, |features: Features| {
        (!features.igb).then_some("QEMU has no igb")
    });
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn interfaces_of_all_kinds_are_made_moved_and_read_as_iproute2_reads_them() {
    network("network-kinds");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn addresses_routes_and_rules_are_what_iproute2_says() {
    network("network-addresses");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn events_tell_of_cables_unplugged_cards_and_new_functions() {
    functions("network-events");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn two_namespaces_talk_over_moved_interfaces_of_each_kind() {
    functions("network-traffic");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn devices_return_from_a_namespace_that_vanishes_and_virtual_interfaces_die_with_it() {
    functions("network-vanish");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn an_rdma_device_is_listed_and_moved_with_its_interface() {
    run_with(&NETWORK_MODULES, Machine::network, "network-rdma", |features: Features| {
        (!features.rdma).then_some("rdma_rxe cannot be moved")
    });
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn the_drivers_inventory_follows_the_kernel() {
    functions("network-inventory");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn a_virtual_function_is_bound_for_dpdk_and_its_interface_comes_back() {
    functions("network-userspace");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn the_examples_of_a_dummy_and_of_a_function_for_dpdk_work() {
    functions("network-examples");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn claims_get_interfaces_of_each_kind_and_everything_is_back_afterwards() {
    functions("network-attach");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn interfaces_come_back_from_pods_that_are_gone_and_lost_ones_are_named() {
    functions("network-faults");
}

#[test]
#[ignore = "needs a virtual machine: cargo xtask vm"]
fn a_driver_that_is_killed_before_any_call_loses_no_interface() {
    functions("network-kills");
}
