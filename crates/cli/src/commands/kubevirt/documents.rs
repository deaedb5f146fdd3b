//! Files with the documents of virtual machines and their claims.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use drakkar_kubevirt::vmi::{Workload, WorkloadError, yaml_problem};
use serde_json::Value;

use crate::commands::input::Input;
use crate::exit::{Code, Failure};

/// The hint for a value that YAML reads as a boolean or number.
const QUOTES_HINT: &str =
    "put the value in quotes: YAML reads n, no, y, yes, on, off and digits without quotes as other types";

/// The documents of a file, of whatever kinds.
#[derive(Debug)]
pub(crate) struct Documents {
    file: PathBuf,
    pub(crate) all: Vec<Value>,
}

/// A virtual machine of a file.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// The document as it is in the file.
    pub(crate) document: &'a Value,
    /// What it says.
    pub(crate) workload: Workload,
}

impl Documents {
    /// Reads a file in YAML or JSON, of one or more documents. Lists, as `kubectl get` prints them, are taken apart.
    pub(crate) fn read(input: &Input, file: &Path) -> Result<Self, Failure> {
        let invalid = |reason: &dyn Display| Failure::new(Code::Invalid, format!("{}: {reason}", file.display()));
        let text = String::from_utf8(input.read_document(file)?).map_err(|error| invalid(&error))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, limits(text.len()))
            .map_err(|error| invalid(&yaml_problem(&error)))?;
        let mut all = Vec::new();
        for document in documents {
            take_apart(document, &mut all).map_err(|reason| invalid(&reason))?;
        }
        Ok(Self { file: file.to_owned(), all })
    }

    /// Returns the virtual machines with their documents, at least one.
    pub(crate) fn machines(&self) -> Result<Vec<Machine<'_>>, Failure> {
        let is_machine =
            |document: &&Value| matches!(document["kind"].as_str(), Some("VirtualMachine" | "VirtualMachineInstance"));
        let machines = self.all.iter().filter(is_machine).map(|document| {
            let workload = Workload::from_value(document).map_err(|error| self.unreadable(document, &error))?;
            Ok(Machine { document, workload })
        });
        let machines: Vec<Machine<'_>> = machines.collect::<Result<_, Failure>>()?;
        if machines.is_empty() {
            return Err(self.without_workload());
        }
        Ok(machines)
    }

    fn unreadable(&self, document: &Value, error: &WorkloadError) -> Failure {
        match error {
            WorkloadError::Field(error) => {
                let failure = self.invalid(document, error);
                if error.needs_quotes { failure.hint(QUOTES_HINT) } else { failure }
            }
            error => self.invalid(document, error),
        }
    }

    /// An error in one of the documents.
    pub(crate) fn invalid(&self, document: &Value, error: &dyn Display) -> Failure {
        let names = [&document["kind"], &document["metadata"]["name"]];
        let subject: Vec<&str> = names.into_iter().filter_map(Value::as_str).collect();
        let subject = if subject.is_empty() { String::new() } else { format!("{}: ", subject.join(" ")) };
        Failure::new(Code::Invalid, format!("{}: {subject}{error}", self.file.display()))
    }

    /// Returns the virtual machines, at least one.
    pub(crate) fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        Ok(self.machines()?.into_iter().map(|machine| machine.workload).collect())
    }

    /// Returns the only virtual machine.
    pub(crate) fn workload(&self) -> Result<Workload, Failure> {
        let mut workloads = self.workloads()?;
        match (workloads.pop(), workloads.len()) {
            (Some(workload), 0) => Ok(workload),
            (_, others) => {
                let message = format!("{}: {} virtual machines", self.file.display(), others + 1);
                Err(Failure::new(Code::Usage, message).hint("give a file with one of them"))
            }
        }
    }

    pub(crate) fn without_workload(&self) -> Failure {
        let kinds: Vec<&str> = self.all.iter().filter_map(|document| document["kind"].as_str()).collect();
        let found = if kinds.is_empty() { "no object".to_owned() } else { format!("only {}", kinds.join(", ")) };
        let message = format!("{}: no VirtualMachine or VirtualMachineInstance, {found}", self.file.display());
        Failure::new(Code::Invalid, message)
    }
}

/// The limits of a parser for a text. Aliases can make a small text large, so values are limited by the length of the text.
fn limits(length: usize) -> serde_saphyr::Options {
    let values = length.max(250_000);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: length.max(1024),
            max_nodes: values,
            max_events: 4 * values,
        },
    }
}

/// Adds a document, or the items of a list, to the others. Lists can be of one kind, and nested.
fn take_apart(document: Value, all: &mut Vec<Value>) -> Result<(), String> {
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    let mut list = match document {
        Value::Null => return Ok(()),
        // Other kinds end with List too, and have no items.
        Value::Object(list) if kind == "List" || kind.ends_with("List") && list.contains_key("items") => list,
        document => {
            all.push(document);
            return Ok(());
        }
    };
    let items = match list.remove("items") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(format!("items of the {kind} must be a list")),
    };
    let of_items = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
    for mut item in items {
        // The API server leaves them out in the list of a kind.
        if let (Value::Object(item), Some(kind)) = (&mut item, of_items) {
            item.entry("kind").or_insert_with(|| kind.into());
            if let Some(version) = list.get("apiVersion") {
                item.entry("apiVersion").or_insert_with(|| version.clone());
            }
        }
        // No deeper than the parser's limit.
        take_apart(item, all)?;
    }
    Ok(())
}
