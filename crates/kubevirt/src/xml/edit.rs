//! Edits of a domain document that leave every other byte as it was.
//!
//! Each function takes a document and returns the changed one. Comments, CDATA sections, entities, elements of other
//! namespaces (`<qemu:commandline>`), quotes and white space survive, because an edit replaces or inserts only the text of
//! the elements it is about. Each function is idempotent: applied to its own result it returns the same text.

mod read;
mod splice;

use std::collections::HashSet;

pub use read::{ExistingHostDev, controllers, host_devices, topology};
use read::{domain, existing, find};
use splice::{Edits, compact, lines};

use super::scan::Node;
use super::{Form, canonical_uuid, controller as controller_element, hostdev as hostdev_element};
use crate::hostdev::{Controller, HostDev, PciFields, Source};

/// A document that cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The document is not XML.
    #[error("domain document is not valid XML at byte {position}: {problem}")]
    Syntax {
        /// The position of the error.
        position: usize,
        /// The parser's error text.
        problem: String,
    },
    /// The document has more than one `<devices>`, so it is not clear which of them is meant.
    #[error("domain document has {count} <devices> elements, expected one")]
    SeveralDevices {
        /// The number of elements.
        count: usize,
    },
    /// The document's root is another element.
    #[error("expected a document with the root element <domain>, found <{found}>")]
    NotADomain {
        /// The root element.
        found: String,
    },
    /// Two host devices, of the document or of the change, have the same alias.
    #[error("two host devices have the alias {alias:?}")]
    DuplicateAlias {
        /// The alias.
        alias: String,
    },
    /// The document has no host device of this alias.
    #[error("domain document has no host device with the alias {alias:?}")]
    NoAlias {
        /// The alias.
        alias: String,
    },
    /// The document has another controller with this index.
    #[error("domain document already has another PCI controller with index {index}")]
    ControllerExists {
        /// The index.
        index: u32,
    },
}

/// Adds host devices in the canonical form, or replaces those with the same alias.
///
/// A device that is already there in the canonical form is left as it is. A replaced element keeps its guest address and
/// boot order where the device has none, and the children that [`HostDev`] does not know.
///
/// # Errors
/// If the document is not a domain, or has an alias twice.
pub fn put_hostdevs(document: &str, devices: &[HostDev]) -> Result<String, EditError> {
    put_hostdevs_as(document, devices, Form::Canonical)
}

/// Adds host devices in a form, as [`put_hostdevs`] does. In KubeVirt's form an element is in one line.
///
/// # Errors
/// If the document is not a domain, or has an alias twice.
pub fn put_hostdevs_as(document: &str, devices: &[HostDev], form: Form) -> Result<String, EditError> {
    let root = domain(document)?;
    expect_unique(devices.iter().map(|device| device.alias.as_str()))?;
    let mut edits = Edits::new(document);
    let mut added = Vec::new();
    for device in devices {
        match find(&root, &device.alias)? {
            None => added.push(lines(&hostdev_element(device, form), form)),
            Some(node) => {
                let merged = with_placement_of(device, node);
                let is_there = match form {
                    Form::Canonical => is_canonical(node, &merged),
                    Form::Kubevirt => document.get(node.start..node.end) == Some(&edits.hostdev(node, &merged, form)),
                };
                if !is_there {
                    edits.replace_hostdev(node, &merged, form);
                }
            }
        }
    }
    edits.insert_devices(&root, "hostdev", &added);
    Ok(edits.finish())
}

/// Removes the host devices with these aliases, which are given without prefix. An alias that is not there is ignored.
///
/// # Errors
/// If the document is not a domain, or has an alias twice.
pub fn remove_hostdevs(document: &str, aliases: &[&str]) -> Result<String, EditError> {
    let root = domain(document)?;
    expect_unique(aliases.iter().copied())?;
    let mut edits = Edits::new(document);
    for alias in aliases {
        if let Some(node) = find(&root, alias)? {
            // The white space before the element goes with it.
            let start = document.get(..node.start).unwrap_or_default().trim_end_matches(WHITE_SPACE).len();
            edits.replace(start..node.end, String::new());
        }
    }
    Ok(edits.finish())
}

/// Adds `mode="subsystem"` to each host device without a mode.
///
/// # Errors
/// If the document is not a domain.
pub fn set_mode(document: &str) -> Result<String, EditError> {
    let root = domain(document)?;
    let mut edits = Edits::new(document);
    for node in root.child("devices").into_iter().flat_map(|devices| devices.children_named("hostdev")) {
        if node.attribute("mode").is_none() {
            let after_name = node.start + "<hostdev".len();
            edits.replace(after_name..after_name, " mode=\"subsystem\"".to_owned());
        }
    }
    Ok(edits.finish())
}

