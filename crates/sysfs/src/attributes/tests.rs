//! Tests of the standard attributes with directories that look like sysfs.

use std::os::unix::fs::symlink;
use std::path::Path;

use rstest::rstest;
use tempfile::TempDir;

use super::*;

const GPU: &str = "0000:65:00.0";

/// A sysfs tree in a temporary directory.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn sysfs(&self) -> StandardAttributes {
        StandardAttributes::at(self.root())
    }

    /// Returns the root of the tree. It is not the temporary directory itself, because some links point out of the tree.
    fn root(&self) -> PathBuf {
        self.0.path().join("sys")
    }

    fn file(self, path: &str, content: &str) -> Self {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// Adds a PCI device whose link points to this path below `devices`.
    fn device(self, address: &str, target: &str) -> Self {
        self.link(address, &format!("../../../devices/{target}"))
    }

    fn link(self, address: &str, target: &str) -> Self {
        let links = self.root().join("bus/pci/devices");
        std::fs::create_dir_all(links.join(Path::new(target))).unwrap();
        symlink(target, links.join(address)).unwrap();
        self
    }

    /// Adds the GPU with this content of its `numa_node`.
    fn gpu_on(self, node: &str) -> Self {
        let target = format!("pci0000:64/0000:64:00.0/{GPU}");
        self.device(GPU, &target).file(&format!("devices/{target}/numa_node"), &format!("{node}\n"))
    }

    /// Adds a CPU of a node and its socket.
    fn cpu(self, cpu: u32, node: u32, socket: &str) -> Self {
        self.file(&format!("devices/system/node/node{node}/cpulist"), &format!("{cpu}\n"))
            .file(&format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"), &format!("{socket}\n"))
    }

    fn distances(self, node: u32, row: &str) -> Self {
        self.file(&format!("devices/system/node/node{node}/distance"), &format!("{row}\n"))
    }

    fn online(self, nodes: &str) -> Self {
        self.file("devices/system/node/online", &format!("{nodes}\n"))
    }
}

fn gpu() -> PciAddress {
    GPU.parse().unwrap()
}

#[rstest]
#[case::plain(GPU, "pci0000:64/0000:64:00.0/0000:65:00.0", "pci0000:64")]
#[case::at_the_root("0000:00:1f.3", "pci0000:00/0000:00:1f.3", "pci0000:00")]
#[case::arm("0000:01:00.0", "platform/40000000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0", "pci0000:00")]
#[case::acpi(
    "0001:00:00.0",
    "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:01/47505500/pci0001:00/0001:00:00.0",
    "pci0001:00"
)]
#[case::vmd("10000:01:00.0", "pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00")]
fn the_nearest_root_complex_is_used(#[case] address: &str, #[case] target: &str, #[case] root: &str) {
    let machine = Machine::new().device(address, target);
    assert_eq!(machine.sysfs().pcie_root(&address.parse().unwrap()).unwrap(), root.into());
}

#[rstest]
#[case::no_root("../../../devices/virtual/0000:65:00.0")]
#[case::another_device("../../../devices/pci0000:64/0000:65:00.1")]
#[case::outside_of_devices("../../../bus/pci0000:64/0000:65:00.0")]
#[case::outside_of_sysfs("../../../../pci0000:64/0000:65:00.0")]
#[case::the_root_itself("../../../devices/pci0000:64")]
fn a_link_that_points_elsewhere_has_no_root_complex(#[case] target: &str) {
    let machine = Machine::new().link(GPU, target);
    let error = machine.sysfs().pcie_root(&gpu()).unwrap_err();
    assert!(matches!(error, AttributeError::NotBelowRoot { .. }), "{error}");
}

#[test]
fn a_missing_device_has_no_root_complex() {
    let machine = Machine::new().gpu_on("0");
    let error = machine.sysfs().pcie_root(&"0000:66:00.0".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("bus/pci/devices/0000:66:00.0"), "{error}");
}

#[test]
fn the_numa_node_is_read_from_the_device() {
    let machine = Machine::new().gpu_on("4");
    assert_eq!(machine.sysfs().numa_node(&gpu(), NumaForm::Number).unwrap(), 4.into());
}

