//! `drakkar kubevirt check`: tells authors of drivers whether KubeVirt can use their metadata files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use drakkar_kubevirt::check::{Report, check};
use drakkar_metadata::Reader;
use drakkar_metadata::name::DriverName;
use drakkar_metadata::show::Printable;

use crate::commands::input::Input;
use crate::exit::{Code, Failure, NO_METADATA_HINT};
use crate::output::print;

pub(crate) fn run(root: &Path, input: &Input, files: &[PathBuf], driver: Option<&DriverName>) -> Result<(), Failure> {
    let of_container = Reader::with_root(root)?;
    // About the files of a container, the hint to use standard input makes no sense.
    let read = |file: &PathBuf| {
        if files.is_empty() { of_container.read_bytes(file).map_err(Failure::from) } else { input.read_bytes(file) }
    };
    let files = if files.is_empty() { &all_files(root, driver)? } else { files };
    let mut text = String::new();
    let mut unusable = 0;
    let mut failures = Vec::new();
    for file in files {
        match read(file) {
            Ok(bytes) => {
                let report = check(Some(file), &bytes);
                unusable += usize::from(!report.is_usable());
                describe(file, &report, &mut text);
            }
            Err(failure) => failures.push(failure),
        }
    }
    print(&text)?;
    if unusable > 0 {
        let message = format!("KubeVirt 1.9 cannot use {unusable} of {} files", files.len());
        failures.push(Failure::new(Code::Invalid, message));
    }
    Failure::join(failures).map_or(Ok(()), Err)
}

/// Returns the metadata files of the container.
fn all_files(root: &Path, driver: Option<&DriverName>) -> Result<Vec<PathBuf>, Failure> {
    let discovery = Reader::with_root(root)?.discover();
    // Paths as in the container: what the check says depends on them, and the input is below the same root.
    let inside = |path: &Path| Path::new("/").join(path.strip_prefix(root).unwrap_or(path));
    let of_driver = |path: &Path| {
        let file = drakkar_metadata::path::ContainerFile::parse(path);
        driver.is_none_or(|driver| file.is_ok_and(|file| file.driver() == driver))
    };
    let files: Vec<PathBuf> =
        discovery.files.iter().map(|file| inside(&file.path)).filter(|path| of_driver(path)).collect();
    if let (true, Some(failure)) = (files.is_empty(), Failure::all(&discovery.problems)) {
        return Err(failure);
    }
    if files.is_empty() {
        let of = driver.map(|driver| format!(" of driver {driver}")).unwrap_or_default();
        return Err(Failure::new(Code::NotFound, format!("no metadata files{of}")).hint(NO_METADATA_HINT));
    }
    Ok(files)
}

fn describe(file: &Path, report: &Report, text: &mut String) {
    let device = match &report.device {
        Some(device) if report.is_usable() => format!("ok ({device})"),
        _ => "not usable".to_owned(),
    };
    let _ = writeln!(text, "{}: {}", Printable::path(file), Printable::whole(&device));
    for finding in &report.findings {
        let _ = writeln!(text, "  {}: {}", finding.severity, Printable::whole(&finding.message));
        let _ = writeln!(text, "    {}", finding.remedy);
    }
}
