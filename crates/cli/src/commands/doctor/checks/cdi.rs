//! CDI: whether the runtime resolves devices, and whether the specs are those of the records.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use drakkar_cdi::{ClaimDevices, MetadataDevice};
use drakkar_plugin::node_files::ClaimRecord;

use super::kubelet::shell_quoted;
use crate::commands::doctor::finding::{Finding, count, or_ok};
use crate::commands::doctor::kind::Kind;
use crate::node_facts::cdi::SpecFile;
use crate::node_facts::claims::{ClaimDirectory, FileContent};
use crate::node_facts::runtime::{Runtime, RuntimeConfig, Switch};
use crate::node_facts::{DriverFacts, Facts};

pub(super) fn runtime(facts: &Facts) -> Vec<Finding> {
    let config = match &facts.runtime {
        Runtime::Known(config) => config,
        Runtime::Unknown(reason) => return vec![Finding::skipped(format!("CDI in the runtime: {reason}"))],
        Runtime::Invalid { path, problem } => {
            return vec![Finding::problem(
                Kind::RuntimeConfigInvalid,
                format!("{}: {problem}", path.display()),
                "correct the file, or give the right one: --containerd-config",
            )];
        }
    };
    let file = config.path.display();
    let enable = || format!("set enable_cdi = true in {} of {file}, then restart {}", config.cdi_section, config.name);
    let mut findings = Vec::new();
    match config.cdi_with(facts.runtime_release()) {
        Switch::On => findings.push(Finding::ok(format!("{} resolves CDI devices, by {file}", config.name))),
        Switch::ByRelease => {
            findings
                .push(Finding::skipped(format!("CDI: {file} does not say it: on since containerd 2.0, off in 1.7")));
        }
        Switch::Off => findings.push(Finding::problem(
            Kind::CdiDisabled,
            format!("CDI is off in {} ({file}): containers start without their devices and metadata", config.name),
            enable(),
        )),
    }
    findings.extend(directories(facts, config));
    findings
}

/// Checks that the runtime reads the directories that drivers write to.
fn directories(facts: &Facts, config: &RuntimeConfig) -> Vec<Finding> {
    let is_read = |path: &Path| config.cdi_dirs.iter().any(|read| without_links(read) == without_links(path));
    let listed: Vec<String> = config.cdi_dirs.iter().map(|path| path.display().to_string()).collect();
    let listed = listed.join(", ");
    let written = facts.node.cdi.iter().filter(|directory| {
        directory.content.as_ref().is_ok_and(|content| content.specs.iter().any(|spec| spec.owner.is_some()))
    });
    let problems = written.filter(|directory| !is_read(&directory.path)).map(|directory| {
        Finding::problem(
            Kind::CdiDirNotWatched,
            format!("{} reads CDI specs from {listed}, and a driver writes them to {}", config.name, directory.path.display()),
            format!(
                "start the driver with --cdi-dir set to one of the runtime's, or add the directory to cdi_spec_dirs in {} of {}",
                config.cdi_section,
                config.path.display()
            ),
        )
    });
    or_ok(problems.collect(), || format!("{} reads CDI specs from {listed}", config.name))
}

/// `/var/run` is a link to `/run` on every distribution.
fn without_links(path: &Path) -> &Path {
    path.strip_prefix("/var")
        .ok()
        .filter(|rest| rest.starts_with("run"))
        .unwrap_or(path.strip_prefix("/").unwrap_or(path))
}

/// Checks that every spec is one that runtimes load.
pub(super) fn specs(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut number = 0;
    let mut devices: BTreeMap<String, Vec<&SpecFile>> = BTreeMap::new();
    let mut missing = Vec::new();
    for directory in &facts.node.cdi {
        let content = match &directory.content {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(directory.path.display().to_string());
                continue;
            }
            Err(error) => {
                findings.push(Finding::problem(
                    Kind::CdiDirUnusable,
                    format!("{}: {error}", directory.path.display()),
                    "make it a directory that drivers can write to and the runtime can read",
                ));
                continue;
            }
        };
        for file in &content.specs {
            number += 1;
            match &file.spec {
                Ok(spec) => {
                    let ids = spec.devices.iter().map(|device| format!("{}={}", spec.kind, device.name));
                    ids.for_each(|id| devices.entry(id).or_default().push(file));
                }
                Err(problem) => findings.push(invalid_spec(file, problem)),
            }
        }
    }
    let has_records = facts.node.drivers.iter().any(|driver| !driver.files.claims.is_empty());
    if missing.len() == facts.node.cdi.len() && has_records {
        findings.push(Finding::problem(
            Kind::CdiDirUnusable,
            format!("there are prepared claims, but no directory of CDI specs: {}", missing.join(", ")),
            "give --cdi-dir as the driver's, or restart the driver: it writes the specs again",
        ));
    }
    for (id, files) in devices.iter().filter(|(_, files)| files.len() > 1) {
        // A later directory has priority; two files of one directory make a conflict, and the device fails.
        let directories: BTreeSet<_> = files.iter().map(|file| file.path.parent()).collect();
        if directories.len() < files.len() {
            let paths: Vec<String> = files.iter().map(|file| file.path.display().to_string()).collect();
            findings.push(Finding::problem(
                Kind::CdiDeviceConflict,
                format!("CDI device {id} is in {}: runtimes refuse it", paths.join(" and ")),
                "remove the file that its writer no longer needs",
            ));
        }
    }
    or_ok(findings, || format!("{}, all valid", count(number, "CDI spec")))
}