#[rstest]
#[case::without_topology(Machine::new().gpu_on("1").distances(1, "12 10 12"), vec![1, 0, 2])]
#[case::online_and_without_topology(Machine::new().gpu_on("1").distances(1, "12 10 12").online("0-2"), vec![1, 0, 2])]
#[case::single_node(Machine::new().gpu_on("0").distances(0, "10").online("0"), vec![0])]
#[case::no_distances(Machine::new().gpu_on("0"), vec![0])]
#[case::malformed_distances(Machine::new().gpu_on("0").distances(0, "10 far"), vec![0])]
#[case::same_socket(
    Machine::new().gpu_on("0").distances(0, "10 12 12 20").cpu(0, 0, "0").cpu(8, 1, "0").cpu(16, 2, "1").cpu(24, 3, "1"),
    vec![0, 1]
)]
#[case::unknown_socket(
    Machine::new().gpu_on("0").distances(0, "10 12 12").cpu(0, 0, "0").cpu(8, 1, "-1").cpu(16, 2, "1"),
    vec![0, 1]
)]
#[case::unknown_own_socket(Machine::new().gpu_on("0").distances(0, "10 12").cpu(8, 1, "1"), vec![0, 1])]
// The distances are those of the nodes that are online: here 0, 2 and 5.
#[case::sparse(Machine::new().gpu_on("2").distances(2, "21 10 12").online("0,2,5"), vec![2, 5])]
#[case::inconsistent_number_of_distances(Machine::new().gpu_on("2").distances(2, "21 10 12").online("0-1"), vec![2])]
fn a_list_has_the_nearest_nodes(#[case] machine: Machine, #[case] nodes: Vec<i64>) {
    assert_eq!(machine.sysfs().numa_node(&gpu(), NumaForm::List).unwrap(), nodes.into());
}

#[test]
fn a_device_without_a_numa_node_has_no_such_attribute() {
    let machine = Machine::new().gpu_on("-1");
    for form in [NumaForm::Number, NumaForm::List] {
        let error = machine.sysfs().numa_node(&gpu(), form).unwrap_err();
        assert!(matches!(error, AttributeError::NoNumaNode { .. }), "{error}");
    }
    let attributes = machine.sysfs().pci_attributes(&gpu(), NumaForm::Number).unwrap();
    assert_eq!(attributes.keys().collect::<Vec<_>>(), [PCI_BUS_ID, PCIE_ROOT]);
}

#[rstest]
#[case::beyond("1024")]
#[case::far_beyond("99999999999")]
#[case::words("none")]
#[case::empty("")]
fn an_invalid_numa_node_is_an_error(#[case] node: &str) {
    let machine = Machine::new().gpu_on(node);
    machine.sysfs().numa_node(&gpu(), NumaForm::Number).unwrap_err();
    machine.sysfs().pci_attributes(&gpu(), NumaForm::Number).unwrap_err();
}

#[test]
fn a_missing_numa_node_file_is_an_error() {
    let machine = Machine::new().device(GPU, &format!("pci0000:64/{GPU}"));
    let error = machine.sysfs().numa_node(&gpu(), NumaForm::Number).unwrap_err();
    assert!(error.to_string().contains("0000:65:00.0/numa_node"), "{error}");
}

#[test]
fn a_known_numa_node_is_not_looked_up() {
    let machine = Machine::new().distances(1, "12 10 12");
    assert_eq!(machine.sysfs().numa_node_attribute(1, NumaForm::Number).unwrap(), 1.into());
    assert_eq!(machine.sysfs().numa_node_attribute(1, NumaForm::List).unwrap(), vec![1, 0, 2].into());
    assert_eq!(machine.sysfs().numa_node_attribute(1023, NumaForm::List).unwrap(), vec![1023].into());
    machine.sysfs().numa_node_attribute(1024, NumaForm::Number).unwrap_err();
}

#[test]
fn the_numa_node_of_a_cpu_is_that_of_its_link() {
    let machine = Machine::new()
        .file("devices/system/cpu/cpu0/node0/here", "")
        .file("devices/system/cpu/cpu17/node3/here", "")
        .file("devices/system/cpu/cpu17/nodes/here", "")
        .file("devices/system/cpu/cpu4/topology/physical_package_id", "0");
    assert_eq!(machine.sysfs().numa_node_of_cpu(0).unwrap(), 0);
    assert_eq!(machine.sysfs().numa_node_of_cpu(17).unwrap(), 3);
    assert!(matches!(machine.sysfs().numa_node_of_cpu(4), Err(AttributeError::NoNodeOfCpu { .. })));
    assert!(matches!(machine.sysfs().numa_node_of_cpu(5), Err(AttributeError::Read { .. })));
}

#[test]
fn all_attributes_have_their_standard_names() {
    let machine = Machine::new().gpu_on("1").distances(1, "21 10").online("0-1").cpu(0, 0, "0").cpu(8, 1, "1");
    let attributes = machine.sysfs().pci_attributes(&gpu(), NumaForm::List).unwrap();
    let expected = [
        ("resource.kubernetes.io/numaNode", vec![1].into()),
        ("resource.kubernetes.io/pciBusID", GPU.into()),
        ("resource.kubernetes.io/pcieRoot", "pci0000:64".into()),
    ];
    assert_eq!(attributes, expected.map(|(name, value): (_, DeviceAttribute)| (name.to_owned(), value)).into());
}
