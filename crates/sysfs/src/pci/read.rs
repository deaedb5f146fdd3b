//! Reading one PCI device from its directory in sysfs.

use std::ffi::OsStr;
use std::path::Path;

use drakkar_metadata::PciAddress;

use super::{ConfigSpace, Link, PciDevice, Sriov};
use crate::mdev;
use crate::read::{Dir, Fields};

/// The bytes of the configuration space that everyone may read: the header.
const CONFIG_HEADER: usize = 64;
/// The largest number of a NUMA node that Linux supports.
pub(crate) const MAX_NUMA_NODE: u32 = 1023;

/// Reads a device from the directory with the links to all of them. `None` if it is not there.
pub(crate) fn read(devices: &Dir<'_>, address: &PciAddress) -> Option<PciDevice> {
    let name = address.to_string();
    let mut link = Fields::new(devices);
    let path = devices.target_below_sys(&name);
    let path = link.take(&name, path);
    let dir = devices.dir(&name);
    let dir = link.take(&name, dir);
    let Some(dir) = dir else {
        // A link without a directory is odd, but there; without either, the device has gone.
        if path.is_some() && link.problems.is_empty() {
            link.problem(&name, "points to a directory that does not exist");
        }
        let mut device = PciDevice::new(*address, path.unwrap_or_default());
        device.problems = link.problems;
        return (!device.problems.is_empty()).then_some(device);
    };
    let mut device = PciDevice::new(*address, path.unwrap_or_default());
    let mut fields = Fields::new(&dir);
    fields.problems = link.problems;
    fill(&mut device, &mut fields);
    place(&mut device, &mut fields);
    device.problems = fields.problems;
    // Removed while it was read: files are missing then, or the link to the group alone, and the link to the device is gone.
    let is_suspect = !device.problems.is_empty() || device.iommu_group.is_none();
    let is_gone = is_suspect && matches!(devices.target(&name), Ok(None)) && !devices.exists(&name);
    (!is_gone).then_some(device)
}

fn fill(device: &mut PciDevice, fields: &mut Fields<'_>) {
    ids(device, fields);
    device.revision = u8::try_from(fields.hex("revision", 0xff)).unwrap_or_default();
    device.driver = fields.link("driver");
    device.driver_override = fields.text("driver_override").filter(|text| !text.is_empty() && text != "(null)");
    device.iommu_group = fields.link_to("iommu_group", "the number of a group");
    device.numa_node = numa_node(fields);
    device.physical_function = fields.link_to("physfn", "a PCI address");
    if device.physical_function.is_none() {
        device.sriov = sriov(fields);
    }
    if device.base_class() == 0x03 {
        device.boot_vga = fields.number::<u8>("boot_vga") == Some(1);
    }
    device.link = link(fields);
    device.power_state = fields.text("power_state");
    device.d3cold_allowed = fields.number::<u8>("d3cold_allowed").map(|allowed| allowed != 0);
    device.reset_methods =
        fields.text("reset_method").iter().flat_map(|text| text.split_ascii_whitespace()).map(str::to_owned).collect();
    device.enable_count = fields.number("enable");
    device.config = config(fields, device.power_state.as_deref());
    if device.driver.is_some() {
        // Both belong to the driver and do not outlive it.
        device.mdev_types = mdev::read_types(fields);
        device.vfio_cdev = fields.vfio_cdev();
    }
}

/// Reads the ids. Every kernel has all five in `modalias`, which is one file instead of five; a tree without it is read
/// file by file.
fn ids(device: &mut PciDevice, fields: &mut Fields<'_>) {
    let modalias = fields.text("modalias");
    if let Some([vendor, id, subsystem_vendor, subsystem_device, class]) = modalias.as_deref().and_then(parse_modalias)
    {
        let short = |id: u32| u16::try_from(id).ok();
        let short = (short(vendor), short(id), short(subsystem_vendor), short(subsystem_device));
        if let (Some(vendor), Some(id), Some(subsystem_vendor), Some(subsystem_device)) = short {
            device.vendor = vendor;
            device.device = id;
            device.subsystem_vendor = subsystem_vendor;
            device.subsystem_device = subsystem_device;
            device.class = class;
            return;
        }
    }
    device.vendor = id(fields, "vendor");
    device.device = id(fields, "device");
    device.subsystem_vendor = id(fields, "subsystem_vendor");
    device.subsystem_device = id(fields, "subsystem_device");
    device.class = fields.hex("class", 0x00ff_ffff);
}

/// Parses `pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i00`.
fn parse_modalias(text: &str) -> Option<[u32; 5]> {
    let mut rest = text.strip_prefix("pci:")?;
    let mut numbers = [0; 7];
    for (number, (name, digits)) in
        numbers.iter_mut().zip([("v", 8), ("d", 8), ("sv", 8), ("sd", 8), ("bc", 2), ("sc", 2), ("i", 2)])
    {
        let (hex, after) = rest.strip_prefix(name)?.split_at_checked(digits)?;
        *number = u32::from_str_radix(hex, 16).ok().filter(|_| !hex.starts_with('+'))?;
        rest = after;
    }
    let [vendor, device, subsystem_vendor, subsystem_device, base, sub, interface] = numbers;
    rest.is_empty().then_some([vendor, device, subsystem_vendor, subsystem_device, base << 16 | sub << 8 | interface])
}

