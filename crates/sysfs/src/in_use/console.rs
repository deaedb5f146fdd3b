//! The graphics cards of the console and of attached displays.

use std::path::Path;

use super::{HostUse, InUseKind, controller, names, require_readable, target};
use crate::{Inventory, Sysfs};

/// The class of a graphics card that can have the firmware's console.
const VGA: u32 = 0x0300;

pub(super) fn find(sysfs: &Sysfs, inventory: &Inventory, found: &mut HostUse) {
    for directory in ["class/graphics", "class/drm"] {
        require_readable(sysfs, directory, found);
    }
    for device in inventory.devices.values().filter(|device| device.class >> 8 == VGA) {
        let path = sysfs.roots().pci_device(&device.address).join("boot_vga");
        let unknown = device.problems.iter().find(|problem| problem.path.ends_with("boot_vga"));
        match unknown {
            Some(problem) => found.problem(path, problem.message.clone()),
            None if !path.exists() => {
                found.problem(path, "there is no such file, so it is not known whether the console is on this card");
            }
            None => {}
        }
    }
    for device in inventory.devices.values().filter(|device| device.boot_vga) {
        let detail = "the firmware uses this graphics card for the console (boot_vga)";
        found.add(device.address, InUseKind::Console, detail.to_owned());
    }
    // The framebuffer that the kernel's console is on. Its own path, or that of its device, goes through the card.
    for link in ["class/graphics/fb0", "class/graphics/fb0/device"] {
        if let Some(address) = through_links(sysfs, Path::new(link)) {
            let detail = "the console's framebuffer fb0 is on this graphics card";
            found.add(address, InUseKind::Console, detail.to_owned());
        }
    }
    // Connectors are named card0-HDMI-A-1.
    for name in names(sysfs, Path::new("class/drm")).into_iter().filter(|name| name.contains('-')) {
        let link = Path::new("class/drm").join(&name);
        let enabled = std::fs::read_to_string(sysfs.roots().sys.join(&link).join("enabled"));
        if enabled.is_ok_and(|text| text.trim() == "enabled")
            && let Some(address) = through_links(sysfs, &link)
        {
            found.add(address, InUseKind::Console, format!("display connector {name} is enabled"));
        }
    }
}

/// Returns the PCI device that a link leads to. A link in a directory that is a link itself is resolved from there.
fn through_links(sysfs: &Sysfs, link: &Path) -> Option<crate::PciAddress> {
    let directory = link.parent().and_then(|directory| target(sysfs, directory));
    let link = match (directory, link.file_name()) {
        (Some(directory), Some(name)) => directory.join(name),
        _ => link.to_owned(),
    };
    controller(&target(sysfs, &link)?)
}
