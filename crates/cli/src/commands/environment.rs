//! `drakkar env` and `drakkar exec`: the metadata as environment variables.
//!
//! The variables' names are a stable interface, documented in the help text and in docs/workloads.md. Two values with the
//! same name are an error.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use drakkar_metadata::name::RequestName;
use drakkar_metadata::read::{MetadataFile, Selection};
use drakkar_metadata::{Device, DeviceAttribute, Reader};

use super::selected;
use crate::args::{Readiness, Variables as Names, parse_duration};
use crate::exit::{Code, Failure};
use crate::output::{cell, plain, print_bytes};

pub(crate) fn print(
    reader: &Reader,
    requests: &[Selection],
    readiness: &Readiness,
    names: &Names,
    export: bool,
) -> Result<(), Failure> {
    let export = if export { "export " } else { "" };
    let variables =
        Variables::read(reader, requests, readiness, names).inspect_err(|failure| fail_shell(failure.code()))?;
    let print = |output: &mut dyn Write| {
        let mut variables = variables.by_name.iter();
        variables.try_for_each(|(name, variable)| writeln!(output, "{export}{name}={}", quote(&variable.value)))
    };
    Ok(plain(print)?)
}

/// Prints a command that fails with this exit code in every shell. A shell ignores the exit code of a command in
/// `eval "$(command)"`, even after `set -e`, and would go on without the variables.
pub(crate) fn fail_shell(code: u8) {
    if !std::io::stdout().is_terminal() {
        // If it cannot be printed, the shell has gone, and the exit code says the rest.
        let _ = print_bytes(format!("(exit {code})\n").as_bytes());
    }
}

pub(crate) fn exec(
    reader: &Reader,
    requests: &[Selection],
    readiness: &Readiness,
    names: &Names,
    command: &[OsString],
) -> Result<(), Failure> {
    let variables = Variables::read(reader, requests, readiness, names)?;
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::new(Code::System, "no program to run"));
    };
    let environment = variables.by_name.into_iter().map(|(name, variable)| (name, variable.value));
    // Returns only on an error.
    let error = Command::new(program).args(arguments).envs(environment).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    let failure = Failure::new(Code::System, format!("{}: {error}", program.display())).with_code(code);
    let is_timeout = readiness.wait.is_some() && program.to_str().is_some_and(|word| parse_duration(word).is_ok());
    Err(if is_timeout { failure.hint("a timeout follows an equals sign, as in --wait=1m") } else { failure })
}

/// The hint for a variable that cannot be set.
const SELECTION_HINT: &str = "select the requests that you need, or omit attributes with --no-attributes";

/// Refuses two claims with the same name in the pod, because their variables would be mixed.
fn refuse_ambiguous_claims(files: &[MetadataFile]) -> Result<(), Failure> {
    let mut first_of: HashMap<(&str, Option<&RequestName>), &MetadataFile> = HashMap::new();
    for file in files {
        let first = *first_of.entry((file.claim_label(), file.request.as_ref())).or_insert(file);
        if !first.is_of_same_claim(file) {
            let message = format!("two claims have the name {}", cell(file.claim_label()));
            let hint = "select one of them; `drakkar list` shows their unambiguous names";
            return Err(Failure::new(Code::Usage, message).hint(hint));
        }
    }
    Ok(())
}

/// The maximum length of all variables. The kernel's limit for a program's arguments and environment is 6 MB.
const MAX_LENGTH: usize = 6 * 1024 * 1024;

/// Variables by name.
#[derive(Debug, Default)]
struct Variables {
    by_name: BTreeMap<String, Variable>,
    /// Their total length.
    length: usize,
}

#[derive(Debug)]
struct Variable {
    value: String,
    /// The origin of the value, for messages about conflicts.
    source: String,
}

impl Variables {
    /// Reads the variables of the claims and requests, or of all if there are none.
    fn read(reader: &Reader, requests: &[Selection], readiness: &Readiness, names: &Names) -> Result<Self, Failure> {
        Self::of(selected::read(reader, requests, readiness)?, names)
    }

    fn of(files: Vec<MetadataFile>, names: &Names) -> Result<Self, Failure> {
        refuse_ambiguous_claims(&files)?;
        let mut requests: BTreeMap<(Rc<str>, String), Vec<Device>> = BTreeMap::new();
        // Several queries may select the same request; it counts once.
        let mut seen: HashMap<PathBuf, HashSet<String>> = HashMap::new();
        for file in files {
            let label = Rc::from(file.claim_label());
            let decoded = file.content?;
            let seen = seen.entry(file.path).or_default();
            for request in decoded.metadata.requests {
                let key = (Rc::clone(&label), request.base_name().to_owned());
                if seen.insert(request.name) {
                    requests.entry(key).or_default().extend(request.devices);
                }
            }
        }
        let mut variables = Self::default();
        for ((claim, request), devices) in &requests {
            let base = format!("{}_{}_{}", names.prefix, name_part(claim), name_part(request));
            let source = format!("{}/{}", cell(claim), cell(request));
            variables.set(format!("{base}_COUNT"), devices.len().to_string(), source.clone())?;
            for (index, device) in devices.iter().enumerate() {
                let base = format!("{base}_{index}");
                variables.set_device(&base, device, &source)?;
                if !names.no_attributes {
                    variables.set_attributes(&base, device, &source)?;
                }
            }
        }
        Ok(variables)
    }

