//! RDMA. Devices are tested in a virtual machine; a kernel without any says so.

use drakkar_netlink::rdma::Rdma;

use crate::support::TestNamespace;

#[test]
fn a_new_namespace_has_no_rdma_device_of_its_own_and_a_kernel_without_rdma_is_not_an_error() {
    let Some(host) = TestNamespace::new() else { return };
    match Rdma::open(&host.namespace).unwrap() {
        None => println!("this kernel has no RDMA"),
        Some(mut rdma) => {
            let mode = rdma.mode().unwrap();
            let devices = rdma.devices().unwrap();
            assert!(mode == drakkar_netlink::rdma::Mode::Shared || devices.is_empty(), "{devices:?}");
            for device in &devices {
                rdma.ports(device).unwrap();
            }
            assert_eq!(rdma.device(4711).unwrap(), None);
        }
    }
}
