//! The hardware of a virtual machine, as arguments of QEMU.

use crate::release::Features;

/// The hardware of a virtual machine: a q35 with an IOMMU, two NUMA nodes and the devices that are added.
///
/// Names of devices (`id=`) are what QMP and its `query-pci` call them, so a test finds the PCI address of a device by name.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) is_savable: bool,
}

impl Machine {
    /// Returns a machine without devices besides those of the harness. The processor and half the memory are on node 0, the
    /// other half on node 1.
    pub fn new(name: &str) -> Self {
        let machine = Self { name: name.to_owned(), arguments: Vec::new(), is_savable: true };
        machine
            .option("-machine", "q35,kernel-irqchip=split")
            .option("-accel", "tcg,thread=single")
            .option("-cpu", "qemu64")
            .option("-smp", "1")
            .option("-m", "1G")
            .option("-object", "memory-backend-ram,id=memory0,size=512M")
            .option("-object", "memory-backend-ram,id=memory1,size=512M")
            .option("-numa", "node,nodeid=0,cpus=0,memdev=memory0")
            .option("-numa", "node,nodeid=1,memdev=memory1")
            .device("intel-iommu,intremap=on,caching-mode=on,device-iotlb=on")
            .device("virtio-rng-pci,id=rng,bus=pcie.0,addr=0x1e")
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Adds a device, in the words of QEMU's `-device`.
    #[must_use]
    pub fn device(self, device: &str) -> Self {
        self.option("-device", device)
    }

    /// Adds a root port with a device behind it. Root ports have slots of their own on a bus, and what is behind them can be
    /// unplugged while the machine runs.
    #[must_use]
    pub fn behind_root_port(self, bus: &str, slot: u8, device: &str) -> Self {
        let port = format!("{}{slot}", if bus == "pcie.0" { "port" } else { bus });
        // QEMU wants chassis and slot to differ between ports; the number of the slot is only unique on its bus.
        let chassis = if bus == "pcie.0" { slot } else { slot + 100 };
        self.device(&format!("pcie-root-port,id={port},bus={bus},chassis={chassis},slot={slot},addr={slot:#x}"))
            .device(&format!("{device},bus={port}"))
    }

    /// Marks a machine that QEMU cannot save (nvme): it is booted for each test.
    #[must_use]
    pub fn not_savable(mut self) -> Self {
        self.is_savable = false;
        self
    }

    /// The machine of the tests of PCI devices.
    ///
    /// | name | device | where |
    /// |---|---|---|
    /// | `nic0`, `nic1` | e1000e | behind root ports, each in an IOMMU group of its own |
    /// | `nic2` | e1000e | behind a root port of a host bridge on NUMA node 1 |
    /// | `sriov` | igb with 7 virtual functions, if QEMU has it | behind a root port |
    /// | `old0`, `old1` | e1000 and edu, conventional PCI | behind one bridge: one group |
    /// | `multi0`, `multi1` | edu | two functions of one slot: one group |
    pub fn passthrough(features: Features) -> Self {
        let mut machine = Self::new("passthrough")
            .behind_root_port("pcie.0", 4, "e1000e,id=nic0,mac=52:54:00:00:00:10,romfile=")
            .behind_root_port("pcie.0", 5, "e1000e,id=nic1,mac=52:54:00:00:00:11,romfile=")
            .behind_root_port("pcie.0", 7, "pcie-pci-bridge,id=bridge")
            .device("e1000,id=old0,bus=bridge,addr=0x1,mac=52:54:00:00:00:20,romfile=")
            .device("edu,id=old1,bus=bridge,addr=0x2")
            .device("edu,id=multi0,bus=pcie.0,addr=0x10.0,multifunction=on")
            .device("edu,id=multi1,bus=pcie.0,addr=0x10.1")
            .device("pxb-pcie,id=node1,bus=pcie.0,bus_nr=64,numa_node=1,addr=0x8")
            .behind_root_port("node1", 1, "e1000e,id=nic2,mac=52:54:00:00:00:12,romfile=");
        if features.igb {
            machine = machine.behind_root_port("pcie.0", 6, "igb,id=sriov,mac=52:54:00:00:01:00,romfile=");
        }
        machine
    }

    /// The machine of the tests of network interfaces: all are plugged into one hub, as into a switch outside.
    ///
    /// | name | device | where |
    /// |---|---|---|
    /// | `nic0`, `nic1` | e1000e | behind root ports |
    /// | `sriov` | igb with 7 virtual functions, if QEMU has it | behind a root port |
    pub fn network(features: Features) -> Self {
        let mut machine = Self::new("network")
            .option("-netdev", "hubport,id=cable0,hubid=0")
            .option("-netdev", "hubport,id=cable1,hubid=0")
            .behind_root_port("pcie.0", 4, "e1000e,id=nic0,netdev=cable0,mac=52:54:00:00:00:10,romfile=")
            .behind_root_port("pcie.0", 5, "e1000e,id=nic1,netdev=cable1,mac=52:54:00:00:00:11,romfile=");
        if features.igb {
            machine = machine.option("-netdev", "hubport,id=cable2,hubid=0").behind_root_port(
                "pcie.0",
                6,
                "igb,id=sriov,netdev=cable2,mac=52:54:00:00:01:00,romfile=",
            );
        }
        machine
    }

    /// A machine with an `NVMe` controller that makes virtual functions, which every QEMU since 7.2 has.
    pub fn nvme() -> Self {
        Self::new("nvme")
            .device("nvme-subsys,id=subsystem,nqn=drakkar")
            .behind_root_port(
                "pcie.0",
                4,
                "nvme,id=nvme0,serial=1,subsys=subsystem,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4,\
                 max_ioqpairs=10,msix_qsize=10",
            )
            .not_savable()
    }
}