    fn set_device(&mut self, base: &str, device: &Device, source: &str) -> Result<(), Failure> {
        let properties = [
            ("DRIVER", Some(device.driver.as_str())),
            ("POOL", Some(device.pool.as_str())),
            ("DEVICE", Some(device.name.as_str())),
            ("PCI_BUS_ID", device.pci_bus_id()),
            ("MDEV_UUID", device.mdev_uuid()),
            ("INTERFACE", device.interface_name()),
            ("MAC", device.hardware_address()),
        ];
        for (name, value) in properties {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                self.set(format!("{base}_{name}"), value.to_owned(), source.to_owned())?;
            }
        }
        if !device.ips().is_empty() {
            self.set(format!("{base}_IPS"), device.ips().join("\n"), source.to_owned())?;
        }
        Ok(())
    }

    fn set_attributes(&mut self, base: &str, device: &Device, source: &str) -> Result<(), Failure> {
        // An empty list is decoded as an attribute without a value.
        let has_value = |value: &DeviceAttribute| value.set_values().next().is_some();
        for (attribute, value) in device.attributes.iter().filter(|(_, value)| has_value(value)) {
            let source = format!("attribute {} of {source}, device {}", cell(attribute), cell(&device.name));
            let Some(value) = value.value() else {
                let message = format!("{source} has several values");
                return Err(Failure::new(Code::Invalid, message).hint(SELECTION_HINT));
            };
            let name = format!("{base}_ATTR_{}", attribute_part(attribute));
            self.set(name, value.elements().join("\n"), source)?;
        }
        Ok(())
    }

    fn set(&mut self, name: String, value: String, source: String) -> Result<(), Failure> {
        if value.contains('\0') {
            let message = format!("{source}: a variable cannot contain a NUL character");
            return Err(Failure::new(Code::Invalid, message).hint(SELECTION_HINT));
        }
        self.length += name.len() + value.len() + source.len();
        if self.length > MAX_LENGTH {
            let message = format!("more than {} MiB of variables, which no program can have", MAX_LENGTH / 1024 / 1024);
            return Err(Failure::new(Code::Invalid, message).hint(SELECTION_HINT));
        }
        match self.by_name.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(Variable { value, source });
                Ok(())
            }
            Entry::Occupied(entry) => {
                let message = format!("{} would be both {} and {source}", cell(entry.key()), entry.get().source);
                Err(Failure::new(Code::Invalid, message).hint(SELECTION_HINT))
            }
        }
    }
}

/// Converts a name to upper case, with underscores for other characters than letters and digits.
fn name_part(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// Converts an attribute's name, with its words separated: `pciBusID` is `PCI_BUS_ID`.
fn attribute_part(name: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    let mut separated = String::new();
    for (index, c) in characters.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| characters[index]);
        let after = characters.get(index + 1);
        let starts_word = c.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase))
            });
        if starts_word {
            separated.push('_');
        }
        separated.push(*c);
    }
    name_part(&separated)
}

/// Quotes a value for the shell.
fn quote(value: &str) -> String {
    // Not `=`: zsh expands `=name` to the path of a program, at the start and after a colon.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,@%+".contains(&byte);
    if !value.is_empty() && value.bytes().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_names_are_split_into_words() {
        for (attribute, name) in [
            ("model", "MODEL"),
            ("pciBusID", "PCI_BUS_ID"),
            ("mdevUUID", "MDEV_UUID"),
            ("driverVersion", "DRIVER_VERSION"),
            ("UUIDOfDevice", "UUID_OF_DEVICE"),
            ("numa2Node", "NUMA2_NODE"),
            ("resource.kubernetes.io/pciBusID", "RESOURCE_KUBERNETES_IO_PCI_BUS_ID"),
            ("a-b.c", "A_B_C"),
            ("größe", "GR__E"),
        ] {
            assert_eq!(attribute_part(attribute), name, "{attribute}");
        }
    }

    #[test]
    fn quoted_values_are_not_expanded_by_the_shell() {
        assert_eq!(quote("0000:03:00.0"), "0000:03:00.0");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("$(rm -rf /); `x` \"y\" \\ 'z'\n"), "'$(rm -rf /); `x` \"y\" \\ '\\''z'\\''\n'");
        for expanded in ["~", "=ls", "a=b", "a:=ls", "a:~"] {
            assert_eq!(quote(expanded), format!("'{expanded}'"));
        }
    }
}
