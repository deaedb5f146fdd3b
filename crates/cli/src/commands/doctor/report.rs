//! The findings as text for people, and as JSON for programs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use drakkar_metadata::show::Printable;
use serde::Serialize;

use super::checks::Checked;
use super::finding::{Finding, Status, count};
use super::kind::Kind;
use crate::node_facts::Facts;
use crate::output::style;
use crate::output::wrap::{COLUMNS, wrap};

/// The version of the JSON form. It changes when a field changes its meaning or goes.
const FORMAT_VERSION: u32 = 1;
/// The most problems of one kind that are printed in full. JSON has all.
const MAX_SHOWN: usize = 10;

/// The result of all checks.
#[derive(Debug)]
pub(crate) struct Report {
    node: String,
    drivers: Vec<String>,
    checked: Vec<Checked>,
}

/// A mark at the start of a line, which can be read without its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    symbol: char,
    style: Style,
}

impl Mark {
    pub(crate) const OK: Self = Self { symbol: '✓', style: AnsiColor::Green.on_default().bold() };
    pub(crate) const SKIPPED: Self = Self { symbol: '-', style: AnsiColor::BrightBlack.on_default() };
    pub(crate) const WARNING: Self = Self { symbol: '!', style: AnsiColor::Yellow.on_default().bold() };
    pub(crate) const ERROR: Self = Self { symbol: '✗', style: AnsiColor::Red.on_default().bold() };

    fn of(status: Status) -> Self {
        match status {
            Status::Ok => Self::OK,
            Status::Skipped => Self::SKIPPED,
            Status::Warning => Self::WARNING,
            Status::Error => Self::ERROR,
        }
    }
}

/// Writes a line with a mark and, below it, what to do. Texts can be hostile, and are wrapped.
pub(crate) fn write_line(
    output: &mut dyn Write,
    mark: Mark,
    label: Option<&str>,
    message: &str,
    remedy: Option<&str>,
) -> io::Result<()> {
    let Mark { symbol, style } = mark;
    let message = Printable::whole(message).to_string();
    let (label, start) = match label {
        Some(label) => (format!("{style}{label}{style:#}: "), 4 + label.len() + 2),
        None => (String::new(), 4),
    };
    writeln!(output, "  {style}{symbol}{style:#} {label}{}", wrap(&message, start, 4, Some(COLUMNS)))?;
    let Some(remedy) = remedy else { return Ok(()) };
    let hint = style::HINT;
    let remedy = Printable::whole(remedy).to_string();
    writeln!(output, "    {hint}do:{hint:#} {}", wrap(&remedy, 8, 8, Some(COLUMNS)))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonReport<'a> {
    format_version: u32,
    node: &'a str,
    drivers: &'a [String],
    summary: Summary,
    findings: Vec<JsonFinding<'a>>,
}

#[derive(Serialize)]
struct Summary {
    ok: usize,
    skipped: usize,
    warnings: usize,
    errors: usize,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    group: &'static str,
    check: &'static str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'static str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'a str>,
}

impl Report {
    pub(crate) fn new(facts: &Facts, checked: Vec<Checked>) -> Self {
        let drivers = facts.node.drivers.iter().map(|driver| driver.name.to_string()).collect();
        Self { node: facts.node_name.clone(), drivers, checked }
    }

    /// Returns the number of findings with this status.
    pub(crate) fn count(&self, status: Status) -> usize {
        self.findings().filter(|finding| finding.status == status).count()
    }

    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.checked.iter().flat_map(|checked| &checked.findings)
    }

    fn summary(&self) -> Summary {
        Summary {
            ok: self.count(Status::Ok),
            skipped: self.count(Status::Skipped),
            warnings: self.count(Status::Warning),
            errors: self.count(Status::Error),
        }
    }

    /// Writes lines of at most 80 columns, unless a path is longer.
    pub(crate) fn write_text(&self, output: &mut dyn Write) -> io::Result<()> {
        let bold = style::HEADER;
        let mut group = "";
        let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
        for checked in &self.checked {
            for finding in &checked.findings {
                if checked.check.group != group {
                    group = checked.check.group;
                    writeln!(output, "{bold}{group}{bold:#}")?;
                }
                if let Some(kind) = finding.kind {
                    let number = shown.entry(kind.id()).or_default();
                    *number += 1;
                    if *number > MAX_SHOWN {
                        continue;
                    }
                }
                let label = finding.kind.map(Kind::id);
                let label = label.or((finding.status == Status::Skipped).then_some("skipped"));
                write_line(output, Mark::of(finding.status), label, &finding.message, finding.remedy.as_deref())?;
            }
        }
        for (id, number) in shown.into_iter().filter(|(_, number)| *number > MAX_SHOWN) {
            writeln!(output, "  … and {} more {id}; -o json has all", number - MAX_SHOWN)?;
        }
        let Summary { ok, skipped, warnings, errors } = self.summary();
        let worst = match (errors, warnings) {
            (0, 0) => Mark::OK,
            (0, _) => Mark::WARNING,
            _ => Mark::ERROR,
        };
        let Mark { symbol, style } = worst;
        let (errors, warnings) = (count(errors, "error"), count(warnings, "warning"));
        writeln!(output, "\n{style}{symbol} {errors}, {warnings}{style:#}, {ok} ok, {skipped} skipped")
    }

    pub(crate) fn write_json(&self, output: &mut dyn Write) -> io::Result<()> {
        let findings = self.checked.iter().flat_map(|checked| {
            checked.findings.iter().map(|finding| JsonFinding {
                group: checked.check.group,
                check: checked.check.name,
                status: finding.status,
                id: finding.kind.map(Kind::id),
                message: &finding.message,
                remedy: finding.remedy.as_deref(),
            })
        });
        let report = JsonReport {
            format_version: FORMAT_VERSION,
            node: &self.node,
            drivers: &self.drivers,
            summary: self.summary(),
            findings: findings.collect(),
        };
        serde_json::to_writer_pretty(&mut *output, &report)?;
        writeln!(output)
    }
}
