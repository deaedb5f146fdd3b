//! CDI: whether the runtime resolves devices, and whether the specs are those of the records.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use drakkar_cdi::{ClaimDevices, DEVICE_CLASS, MetadataDevice, Spec};
use drakkar_metadata::path::ContainerFile;
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
            problems.extend(specs_of_claim(facts, driver, claim, record, &specs));
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

/// Checks that the specs of a claim are there, and are those that the record calls for.
fn specs_of_claim(
    facts: &Facts,
    driver: &DriverFacts,
    claim: &ClaimDirectory,
    record: &ClaimRecord,
    specs: &[&SpecFile],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let restart = format!("delete the pod of {}: its next start writes the spec again", driver.name);
    // Returns the spec of this name, unless runtimes ignore it, which is a finding of its own.
    let mut spec_of = |name: &str, what: String| {
        let file = specs.iter().find(|file| file.path.file_name().is_some_and(|found| found == name));
        if file.is_none() {
            findings.push(Finding::problem(
                Kind::CdiSpecMissing,
                format!("claim {}: no CDI spec for {what}, so its pods' containers cannot start", record.claim),
                restart.clone(),
            ));
        }
        file.and_then(|file| Some((*file, file.spec.as_ref().ok()?)))
    };
    let mut differences = Vec::new();
    for (request, prepared) in &record.requests {
        // The spec of a gate that is closed is withheld, and so is one whose file a crash has destroyed.
        let found = claim.requests.iter().find(|found| found.name == request.as_str());
        let is_readable =
            found.is_some_and(|found| matches!(found.content, FileContent::Valid(_) | FileContent::NotWritten));
        let device = MetadataDevice::new(driver.name.clone(), record.claim.uid.clone(), request.clone());
        if let Ok(device) = device
            && !prepared.gated
            && is_readable
            && let Some((file, spec)) = spec_of(device.file_name(), format!("request {request}"))
        {
            differences
                .extend(spec_difference(spec, &device, record, &claim.path).map(|difference| (file, difference)));
        }
    }
    if record.has_container_edits
        && let Ok(devices) = ClaimDevices::new(driver.name.clone(), record.claim.uid.clone())
        && let Some((file, spec)) = spec_of(&devices.file_name(), "its container edits".to_owned())
    {
        let undefined = passed_edits(facts, driver, record).find(|id| !is_defined(spec, id));
        differences.extend(undefined.map(|id| (file, format!("does not define {id}, which the kubelet passes on"))));
    }
    let differing = differences.into_iter().map(|(file, difference)| {
        Finding::problem(Kind::CdiSpecDiffers, format!("{} {difference}", file.path.display()), restart.clone())
    });
    findings.extend(differing);
    findings
}

/// Returns what the spec of a request's metadata is not, or has beside it: runtimes do all that a spec says.
pub(crate) fn spec_difference(
    spec: &Spec,
    device: &MetadataDevice,
    record: &ClaimRecord,
    claim_path: &Path,
) -> Option<String> {
    let wanted = claim_path.join(device.request().as_str()).join(drakkar_metadata::path::HOST_FILE);
    if !is_defined(spec, &device.id().to_string()) {
        return Some(format!("does not define {}, which the kubelet passes on", device.id()));
    }
    let mounts = || spec.devices.iter().flat_map(|device| &device.container_edits.mounts);
    if mounts().any(|mount| Path::new(&mount.host_path) != wanted) {
        return Some(format!("mounts another file than {}", wanted.display()));
    }
    let is_of_request = |path: &str| match ContainerFile::parse(Path::new(path)) {
        Ok(ContainerFile::Claim { claim, request, driver } | ContainerFile::Kep { claim, request, driver }) => {
            (&claim, &request, &driver) == (&record.claim.name, device.request(), device.driver())
        }
        Ok(ContainerFile::Template { pod_claim, request, driver }) => {
            (Some(&pod_claim), &request, &driver) == (record.pod_claim.as_ref(), device.request(), device.driver())
        }
        _ => false,
    };
    if let Some(other) = mounts().find(|mount| !is_of_request(&mount.container_path)) {
        return Some(format!("mounts the metadata at another path: {}", other.container_path));
    }
    if mounts().next().is_none() {
        return Some(format!("does not mount {}", wanted.display()));
    }
    let is_same = device
        .spec(&wanted, mounts().map(|mount| &mount.container_path))
        .is_ok_and(|same| same.devices == spec.devices && same.container_edits == spec.container_edits);
    (!is_same).then(|| "has more than read-only mounts of the metadata".to_owned())
}

fn is_defined(spec: &Spec, id: &str) -> bool {
    let names = |device: &drakkar_cdi::Device| format!("{}={}", spec.kind, device.name) == id;
    spec.devices.iter().any(names)
}

/// Returns the CDI devices with a claim's container edits that the kubelet passes to the runtime.
fn passed_edits<'a>(
    facts: &'a Facts,
    driver: &DriverFacts,
    record: &ClaimRecord,
) -> impl Iterator<Item = &'a String> + use<'a> {
    let known = facts.node.checkpoint.claim(record.claim.uid.as_str());
    let state = known.and_then(|known| known.driver_state.get(driver.name.as_str()));
    let ids = state.into_iter().flat_map(|state| &state.devices).flat_map(|device| &device.cdi_device_ids);
    let kind = format!("{}/{DEVICE_CLASS}=", driver.name);
    ids.filter(move |id| id.starts_with(&kind))
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
