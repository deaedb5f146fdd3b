//! `drakkar get`: the bare value, for scripts.

use std::io::Write;

use drakkar_metadata::name::DeviceName;
use drakkar_metadata::{AttributeValue, Device, Query, Reader};

use crate::exit::{Code, Failure};
use crate::output::{cell, plain};

pub(crate) fn run(
    reader: &Reader,
    query: &Query,
    attribute: &str,
    device: Option<&DeviceName>,
    raw: bool,
) -> Result<(), Failure> {
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
    for device in &devices {
        let Some(value) = device.lookup(attribute) else {
            let known = join(device.attributes.keys().map(String::as_str));
            let name = cell(&device.name);
            let message = format!("device {name} of {query} has no {attribute}; its attributes are: {known}");
            return Err(Failure::new(Code::NotFound, message));
        };
        let Some(value) = value.value() else {
            let name = cell(&device.name);
            let message = format!("device {name} of {query}: {attribute} does not have exactly one value");
            return Err(Failure::new(Code::Invalid, message).hint(format!("`drakkar read {query}` shows what it has")));
        };
        if !raw && value.elements().iter().any(|element| element.contains(is_control)) {
            let name = cell(&device.name);
            let message = format!("device {name} of {query}: {attribute} has a control character in it");
            let hint = "--raw prints it as it is; a newline in a value then looks like the end of it";
            return Err(Failure::new(Code::Invalid, message).hint(hint));
        }
    }
    let print = |output: &mut dyn Write| {
        for value in devices.iter().filter_map(|device| device.lookup(attribute)) {
            for element in value.value().iter().flat_map(AttributeValue::elements) {
                writeln!(output, "{element}")?;
            }
        }
        Ok(())
    };
    Ok(plain(print)?)
}

/// Whether a character ends a line or is obeyed by a terminal: no value in the field has one.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The names, as many as anybody reads.
fn join<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 64;
    let mut names: Vec<String> = names.by_ref().take(SHOWN + 1).map(cell).collect();
    if let Some(more) = names.get_mut(SHOWN) {
        "…".clone_into(more);
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
