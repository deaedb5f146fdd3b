//! The driver's files: directories, leftovers, records and metadata.

use std::io;
use std::time::{Duration, SystemTime};

use drakkar_metadata::Metadata;
use drakkar_plugin::node_files::ClaimRecord;

use super::kubelet::shell_quoted;
use crate::commands::doctor::finding::{Finding, count, or_ok};
use crate::commands::doctor::kind::Kind;
use crate::node_facts::claims::{FileContent, RecordProblem, RequestDirectory};
use crate::node_facts::{DriverFacts, Facts};

/// The age from which a temporary file is a leftover; a write takes microseconds.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);

fn restart(driver: &DriverFacts) -> String {
    format!("delete the pod of {}: its next start repairs or removes it", driver.name)
}

pub(super) fn plugin_directory(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = &facts.node.plugins
        && !facts.node.drivers.is_empty()
    {
        let message = format!("{}/plugins: {error}", facts.node.kubelet_dir.display());
        return vec![Finding::problem(
            Kind::PluginDirUnusable,
            message,
            "give --kubelet-dir as the kubelet's --root-dir",
        )];
    }
    for driver in &facts.node.drivers {
        let path = driver.path.display();
        let mut problems = Vec::new();
        match &driver.directory {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                findings.push(Finding::skipped(format!("{path}: permission denied; run as root")));
                continue;
            }
            Err(error) if is_not_a_directory(error) => problems.push(Finding::problem(
                Kind::NotADirectory,
                format!("{path} is not a directory, and a link is not followed"),
                "remove it, then delete the driver's pod: its next start makes the directory",
            )),
            Err(error) => problems.push(Finding::problem(
                Kind::PluginDirUnusable,
                format!("{path}: {error}"),
                "start the driver, and mount this directory of the host into its pod",
            )),
        }
        problems.extend(driver.files.misplaced.iter().map(|(path, kind)| {
            Finding::problem(
                Kind::NotADirectory,
                format!("{}: {kind}, where only a directory may be", path.display()),
                format!("rm {}, then delete the driver's pod", shell_quoted(&path.to_string_lossy())),
            )
        }));
        problems.extend(driver.files.unreadable.iter().map(|(path, problem)| {
            let message = format!("{}: {problem}", path.display());
            Finding::problem(Kind::PluginDirUnusable, message, "run as root; if it stays, look at the file system")
        }));
        findings.extend(or_ok(problems, || format!("{}: its directory is {path}", driver.name)));
    }
    findings
}

fn is_not_a_directory(error: &io::Error) -> bool {
    let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_link || error.kind() == io::ErrorKind::NotADirectory
}

pub(super) fn temporary_files(facts: &Facts) -> Vec<Finding> {
    let of_drivers = facts.node.drivers.iter().flat_map(|driver| &driver.files.temporary);
    let contents = facts.node.cdi.iter().filter_map(|directory| directory.content.as_ref().ok());
    let all = of_drivers.chain(contents.flat_map(|content| &content.temporary));
    let is_old = |modified: SystemTime| facts.now.duration_since(modified).is_ok_and(|age| age >= LEFTOVER_AGE);
    let problems = all.filter(|(_, modified)| is_old(*modified)).map(|(path, _)| {
        Finding::problem(
            Kind::TemporaryFile,
            format!("{} is what a crash left of a write", path.display()),
            "delete the driver's pod: its next start completes the write, or removes the file",
        )
    });
    or_ok(problems.collect(), || "no leftover of an interrupted write".to_owned())
}