/// Adds PCI controllers in the canonical form. One that is already there is left as it is.
///
/// # Errors
/// If the document is not a domain, or has another PCI controller with the same index.
pub fn put_controllers(document: &str, controllers: &[Controller]) -> Result<String, EditError> {
    put_controllers_as(document, controllers, Form::Canonical)
}

/// Adds PCI controllers in a form, as [`put_controllers`] does.
///
/// # Errors
/// If the document is not a domain, or has another PCI controller with the same index.
pub fn put_controllers_as(document: &str, controllers: &[Controller], form: Form) -> Result<String, EditError> {
    let root = domain(document)?;
    let mut edits = Edits::new(document);
    let mut added = Vec::new();
    for controller in controllers {
        let wanted = controller_element(controller, form);
        let mut nodes = root.child("devices").into_iter().flat_map(|devices| devices.children_named("controller"));
        let index = controller.index.to_string();
        let is_same = |node: &&Node| node.attribute("type") == Some("pci") && node.attribute("index") == Some(&index);
        match nodes.find(is_same) {
            None => added.push(lines(&wanted, form)),
            Some(node) if wanted.is_described_by(node) => {}
            Some(_) => return Err(EditError::ControllerExists { index: controller.index }),
        }
    }
    edits.insert_devices(&root, "controller", &added);
    Ok(edits.finish())
}

/// Sets the guest's PCI addresses of host devices, by their aliases without prefix.
///
/// # Errors
/// If the document is not a domain, has an alias twice or not at all.
pub fn set_guest_addresses(document: &str, addresses: &[(&str, PciFields)]) -> Result<String, EditError> {
    let root = domain(document)?;
    expect_unique(addresses.iter().map(|(alias, _)| *alias))?;
    let mut edits = Edits::new(document);
    for (alias, address) in addresses {
        let node = find(&root, alias)?.ok_or_else(|| EditError::NoAlias { alias: (*alias).to_owned() })?;
        let wanted = super::pci_address(address, true, Form::Canonical);
        match node.child("address") {
            Some(present) if wanted.is_described_by(present) => {}
            Some(present) => edits.replace(present.start..present.end, compact(&lines(&wanted, Form::Canonical))),
            None => edits.insert_child(node, &lines(&wanted, Form::Canonical)),
        }
    }
    Ok(edits.finish())
}

const WHITE_SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// Refuses two changes of one device.
fn expect_unique<'a>(aliases: impl Iterator<Item = &'a str>) -> Result<(), EditError> {
    let mut seen = HashSet::new();
    for alias in aliases {
        if !seen.insert(alias) {
            return Err(EditError::DuplicateAlias { alias: alias.to_owned() });
        }
    }
    Ok(())
}

/// Returns a device with the guest address and boot order of the element it replaces, where it has none.
fn with_placement_of(device: &HostDev, node: &Node) -> HostDev {
    let mut merged = device.clone();
    if let Some(ExistingHostDev { device: present, .. }) = existing(node) {
        merged.guest_address = merged.guest_address.or(present.guest_address);
        merged.boot_order = merged.boot_order.or(present.boot_order);
    }
    merged
}

/// Returns whether an element is a device in the canonical form, whatever its notation and further children.
fn is_canonical(node: &Node, device: &HostDev) -> bool {
    let normal = |device: &HostDev| {
        let mut device = HostDev { origin: Default::default(), ..device.clone() };
        device.source = match device.source {
            Source::Pci(fields) => Source::Pci(fields.to_lowercase()),
            Source::Mdev { uuid, model } => Source::Mdev { uuid: canonical_uuid(&uuid), model },
            usb => usb,
        };
        device.guest_address = device.guest_address.map(|fields| normal_bus(&fields.to_lowercase()));
        device
    };
    let has_type = node.child("source").and_then(|source| source.child("address")?.attribute("type")).is_some();
    let is_unmanaged = matches!(node.attribute("managed"), Some("no") | None);
    let present = existing(node);
    node.attribute("mode") == Some("subsystem")
        && !has_type
        && is_unmanaged
        && present.is_some_and(|present| normal(&present.device) == normal(device))
}

fn normal_bus(fields: &PciFields) -> PciFields {
    let bus = super::canonical_bus(fields.bus.clone(), Form::Canonical);
    PciFields { bus, ..fields.clone() }
}
