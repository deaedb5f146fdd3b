//! Prints the PCI addresses of the GPUs of the pod's claim `devices`.

use std::time::Duration;

use drakkar_metadata::{Query, Reader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::var_os("DRAKKAR_ROOT").unwrap_or("/".into());
    let reader = Reader::with_root(root)?;

    let query: Query = "devices/gpu".parse()?;
    let request = reader.wait(&query, Duration::from_secs(30), |_| true)?;
    for device in request.devices() {
        let address = device.pci_bus_id().ok_or("a GPU without an address")?;
        println!("{} {address}", device.name);
    }
    Ok(())
}
