//! Placement by NUMA node in an existing domain document.

use std::collections::BTreeMap;

use super::numa::{self, NumaOptions};
use super::{HostTopology, PlacementError};
use crate::hostdev::{ControllerModel, HostDev, PciFields};
use crate::xml::edit::{self, EditError};

/// A domain document in which devices cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DomainPlacementError {
    /// The document cannot be edited.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The devices cannot be placed.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// Places the PCI host devices of a domain document by NUMA node: adds the controllers, and sets the guest addresses.
///
/// `numa_nodes` has the host's NUMA nodes by the alias of the device, from the metadata. A device that is already behind
/// a root port of an expander bus is placed; the function is idempotent. Returns the document, and the reasons why other
/// devices were not placed.
///
/// # Errors
/// If the document is not a domain, or as [`numa::place`].
pub fn place_in_domain(
    document: &str,
    numa_nodes: &BTreeMap<String, u32>,
    host: &HostTopology,
    options: NumaOptions,
) -> Result<(String, Vec<String>), DomainPlacementError> {
    let is_placed = placed_buses(document)?;
    let mut devices: Vec<HostDev> = Vec::new();
    for present in edit::host_devices(document)? {
        let mut device = present.device;
        let bus = device.guest_address.as_ref().and_then(|address| number(&address.bus));
        if device.alias.is_empty() || bus.is_some_and(|bus| is_placed.contains(&bus)) {
            continue;
        }
        device.origin.numa_node = numa_nodes.get(&device.alias).copied();
        devices.push(device);
    }
    let had_address: Vec<bool> = devices.iter().map(|device| device.guest_address.is_some()).collect();
    let placement = numa::place(&mut devices, &edit::topology(document)?, host, options)?;
    let addresses: Vec<(&str, PciFields)> = devices
        .iter()
        .zip(had_address)
        .filter(|(_, had_address)| !had_address)
        .filter_map(|(device, _)| Some((device.alias.as_str(), device.guest_address.clone()?)))
        .collect();
    let document = edit::put_controllers(document, &placement.controllers)?;
    Ok((edit::set_guest_addresses(&document, &addresses)?, placement.warnings))
}

/// Returns the buses of root ports that are on an expander bus.
fn placed_buses(document: &str) -> Result<Vec<u32>, EditError> {
    let controllers = edit::controllers(document)?;
    let is_expander = |index: u32| {
        let expanders = controllers.iter().filter(|other| matches!(other.model, ControllerModel::ExpanderBus { .. }));
        expanders.into_iter().any(|other| other.index == index)
    };
    let ports = controllers.iter().filter(|controller| match &controller.model {
        ControllerModel::RootPort { address } => number(&address.bus).is_some_and(is_expander),
        ControllerModel::ExpanderBus { .. } => false,
    });
    Ok(ports.map(|port| port.index).collect())
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