pub(super) fn records(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for driver in &facts.node.drivers {
        let problems = driver.files.claims.iter().filter_map(|claim| {
            let path = claim.path.display();
            match claim.record.as_ref().err()? {
                RecordProblem::Missing => Some(Finding::problem(
                    Kind::RecordMissing,
                    format!("{path} has no state record: an interrupted prepare, or a driver on the Go framework"),
                    restart(driver),
                )),
                RecordProblem::Unreadable(problem) => Some(Finding::problem(
                    Kind::RecordUnreadable,
                    format!("the state record in {path}: {problem}"),
                    format!("{}; the kubelet then prepares the claim again for its next pod", restart(driver)),
                )),
            }
        });
        let number = driver.files.claims.len();
        findings.extend(or_ok(problems.collect(), || {
            format!("{}: {}, each with its state record", driver.name, count(number, "prepared claim"))
        }));
    }
    findings
}

pub(super) fn metadata(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for driver in &facts.node.drivers {
        let mut problems = Vec::new();
        let mut valid = 0;
        let mut later = 0;
        for claim in &driver.files.claims {
            let Ok(record) = &claim.record else { continue };
            for request in record.requests.keys() {
                let found = claim.requests.iter().find(|found| found.name == request.as_str());
                match found.map(|found| (found, &found.content)) {
                    Some((_, FileContent::NotWritten)) => later += 1,
                    Some((found, FileContent::Valid(metadata))) => match difference(driver, record, found, metadata) {
                        Some(difference) => problems.push(Finding::problem(
                            Kind::MetadataDiffers,
                            format!("{}: {difference}", found.file.display()),
                            format!("{}; then restart the pods of claim {}", restart(driver), record.claim),
                        )),
                        None => valid += 1,
                    },
                    Some((found, FileContent::Invalid(problem))) => problems.push(Finding::problem(
                        Kind::MetadataInvalid,
                        format!("{}: {problem}", found.file.display()),
                        format!("{}; then restart the pods of claim {}", restart(driver), record.claim),
                    )),
                    Some((_, FileContent::Missing)) | None => problems.push(Finding::problem(
                        Kind::MetadataMissing,
                        format!("claim {}: request {request} has no metadata file", record.claim),
                        format!("{}; then restart the claim's pods", restart(driver)),
                    )),
                }
            }
            let is_extra =
                |found: &&RequestDirectory| !record.requests.keys().any(|known| known.as_str() == found.name);
            problems.extend(claim.requests.iter().filter(is_extra).map(|found| {
                let path = found.file.parent().unwrap_or(&found.file).display();
                let message = format!("{path}: the claim's record has no such request");
                Finding::problem(Kind::MetadataExtra, message, restart(driver))
            }));
        }
        findings.extend(or_ok(problems, || {
            let not_written = if later > 0 { format!(", {later} not written yet") } else { String::new() };
            format!("{}: {} valid and as recorded{not_written}", driver.name, count(valid, "metadata file"))
        }));
    }
    findings
}

/// Returns what a metadata file says that the record does not.
pub(crate) fn difference(
    driver: &DriverFacts,
    record: &ClaimRecord,
    found: &RequestDirectory,
    metadata: &Metadata,
) -> Option<String> {
    let claim = &record.claim;
    let object = &metadata.metadata;
    if object.uid != claim.uid.as_str() {
        return Some(format!("it is for the claim with uid {}, not {}", object.uid, claim.uid));
    }
    if object.name != claim.name.as_str() || object.namespace != claim.namespace.as_str() {
        return Some(format!("it is for claim {}/{}, not {claim}", object.namespace, object.name));
    }
    if let Some(other) = metadata.requests.iter().find(|request| request.base_name() != found.name) {
        return Some(format!("it is for request {}, not {}", other.name, found.name));
    }
    let recorded = record.requests.iter().find(|(name, _)| name.as_str() == found.name)?.1;
    let mut devices = metadata.requests.iter().flat_map(|request| &request.devices);
    let unknown = devices.find(|device| {
        let is_recorded = |known: &drakkar_plugin::node_files::RequestedDevice| {
            known.pool == device.pool && known.name == device.name
        };
        device.driver != driver.name.as_str() || !recorded.devices.iter().any(is_recorded)
    });
    unknown.map(|device| {
        format!("it describes {}/{}/{}, which is not prepared for the request", device.driver, device.pool, device.name)
    })
}
