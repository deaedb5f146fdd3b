//! `drakkar net`: claims of network interfaces.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use drakkar_metadata::show::Printable;
use drakkar_net::DRIVER_NAME;
use drakkar_net::claim_config::{Checked, check_document};

use super::input::Input;
use super::kubevirt::documents::Documents;
use crate::args::net::NetCommand;
use crate::exit::{Code, Failure};
use crate::output::print;

pub(crate) fn run(command: &NetCommand) -> Result<(), Failure> {
    match command {
        NetCommand::Validate { files } => validate(&Input::below(Path::new("/"))?, files),
    }
}

/// Prints one line for each document with parameters, and one for each error.
fn validate(input: &Input, files: &[PathBuf]) -> Result<(), Failure> {
    let mut text = String::new();
    let mut failures = Vec::new();
    let mut checked = 0;
    let mut invalid = 0;
    for file in files {
        let documents = match Documents::read(input, file) {
            Ok(documents) => documents,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let found: Vec<Checked> = documents.all.iter().filter_map(check_document).collect();
        if found.is_empty() {
            failures.push(nothing_to_check(file));
        }
        for document in &found {
            checked += 1;
            invalid += usize::from(!document.errors.is_empty());
            let subject = Printable::whole(format!("{}: {}", file.display(), document.subject)).to_string();
            let _ = writeln!(text, "{subject}: {}", verdict(document));
            for error in &document.errors {
                let _ = writeln!(text, "  {}", Printable::whole(error.to_string()));
            }
        }
    }
    print(&text)?;
    if invalid > 0 {
        failures.push(Failure::new(Code::Invalid, format!("{invalid} of {checked} documents are not valid")));
    }
    Failure::join(failures).map_or(Ok(()), Err)
}

fn verdict(document: &Checked) -> String {
    match (document.errors.len(), document.parameters) {
        (0, 0) => format!("OK (no parameters for {DRIVER_NAME})"),
        (0, _) => "OK".to_owned(),
        (1, _) => "1 error".to_owned(),
        (errors, _) => format!("{errors} errors"),
    }
}

fn nothing_to_check(file: &Path) -> Failure {
    let kinds = "no ResourceClaim, ResourceClaimTemplate, DeviceClass or ClaimConfig";
    Failure::new(Code::Invalid, format!("{}: {kinds}", file.display()))
}
