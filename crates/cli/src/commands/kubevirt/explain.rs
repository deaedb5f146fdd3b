//! `drakkar kubevirt explain`: what becomes of a virtual machine's devices, step by step.

use std::fmt::Write as _;

use drakkar_kubevirt::admission::as_remarshalled;
use drakkar_kubevirt::device_plugin::Environment;
use drakkar_kubevirt::explain::{ClaimObjects, DeviceExplanation, Outcome, Step, explain};
use drakkar_kubevirt::resolve::Resolver;
use drakkar_metadata::show::Printable;

use super::cluster::ClusterConfig;
use super::documents::Documents;
use super::validate::verdict;
use crate::exit::{Code, Failure};
use crate::output::wrap::{terminal_width, wrap};
use crate::output::{print, style};

/// The column in which the text of a step begins.
const TEXT: usize = 11;

/// Explains the devices of all virtual machines of a file.
pub(crate) fn run(documents: &Documents, cluster: &ClusterConfig, resolver: &Resolver) -> Result<(), Failure> {
    let objects = ClaimObjects::among(&documents.all);
    let environment = Environment::of_process();
    let width = terminal_width();
    let mut text = String::new();
    let mut worst = Outcome::Fine;
    let mut hint = None;
    for machine in documents.machines()? {
        let metadata = machine.workload.metadata();
        let name = [&metadata.namespace, &metadata.name].map(String::as_str);
        let name = name.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        let bold = style::HEADER;
        let _ = writeln!(text, "{bold}{} {}{bold:#}", machine.workload.kind(), Printable::whole(&name));
        let answer = verdict(&machine, cluster);
        for cause in &answer.causes {
            worst = Outcome::Error;
            let field = if cause.field.is_empty() { String::new() } else { format!("{}: ", cause.field) };
            paragraph(&format!("refused: {field}{}", cause.message), width, &mut text);
        }
        for warning in &answer.warnings {
            worst = worst.max(Outcome::Warning);
            paragraph(&format!("warning: {warning}"), width, &mut text);
        }
        hint = hint.or(answer.hint);
        // The launcher gets the object as KubeVirt has written it anew.
        let workload = as_remarshalled(machine.workload);
        let devices = explain(workload.vmi(), &objects, resolver, &environment);
        if devices.is_empty() {
            let _ = writeln!(text, "  no GPUs, host devices or networks from claims");
        }
        for device in &devices {
            worst = worst.max(device.outcome());
            describe(device, width, &mut text);
        }
    }
    print(&text)?;
    let failure = match worst {
        Outcome::Fine | Outcome::Warning => return Ok(()),
        Outcome::NotFound => Failure::new(Code::NotFound, "the metadata of some devices was not found"),
        Outcome::NotWritten => Failure::new(Code::NotWritten, "the metadata of some devices is not written yet"),
        Outcome::Unreadable => Failure::new(Code::System, "the metadata of some devices cannot be read"),
        _ => Failure::new(Code::Invalid, "some devices cannot work like this"),
    };
    Err(match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

/// Writes a line about the whole virtual machine.
fn paragraph(line: &str, width: Option<usize>, text: &mut String) {
    let line = Printable::whole(line).to_string();
    let _ = writeln!(text, "  {}", wrap(&line, 2, 4, width));
}

fn describe(device: &DeviceExplanation, width: Option<usize>, text: &mut String) {
    let bold = style::HEADER;
    let _ = writeln!(text, "\n{bold}{} {}{bold:#}", device.kind, Printable::whole(&device.name));
    for step in &device.steps {
        let (mark, colour) = match step.outcome {
            Outcome::Fine => ("", anstyle::Style::new()),
            Outcome::Warning => ("warning: ", style::HINT),
            Outcome::NotFound | Outcome::NotWritten => ("missing: ", style::ERROR),
            _ => ("error: ", style::ERROR),
        };
        let found = found(step, mark, width);
        let _ = writeln!(text, "  {:8} {colour}{mark}{colour:#}{found}", step.subject);
        if let Some(remedy) = &step.remedy {
            let hint = style::HINT;
            let remedy = wrap(&Printable::whole(remedy).to_string(), TEXT, TEXT, width);
            let _ = writeln!(text, "  {:8} {hint}{remedy}{hint:#}", "");
        }
    }
}

/// Returns what a step found, safe to print. Only XML has lines of its own; newlines in other text are from files.
fn found(step: &Step, mark: &str, width: Option<usize>) -> String {
    if step.subject == "xml" && step.outcome == Outcome::Fine {
        let lines: Vec<String> = step.text.lines().map(|line| Printable::whole(line).to_string()).collect();
        return lines.join(&format!("\n{}", " ".repeat(TEXT)));
    }
    wrap(&Printable::whole(&step.text).to_string(), TEXT + mark.len(), TEXT, width)
}
