//! `drakkar get`: prints bare values, for scripts.

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
    let is_selected = |candidate: &&Device| device.is_none_or(|name| *name == candidate.name.as_str());
    let devices: Vec<&Device> = request.devices().filter(is_selected).collect();
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
            return Err(Failure::new(Code::Invalid, message).hint(format!("`drakkar read {query}` shows its values")));
        };
        if !raw && value.elements().iter().any(|element| element.contains(is_control)) {
            let name = cell(&device.name);
            let message = format!("device {name} of {query}: {attribute} contains a control character");
            let hint = "--raw prints it unchanged; a newline in a value then looks like the end of the value";
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

/// Returns whether a character ends a line or controls a terminal. Real values have no such characters.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Joins the names, up to a limit.
fn join<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    const MAX_NAMES: usize = 64;
    let mut names: Vec<String> = names.by_ref().take(MAX_NAMES + 1).map(cell).collect();
    if let Some(more) = names.get_mut(MAX_NAMES) {
        "…".clone_into(more);
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
