//! What a domain document has: host devices, controllers, the guest's topology.

use super::EditError;
use crate::hostdev::{Controller, ControllerModel, HostDev, MdevModel, PciFields, Source, USER_ALIAS_PREFIX};
use crate::placement::numa::{Cell, GuestTopology, MemoryNode, VcpuPin};
use crate::xml::scan::{Node, parse};

/// A host device that a document has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExistingHostDev {
    /// The device. Its alias has no prefix; an element without a user alias has an empty one.
    pub device: HostDev,
    /// Whether the element has a `mode`, which KubeVirt's plugin framework requires.
    pub has_mode: bool,
}

/// Returns the host devices of a document that are PCI devices, mediated devices or USB devices.
///
/// # Errors
/// If the document is not a domain.
pub fn host_devices(document: &str) -> Result<Vec<ExistingHostDev>, EditError> {
    let root = domain(document)?;
    let hostdevs = root.child("devices").into_iter().flat_map(|devices| devices.children_named("hostdev"));
    Ok(hostdevs.filter_map(existing).collect())
}

/// Returns the expander buses and root ports of a document.
///
/// # Errors
/// If the document is not a domain.
pub fn controllers(document: &str) -> Result<Vec<Controller>, EditError> {
    let root = domain(document)?;
    let nodes = root.child("devices").into_iter().flat_map(|devices| devices.children_named("controller"));
    let read = |node: &Node| {
        let model = match node.attribute("model")? {
            "pcie-expander-bus" => {
                let target = node.child("target")?;
                ControllerModel::ExpanderBus {
                    bus_number: target.attribute("busNr")?.parse().ok()?,
                    node: target.child("node").and_then(|node| node.text.trim().parse().ok())?,
                }
            }
            "pcie-root-port" => ControllerModel::RootPort { address: pci_fields(node.child("address")?)? },
            _ => return None,
        };
        Some(Controller { index: node.attribute("index")?.parse().ok()?, model })
    };
    Ok(nodes.filter_map(read).collect())
}

/// Returns the NUMA topology of a document's guest, and the highest index of its controllers.
///
/// # Errors
/// If the document is not a domain.
pub fn topology(document: &str) -> Result<GuestTopology, EditError> {
    let root = domain(document)?;
    let text = |node: &Node, name: &str| node.attribute(name).unwrap_or_default().to_owned();
    let number = |node: &Node, name: &str| node.attribute(name).and_then(|value| value.parse::<u32>().ok());
    let numa = root.child("cpu").and_then(|cpu| cpu.child("numa"));
    let pins = root.child("cputune").into_iter().flat_map(|tune| tune.children_named("vcpupin"));
    let memory = root.child("numatune").into_iter().flat_map(|tune| tune.children_named("memnode"));
    let controllers = root.child("devices").into_iter().flat_map(|devices| devices.children_named("controller"));
    Ok(GuestTopology {
        cells: numa
            .into_iter()
            .flat_map(|numa| numa.children_named("cell"))
            .map(|cell| Cell { id: text(cell, "id"), cpus: text(cell, "cpus") })
            .collect(),
        vcpu_pins: pins
            .filter_map(|pin| Some(VcpuPin { vcpu: number(pin, "vcpu")?, cpu_set: text(pin, "cpuset") }))
            .collect(),
        memory_nodes: memory
            .filter_map(|node| Some(MemoryNode { cell: number(node, "cellid")?, node_set: text(node, "nodeset") }))
            .collect(),
        last_controller_index: controllers.filter_map(|node| number(node, "index")).max().unwrap_or(0),
    })
}

pub(super) fn domain(document: &str) -> Result<Node, EditError> {
    let root = parse(document)?;
    if root.name != "domain" {
        return Err(EditError::NotADomain { found: root.name });
    }
    match root.children_named("devices").count() {
        0 | 1 => Ok(root),
        count => Err(EditError::SeveralDevices { count }),
    }
}

fn alias_of(node: &Node) -> Option<&str> {
    node.child("alias")?.attribute("name")?.strip_prefix(USER_ALIAS_PREFIX)
}

pub(super) fn find<'a>(root: &'a Node, alias: &str) -> Result<Option<&'a Node>, EditError> {
    let hostdevs = root.child("devices").into_iter().flat_map(|devices| devices.children_named("hostdev"));
    let mut found = hostdevs.filter(|node| alias_of(node) == Some(alias));
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        _ => Err(EditError::DuplicateAlias { alias: alias.to_owned() }),
    }
}

/// Reads a `<hostdev>`.
pub(super) fn existing(node: &Node) -> Option<ExistingHostDev> {
    let source_node = node.child("source")?.child("address")?;
    let source = match node.attribute("type")? {
        "pci" => Source::Pci(pci_fields(source_node)?),
        "mdev" => Source::Mdev {
            uuid: source_node.attribute("uuid")?.to_owned(),
            model: match node.attribute("model") {
                Some("vfio-ap") => MdevModel::VfioAp,
                Some("vfio-ccw") => MdevModel::VfioCcw,
                _ => MdevModel::VfioPci,
            },
        },
        "usb" => Source::Usb {
            bus: source_node.attribute("bus")?.to_owned(),
            device: source_node.attribute("device")?.to_owned(),
        },
        _ => return None,
    };
    let mut device = HostDev::new(alias_of(node).unwrap_or_default(), source);
    device.display = node.attribute("display") == Some("on");
    device.ramfb = node.attribute("ramfb") == Some("on");
    device.boot_order = node.child("boot").and_then(|boot| boot.attribute("order")?.parse().ok());
    device.guest_address = node.child("address").and_then(pci_fields);
    Some(ExistingHostDev { device, has_mode: node.attribute("mode").is_some() })
}

fn pci_fields(node: &Node) -> Option<PciFields> {
    let field = |name: &str| node.attribute(name).map(str::to_owned);
    Some(PciFields {
        domain: field("domain").unwrap_or_else(|| "0x0000".to_owned()),
        bus: field("bus")?,
        slot: field("slot")?,
        function: field("function").unwrap_or_else(|| "0x0".to_owned()),
    })
}
