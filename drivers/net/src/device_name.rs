//! The names under which interfaces are published.
//!
//! | what | name | why |
//! |---|---|---|
//! | the interface of a PCI function, or a function without one | `nic-0000-3b-00-0` | the place of a card does not change with the name of its interface or its driver |
//! | a further port of a function | `nic-0000-3b-00-0-p1` | one function can have several |
//! | every other interface | `if-bond1` | all that is known of it; a name that is no DNS label gets a hash (`if-eth0-100-907b52a5`) |
//!
//! A name is the same after a restart. It stays with an interface that a claim has, whatever it is called in the pod.

use drakkar_driver_kit::device_name::{is_exact, label};
use drakkar_netlink::LinkKind;
use drakkar_sysfs::PciAddress;

use crate::inventory::HostInterface;

/// Returns the name of an interface's device.
pub(crate) fn of_interface(interface: &HostInterface) -> String {
    let is_device = interface.link.kind == LinkKind::Device && !interface.is_representor();
    match interface.pci().filter(|_| is_device) {
        Some(address) => {
            let port = interface.device.port;
            let suffix = if port == 0 { String::new() } else { format!("-p{port}") };
            label("nic", &address.to_string(), &suffix, true)
        }
        None => {
            let name = interface.link.name.as_str();
            label("if", name, "", is_exact(name, "-") && !name.ends_with('-'))
        }
    }
}

/// Returns the name of the device of a function without an interface.
pub(crate) fn of_function(address: PciAddress) -> String {
    label("nic", &address.to_string(), "", true)
}

#[cfg(test)]
mod tests {
    use drakkar_metadata::name::DeviceName;
    use drakkar_sysfs::NetDevice;
    use rstest::rstest;

    use super::*;
    use crate::inventory::tests::{on_pci, virtual_interface};

    #[rstest]
    #[case(virtual_interface(3, "bond1", LinkKind::Bond), "if-bond1")]
    #[case(virtual_interface(3, "eth0.100", LinkKind::Vlan { id: 100 }), "if-eth0-100-907b52a5")]
    #[case(virtual_interface(3, "a-", LinkKind::Dummy), "if-a--00248c93")]
    #[case(on_pci(3, "ens1f0", "0000:3b:00.0"), "nic-0000-3b-00-0")]
    fn names_are_stable_labels(#[case] interface: HostInterface, #[case] expected: &str) {
        let name = of_interface(&interface);
        assert_eq!(name, expected);
        DeviceName::new(name).unwrap();
    }

    #[test]
    fn ports_and_representors_of_a_function_have_names_of_their_own() {
        let port = |name: &str, port: u16, port_name: Option<&str>| {
            let interface = on_pci(3, name, "0000:3b:00.0");
            let device = NetDevice { port, port_name: port_name.map(str::to_owned), ..interface.device.clone() };
            of_interface(&HostInterface { device, ..interface })
        };
        assert_eq!(port("eth0", 1, None), "nic-0000-3b-00-0-p1");
        assert_eq!(port("eth1", 0, Some("p0")), "nic-0000-3b-00-0");
        assert_eq!(port("eth2", 0, Some("pf0vf1")), "if-eth2");
        assert_eq!(of_function("0000:3b:00.0".parse().unwrap()), "nic-0000-3b-00-0");
    }
}
