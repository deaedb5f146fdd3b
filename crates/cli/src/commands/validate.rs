//! `drakkar validate`: what is wrong with a file, all of it.
//!
//! Stricter than reading: a reader is content with the first document that it can use, this looks at every one.

use std::path::PathBuf;

use drakkar_metadata::{DecodeError, Decoded, Decoder, Format, validate};

use super::convert::read_input;
use crate::exit::{Code, Failure};
use crate::output::{print, printable};

pub(crate) fn run(files: &[PathBuf]) -> Result<(), Failure> {
    let mut report = String::new();
    let mut failures: Vec<Failure> = Vec::new();
    let mut broken = 0;
    for file in files {
        let bytes = match read_input(file) {
            Ok(bytes) => bytes,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let name = file.display().to_string();
        let findings = check(&bytes);
        broken += usize::from(!findings.is_ok());
        for line in findings.lines() {
            report.push_str(&format!("{}: {}\n", printable(&name), printable(&line)));
        }
    }
    print(&report)?;
    if broken > 0 {
        let of =
            if files.len() == 1 { "the file is".to_owned() } else { format!("{broken} of {} files are", files.len()) };
        failures.push(Failure::new(Code::Invalid, format!("{of} not valid")));
    }
    Failure::join(failures).map_or(Ok(()), Err)
}

/// What is to say about a file.
#[derive(Debug, Default)]
struct Findings {
    good: Vec<Format>,
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
            let formats: Vec<String> = self.good.iter().map(ToString::to_string).collect();
            lines.push(format!("ok ({})", formats.join(", ")));
        }
        lines
    }
}

fn check(bytes: &[u8]) -> Findings {
    let mut findings = Findings::default();
    let mut first: Option<Decoded> = None;
    let documents = Decoder::new().decode_every(bytes);
    for document in documents {
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
        }
        findings.good.push(decoded.format);
        match &first {
            None => first = Some(decoded),
            Some(first) if first.format == Format::EarlyDraft => {}
            Some(first) if first.metadata != decoded.metadata => findings.errors.push(format!(
                "{} says something else than {}: readers of different versions would see different devices",
                decoded.format, first.format
            )),
            Some(_) => {}
        }
    }
    if findings.good.is_empty() && findings.errors.is_empty() {
        findings.errors.push(DecodeError::NothingFound.to_string());
    }
    findings
}
