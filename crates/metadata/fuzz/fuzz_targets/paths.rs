//! Any bytes as a path, a query or a name; and any names in a path.
//!
//! A parsed value prints as exactly the same text. No path leaves the directory of its layout, and none has a part that is
//! `.` or `..`.

#![no_main]

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::str::FromStr;

use drakkar_metadata::Query;
use drakkar_metadata::name::{
    ClaimName, ClaimUid, DeviceName, DriverName, Namespace, PodClaimName, PoolName, RequestName,
};
use drakkar_metadata::path::{ContainerFile, HOST_SUBDIR, HostFile, KEP_DIR, KUBERNETES_DIR};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| any_text(bytes));

fn any_text(bytes: &[u8]) {
    let path = Path::new(OsStr::from_bytes(bytes));
    container_path(path);
    host_path(path);
    if let Ok(text) = str::from_utf8(bytes) {
        query(text);
        names(text);
        paths_from_names(text);
    }
}

fn container_path(path: &Path) {
    match ContainerFile::parse(path) {
        Ok(file) => {
            assert_eq!(file.path().as_os_str(), path.as_os_str());
            stays_below_its_directory(&file);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn host_path(path: &Path) {
    match HostFile::parse(path) {
        Ok(file) => {
            let built = file.relative_path().expect("what was parsed can be built");
            assert_eq!(built.as_os_str(), path.as_os_str());
            has_plain_parts_only(&built);
            assert!(built.starts_with(HOST_SUBDIR));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn query(text: &str) {
    match text.parse::<Query>() {
        Ok(query) => {
            assert_eq!(query.to_string(), text);
            has_plain_parts_only(Path::new(text));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn names(text: &str) {
    let is_part = [
        name::<DriverName>(text),
        name::<DeviceName>(text),
        name::<Namespace>(text),
        name::<ClaimName>(text),
        name::<PodClaimName>(text),
        name::<RequestName>(text),
        name::<ClaimUid>(text),
    ];
    if is_part.contains(&true) {
        assert_eq!(Path::new(KEP_DIR).join(text).parent(), Some(Path::new(KEP_DIR)));
        assert_eq!(Path::new(text).components().collect::<Vec<_>>(), [Component::Normal(OsStr::new(text))]);
        assert!(!text.contains(['/', '\0']));
    }
    if name::<PoolName>(text) {
        has_plain_parts_only(Path::new(text));
    }
}

/// Returns whether the text is such a name, and checks that a name keeps its text.
fn name<N>(text: &str) -> bool
where
    N: FromStr<Err: Display> + AsRef<str> + Display,
{
    match text.parse::<N>() {
        Ok(name) => {
            assert_eq!(name.as_ref(), text);
            assert_eq!(name.to_string(), text);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Builds paths in every layout from claim, request, driver and UID or namespace, one per line.
fn paths_from_names(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    let [claim, request, driver, other] = lines[..] else { return };
    let (Ok(request), Ok(driver)) = (request.parse::<RequestName>(), driver.parse::<DriverName>()) else { return };
    if let Ok(claim) = claim.parse::<ClaimName>() {
        parses_back(ContainerFile::Claim { claim: claim.clone(), request: request.clone(), driver: driver.clone() });
        parses_back(ContainerFile::Kep { claim: claim.clone(), request: request.clone(), driver: driver.clone() });
        parses_back(ContainerFile::Vep10 { driver: driver.clone(), claim: claim.clone() });
        if let Ok(namespace) = other.parse::<Namespace>() {
            let file = HostFile { namespace, claim, request: request.clone() };
            if let Ok(path) = file.relative_path() {
                assert_eq!(HostFile::parse(&path), Ok(file));
            }
        }
    }
    if let Ok(pod_claim) = claim.parse::<PodClaimName>() {
        parses_back(ContainerFile::Template { pod_claim, request: request.clone(), driver: driver.clone() });
    }
    if let Ok(uid) = other.parse::<ClaimUid>() {
        // Parsing finds only UIDs that are UUIDs.
        stays_below_its_directory(&ContainerFile::EarlyDraft { driver, uid, request });
    }
}

fn parses_back(file: ContainerFile) {
    stays_below_its_directory(&file);
    assert_eq!(ContainerFile::parse(&file.path()), Ok(file));
}

fn stays_below_its_directory(file: &ContainerFile) {
    let path = file.path();
    let directory = match file {
        ContainerFile::Claim { .. } | ContainerFile::Template { .. } => KUBERNETES_DIR,
        ContainerFile::Kep { .. } | ContainerFile::Vep10 { .. } | ContainerFile::EarlyDraft { .. } => KEP_DIR,
        other => panic!("no directory is known for {other:?}"),
    };
    has_plain_parts_only(path.strip_prefix(directory).expect("a path starts with the directory of its layout"));
}

fn has_plain_parts_only(path: &Path) {
    assert!(path.components().all(|component| matches!(component, Component::Normal(_))), "{}", path.display());
}