fn invalid_spec(file: &SpecFile, problem: &str) -> Finding {
    let path = file.path.display();
    let message = format!("{path}: {problem}");
    match &file.owner {
        Some(owner) => Finding::problem(
            Kind::CdiSpecInvalid,
            message,
            format!("runtimes ignore it; delete the pod of {}: its next start writes the spec again", owner.driver),
        ),
        None => Finding::problem(Kind::CdiSpecForeign, message, "runtimes ignore it; ask the owner of the file"),
    }
}

/// Checks that specs and records belong together.
pub(super) fn records(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for driver in &facts.node.drivers {
        let claims: Vec<(&ClaimDirectory, &ClaimRecord)> =
            driver.files.claims.iter().filter_map(|claim| Some((claim, claim.record.as_ref().ok()?))).collect();
        let specs: Vec<&SpecFile> = specs_of(facts, driver).collect();
        let mut problems = Vec::new();
        for (claim, record) in &claims {
            problems.extend(missing_specs(driver, claim, record, &specs));
        }
        // A directory without a readable record may be that of the spec's claim.
        if driver.files.is_complete() {
            problems.extend(specs.iter().filter_map(|file| orphaned(driver, file, &claims)));
        }
        let number = specs.len();
        findings.extend(or_ok(problems, || {
            format!("{}: {} for {}", driver.name, count(number, "CDI spec"), count(claims.len(), "claim"))
        }));
    }
    findings
}

/// Returns the specs that a driver has written.
pub(crate) fn specs_of<'a>(facts: &'a Facts, driver: &'a DriverFacts) -> impl Iterator<Item = &'a SpecFile> {
    let contents = facts.node.cdi.iter().filter_map(|directory| directory.content.as_ref().ok());
    let specs = contents.flat_map(|content| &content.specs);
    specs.filter(move |file| file.owner.as_ref().is_some_and(|owner| owner.driver == driver.name.as_str()))
}

fn missing_specs(
    driver: &DriverFacts,
    claim: &ClaimDirectory,
    record: &ClaimRecord,
    specs: &[&SpecFile],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let restart = format!("delete the pod of {}: its next start writes the spec again", driver.name);
    let mut check = |name: String, request: Option<&str>| {
        let file = specs.iter().find(|file| file.path.file_name().is_some_and(|found| found == name.as_str()));
        let Some(file) = file else {
            let what = request.map_or("its container edits".to_owned(), |request| format!("request {request}"));
            findings.push(Finding::problem(
                Kind::CdiSpecMissing,
                format!("claim {}: no CDI spec for {what}, so its pods' containers cannot start", record.claim),
                restart.clone(),
            ));
            return;
        };
        let Some(request) = request else { return };
        let wanted = claim.path.join(request).join(drakkar_metadata::path::HOST_FILE);
        let Ok(spec) = &file.spec else { return };
        let mut mounts = spec.devices.iter().flat_map(|device| &device.container_edits.mounts);
        if mounts.any(|mount| Path::new(&mount.host_path) != wanted) {
            findings.push(Finding::problem(
                Kind::CdiSpecDiffers,
                format!("{} mounts another file than {}", file.path.display(), wanted.display()),
                restart.clone(),
            ));
        }
    };
    for (request, prepared) in &record.requests {
        // The spec of a gate that is closed is withheld, and so is one whose file a crash has destroyed.
        let found = claim.requests.iter().find(|found| found.name == request.as_str());
        let is_readable =
            found.is_some_and(|found| matches!(found.content, FileContent::Valid(_) | FileContent::NotWritten));
        let device = MetadataDevice::new(driver.name.clone(), record.claim.uid.clone(), request.clone());
        if let Ok(device) = device
            && !prepared.gated
            && is_readable
        {
            check(device.file_name(), Some(request.as_str()));
        }
    }
    if record.has_container_edits
        && let Ok(devices) = ClaimDevices::new(driver.name.clone(), record.claim.uid.clone())
    {
        check(devices.file_name(), None);
    }
    findings
}

fn orphaned(driver: &DriverFacts, file: &SpecFile, claims: &[(&ClaimDirectory, &ClaimRecord)]) -> Option<Finding> {
    let owner = file.owner.as_ref()?;
    let is_expected = claims.iter().any(|(_, record)| {
        let is_claim = record.claim.uid.as_str() == owner.claim_uid;
        is_claim
            && match &owner.request {
                Some(request) => record.requests.keys().any(|known| known.as_str() == request),
                None => record.has_container_edits,
            }
    });
    (!is_expected).then(|| {
        Finding::problem(
            Kind::CdiSpecOrphaned,
            format!("{} is for a claim or request that {} has no record of", file.path.display(), driver.name),
            format!("rm {}", shell_quoted(&file.path.to_string_lossy())),
        )
    })
}
