//! A cargo project of a user, built offline with the versions of this repository's lock file.
//!
//! By default a project shares the build of this workspace, so that only the crates of this repository and the project itself are
//! compiled. Cargo reuses what it has compiled of a crate if its features and those of all its dependencies are the same. So the
//! project gets one more dependency: an empty package, `shared-features`, which turns on what the workspace turns on.
//!
//! That could hide a feature that the project should turn on itself. `DRAKKAR_OWN_BUILD=1` builds projects as their users do, with
//! nothing added and in a target directory of their own, which takes minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The package that has the features of the workspace.
const SHARED_FEATURES: &str = "shared-features";

/// Held by the project that is built: cargo would let the others wait, and they write to the same package.
static BUILDING: Mutex<()> = Mutex::new(());

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The directory of a project, without a target directory.
pub(crate) struct Project {
    path: PathBuf,
    target: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Project {
    /// Uses a project that exists.
    pub(crate) fn at(path: PathBuf) -> Self {
        let alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        // target/PROFILE/deps/it-HASH
        let shared = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
        let target = if has_own_build() { shared.join("projects") } else { shared };
        fs::create_dir_all(&target).unwrap();
        // For commands that name a program in it. Cargo gets the path itself, since paths are part of what it compares.
        std::os::unix::fs::symlink(&target, path.join("target")).unwrap();
        // The versions that are certainly on this machine.
        fs::copy(repository().join("Cargo.lock"), path.join("Cargo.lock")).unwrap();
        fs::create_dir_all(path.join(".cargo")).unwrap();
        fs::write(path.join(".cargo/config.toml"), profiles()).unwrap();
        Self { path, target, _alone: alone }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a command line in the project, with this `drakkar`; returns its output, or fails the test.
    pub(crate) fn run(&self, command: &str) -> String {
        if !has_own_build() {
            self.share_build();
        }
        let since = Instant::now();
        let output = self.shell(command);
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        println!("{command}: {}, {:.1} s, built {}", output.status, since.elapsed().as_secs_f64(), built(&text));
        assert!(output.status.success(), "{command}: {}\n{text}", output.status);
        text
    }

    fn shell(&self, command: &str) -> Output {
        let mut path = OsString::from(snapbox::cmd::cargo_bin!("drakkar").parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&self.path).env("PATH", path).env("CARGO_TARGET_DIR", &self.target);
        shell
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TERM_COLOR", "never")
            .env("NO_COLOR", "1")
            .env("COLUMNS", "80");
        shell.output().unwrap()
    }

    /// Makes the project depend on the features of the workspace.
    fn share_build(&self) {
        let manifest = self.path.join("Cargo.toml");
        let content = fs::read_to_string(&manifest).unwrap();
        if content.contains(SHARED_FEATURES) {
            return;
        }
        // One path for all projects: it is part of the identity of a package.
        let package = self.target.join(SHARED_FEATURES);
        fs::create_dir_all(package.join("src")).unwrap();
        fs::write(package.join("src/lib.rs"), "").unwrap();
        fs::write(package.join("Cargo.toml"), shared_features()).unwrap();
        let dependency = format!("\n[target.'cfg(all())'.dependencies]\n{SHARED_FEATURES}.path = {package:?}\n");
        fs::write(&manifest, content + &dependency).unwrap();
    }
}

/// Returns whether projects are built as their users do.
fn has_own_build() -> bool {
    std::env::var_os("DRAKKAR_OWN_BUILD").is_some()
}

/// Returns the development profile of this workspace, which must be the project's to share its build.
fn profiles() -> String {
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let sections = manifest.split("\n[").filter(|section| section.starts_with("profile.dev"));
    sections.flat_map(|section| ["[", section, "\n"]).collect()
}

/// Counts what cargo says that it compiled or checked, by packages of the registry and those of a directory.
fn built(output: &str) -> String {
    let is_step = |line: &&str| ["Compiling ", "Checking "].iter().any(|step| line.trim_start().starts_with(step));
    let (local, registry): (Vec<&str>, Vec<&str>) =
        output.lines().filter(is_step).partition(|line| line.ends_with(')'));
    format!("{} packages of the registry and {} others", registry.len(), local.len())
}

/// The name and the version of a package.
type Package = (String, String);

/// Returns the packages of the registry that a directory's packages depend on, each with its sets of features: there are two if a
/// package is used both by programs and at build time.
fn tree(directory: &Path, edges: &str, options: &[&str]) -> BTreeMap<Package, BTreeSet<String>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["tree", "--offline", "--prefix", "none", "--format", "{p}|{f}", "--edges", edges]).args(options);
    let output = cargo.current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<Package, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Some((package, features)) = line.trim_end_matches(" (*)").split_once('|') else { continue };
        // NAME vVERSION, and (PATH) if it is not of the registry.
        let mut words = package.trim_end_matches(" (proc-macro)").split(' ');
        if let (Some(name), Some(version), None) = (words.next(), words.next(), words.next()) {
            let package = (name.to_owned(), version.trim_start_matches('v').to_owned());
            packages.entry(package).or_default().insert(features.to_owned());
        }
    }
    packages
}

/// Returns the manifest of a package that depends on all that this workspace depends on, with the same features.
fn shared_features() -> String {
    let of_programs = tree(&repository(), "normal,dev,no-proc-macro", &["--workspace"]);
    let mut at_build_time = tree(&repository(), "normal,build,dev", &["--workspace"]);
    for (package, features) in &of_programs {
        at_build_time.entry(package.clone()).and_modify(|sets| sets.retain(|set| !features.contains(set)));
    }
    at_build_time.retain(|_, sets| !sets.is_empty());
    let mut manifest = format!("[package]\nname = \"{SHARED_FEATURES}\"\nedition = \"2024\"\n\n[workspace]\n");
    for (section, packages) in [("dependencies", of_programs), ("build-dependencies", at_build_time)] {
        writeln!(manifest, "\n[{section}]").unwrap();
        for ((package, version), sets) in packages {
            let features: Vec<&str> =
                sets.iter().flat_map(|set| set.split(',')).filter(|name| !name.is_empty()).collect();
            // What follows the `+` of a version is not part of a requirement.
            let version = version.split('+').next().unwrap_or_default();
            // A package can be there in several versions, but must have one name.
            let name = format!("{package}-{version}").replace('.', "-");
            let options = format!("version = \"={version}\", default-features = false, features = {features:?}");
            writeln!(manifest, "{name} = {{ package = \"{package}\", {options} }}").unwrap();
        }
    }
    manifest
}