fn id(fields: &mut Fields<'_>, name: &str) -> u16 {
    u16::try_from(fields.hex(name, 0xffff)).unwrap_or_default()
}

fn numa_node(fields: &mut Fields<'_>) -> Option<u32> {
    // Negative is the kernel's word for none.
    let node = fields.number::<i64>("numa_node").filter(|node| *node >= 0)?;
    let number = u32::try_from(node).ok().filter(|node| *node <= MAX_NUMA_NODE);
    if number.is_none() {
        fields.problem("numa_node", format!("{node} is not a NUMA node: they are numbered from 0 to {MAX_NUMA_NODE}"));
    }
    number
}

fn sriov(fields: &mut Fields<'_>) -> Option<Sriov> {
    let total_vfs = fields.number("sriov_totalvfs")?;
    let num_vfs: u16 = fields.number("sriov_numvfs").unwrap_or_default();
    let drivers_autoprobe = fields.number::<u8>("sriov_drivers_autoprobe") != Some(0);
    let virtual_functions =
        (0..num_vfs).map_while(|number| fields.link_to(&format!("virtfn{number}"), "a PCI address"));
    Some(Sriov { total_vfs, num_vfs, virtual_functions: virtual_functions.collect(), drivers_autoprobe })
}

fn link(fields: &mut Fields<'_>) -> Option<Link> {
    let known = |text: String| Some(text).filter(|text| !text.is_empty() && !text.starts_with("Unknown"));
    // Conventional PCI devices have none of the four files.
    let max_speed = fields.text("max_link_speed")?;
    let width =
        |width: Option<u16>| width.and_then(|width| u8::try_from(width).ok()).filter(|width| (1..=32).contains(width));
    Some(Link {
        max_speed: known(max_speed),
        // 0 is no link; 255 or 63 is what a device that is gone answers.
        max_width: width(fields.number("max_link_width")),
        current_speed: fields.text("current_link_speed").and_then(known),
        current_width: width(fields.number("current_link_width")),
    })
}

fn config(fields: &mut Fields<'_>, power_state: Option<&str>) -> ConfigSpace {
    if power_state == Some("D3cold") {
        return ConfigSpace::PoweredOff;
    }
    match fields.dir.beginning("config", CONFIG_HEADER) {
        Ok(None) => ConfigSpace::Absent,
        Ok(Some(bytes)) if bytes.len() < CONFIG_HEADER => {
            ConfigSpace::Unreadable(format!("has only {} of {CONFIG_HEADER} bytes", bytes.len()))
        }
        Ok(Some(bytes)) if bytes.iter().all(|byte| *byte == 0xff) => ConfigSpace::Gone,
        Ok(Some(_)) => ConfigSpace::Answers,
        Err(error) => ConfigSpace::Unreadable(error.to_string()),
    }
}

/// Derives from the device's path what is above it.
fn place(device: &mut PciDevice, fields: &mut Fields<'_>) {
    let parent = device.path.parent().and_then(Path::file_name).and_then(OsStr::to_str);
    device.upstream = parent.and_then(|name| name.parse().ok());
    device.pcie_root = root_complex(&device.path, &device.address).map(str::to_owned);
    if device.pcie_root.is_none() && fields.problems.is_empty() {
        fields.problem("", format!("{} is not below a PCI root", device.path.display()));
    }
}

/// Returns the last root complex in the path of a device below sysfs, or `None` if the path is not that of the device.
/// The last is the nearest: devices behind Intel VMD have a root complex of their own below another.
pub(crate) fn root_complex<'a>(path: &'a Path, address: &PciAddress) -> Option<&'a str> {
    let is_device = path.file_name().and_then(OsStr::to_str) == Some(address.to_string().as_str());
    let components = path.components().rev().skip(1).filter_map(|component| component.as_os_str().to_str());
    components.filter(|_| is_device).find(|component| PciAddress::is_root_complex(component))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i01", Some([0x8086, 0x10d3, 0x8086, 0xa01f, 0x02_0001]))]
    #[case::other_bus("usb:v1D6Bp0002d0612dc09dsc00dp01ic09isc00ip00in00", None)]
    #[case::short("pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i0", None)]
    #[case::long("pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i011", None)]
    #[case::sign("pci:v+0008086d000010D3sv00008086sd0000A01Fbc02sc00i01", None)]
    #[case::not_ascii("pci:vä", None)]
    #[case::empty("", None)]
    fn a_modalias_has_all_ids(#[case] text: &str, #[case] expected: Option<[u32; 5]>) {
        assert_eq!(parse_modalias(text), expected);
    }
}
