//! Prints the PCI devices of this host, and what the host itself uses.

use drakkar_sysfs::{HostUse, Inventory, Sysfs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sysfs = Sysfs::default();
    let inventory = Inventory::scan(&sysfs)?;
    let host_use = HostUse::find(&sysfs, &inventory);
    for device in inventory.devices.values() {
        let driver = device.driver.as_deref().unwrap_or("-");
        let group = device.iommu_group.map_or("-".to_owned(), |group| group.to_string());
        println!(
            "{} {:04x}:{:04x} class {:06x} driver {driver} group {group}",
            device.address, device.vendor, device.device, device.class
        );
        for used in host_use.of(&device.address) {
            println!("    in use: {used}");
        }
        for problem in &device.problems {
            println!("    problem: {problem}");
        }
    }
    for problem in inventory.problems.iter().chain(&host_use.problems) {
        println!("problem: {problem}");
    }
    Ok(())
}
