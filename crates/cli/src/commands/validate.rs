//! `drakkar validate`: reports all errors in metadata files.
//!
//! It is stricter than reading: a reader uses the first document of a known version, this checks every document.

use std::path::PathBuf;

use drakkar_metadata::show::Printable;
use drakkar_metadata::{DecodeError, Decoded, Decoder, Format, Metadata, validate};

use super::foreign::Foreign;
use super::input::Input;
use crate::exit::{Code, Failure};
use crate::output::print;

pub(crate) fn run(input: &Input, files: &[PathBuf]) -> Result<(), Failure> {
    let mut report = String::new();
    let mut failures: Vec<Failure> = Vec::new();
    let mut broken = 0;
    let mut hint = None;
    for file in files {
        let bytes = match input.read(file) {
            Ok(bytes) => bytes,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let name = file.display().to_string();
        let foreign = Foreign::find(&bytes);
        hint = hint.or(foreign.as_ref().and_then(Foreign::hint));
        let findings = match &foreign {
            Some(foreign) => Findings { errors: vec![foreign.describe()], ..Findings::default() },
            None => check(&bytes),
        };
        broken += usize::from(!findings.is_ok());
        for line in findings.lines() {
            report.push_str(&format!("{}: {}\n", Printable::whole(&name), Printable::whole(line)));
        }
    }
    print(&report)?;
    if broken > 0 {
        let subject =
            if files.len() == 1 { "the file is".to_owned() } else { format!("{broken} of {} files are", files.len()) };
        let failure = Failure::new(Code::Invalid, format!("{subject} not valid"));
        failures.push(match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        });
    }
    Failure::join(failures).map_or(Ok(()), Err)
}

/// The result of validating a file.
#[derive(Debug, Default)]
struct Findings {
    formats: Vec<Format>,
    notes: Vec<String>,
    errors: Vec<String>,
}

impl Findings {
    fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = self.errors.clone();
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        if self.is_ok() {
            let formats: Vec<String> = self.formats.iter().map(ToString::to_string).collect();
            lines.push(format!("ok ({})", formats.join(", ")));
        }
        lines
    }
}

/// The maximum number of documents that are checked. A file has one per version.
const MAX_DOCUMENTS: usize = 100;

/// Returns whether two documents have the same devices. Readers do not depend on the claim's other metadata.
fn has_same_devices(one: &Metadata, other: &Metadata) -> bool {
    one.requests == other.requests && one.pod_claim_name == other.pod_claim_name
}

fn check(bytes: &[u8]) -> Findings {
    let mut findings = Findings::default();
    let mut first: Option<Decoded> = None;
    let documents = Decoder::new().decode_documents(bytes);
    for document in documents.into_iter().take(MAX_DOCUMENTS) {
        let decoded = match document {
            Ok(decoded) => decoded,
            Err(error @ DecodeError::UnknownVersions(_)) => {
                findings.notes.push(error.to_string());
                continue;
            }
            Err(error) => {
                findings.errors.push(error.to_string());
                continue;
            }
        };
        if let Err(invalid) = validate(&decoded.metadata) {
            findings.errors.extend(invalid.errors().iter().map(|error| format!("{}: {error}", decoded.format)));
            if invalid.omitted() > 0 {
                findings.errors.push(format!("{}: and {} more", decoded.format, invalid.omitted()));
            }
        }
        findings.formats.push(decoded.format);
        match &first {
            None => first = Some(decoded),
            Some(first) if first.format == Format::EarlyDraft => {}
            Some(first) if !has_same_devices(&first.metadata, &decoded.metadata) => findings.errors.push(format!(
                "{} differs from {}: readers of different versions would see different devices",
                decoded.format, first.format
            )),
            Some(_) => {}
        }
    }
    if findings.formats.is_empty() && findings.errors.is_empty() {
        findings.errors.push(DecodeError::NothingFound.to_string());
    }
    findings
}
