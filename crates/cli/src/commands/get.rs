//! `drakkar get`: the bare value, for scripts.

use drakkar_metadata::name::DeviceName;
use drakkar_metadata::{Device, Query, Reader};

use crate::exit::{Code, Failure};
use crate::output::print_bytes;

pub(crate) fn run(reader: &Reader, query: &Query, attribute: &str, device: Option<&DeviceName>) -> Result<(), Failure> {
    let request = reader.read(query)?.complete()?;
    let is_wanted = |candidate: &&Device| device.is_none_or(|name| *name == candidate.name.as_str());
    let devices: Vec<&Device> = request.devices().filter(is_wanted).collect();
    if devices.is_empty() {
        let names = join(request.devices().map(|device| device.name.as_str()));
        let message = match device {
            Some(name) => format!("{query} has no device {name}; it has: {names}"),
            None => format!("{query} has no devices"),
        };
        return Err(Failure::new(Code::NotFound, message));
    }
    let mut lines = String::new();
    for device in devices {
        let Some(value) = device.lookup(attribute) else {
            let known = join(device.attributes.keys().map(String::as_str).take(64));
            let message = format!("device {} of {query} has no {attribute}; its attributes are: {known}", device.name);
            return Err(Failure::new(Code::NotFound, message));
        };
        let Some(value) = value.value() else {
            let message = format!("device {} of {query}: {attribute} does not have exactly one value", device.name);
            return Err(Failure::new(Code::Invalid, message).hint(format!("`drakkar read {query}` shows what it has")));
        };
        for element in value.elements() {
            lines.push_str(&element);
            lines.push('\n');
        }
    }
    Ok(print_bytes(lines.as_bytes())?)
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
