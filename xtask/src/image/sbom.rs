//! The software bill of materials of an image: what is linked into its program, as `CycloneDX` 1.6 in JSON.
//!
//! The packages are those that cargo links for the target, with their features as they are built: build scripts and procedural macros are
//! not part of the program. Checksums are those of Cargo.lock. There is neither a time nor a serial number in it, so that the same
//! sources give the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::e2e::cargo_command;
use drakkar_e2e::run;

/// A package in a program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    name: String,
    version: String,
    /// The expression of its manifest; empty if it has none.
    license: String,
}

/// Returns the SBOM of a package's program.
pub(super) fn of_package(package: &str, target: &str, top: &Path) -> Result<String> {
    let mut tree = cargo_command(&["tree", "--locked", "--package", package, "--target", target]);
    tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]);
    let packages = parse_tree(&run(tree.current_dir(top))?)?;
    let lock = top.join("Cargo.lock");
    let checksums = checksums(&fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?);
    let rustc = run(Command::new("rustc").arg("--version"))?;
    let document = document(package, &packages, &checksums, rustc.trim())?;
    Ok(format!("{document:#}\n"))
}

fn document(
    package: &str,
    packages: &BTreeSet<Linked>,
    checksums: &BTreeMap<(String, String), String>,
    rustc: &str,
) -> Result<Value> {
    let own = packages.iter().find(|linked| linked.name == package);
    let own = own.with_context(|| format!("cargo tree does not print {package}"))?;
    let mut components: Vec<Value> = packages
        .iter()
        .filter(|linked| *linked != own)
        .map(|linked| {
            let mut component = component(linked, "library");
            if let Some(checksum) = checksums.get(&(linked.name.clone(), linked.version.clone())) {
                component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
            }
            component
        })
        .collect();
    // Linked in and of no package: the standard library, and the C library of the host.
    let release = rustc.split_whitespace().nth(1).with_context(|| format!("a release in `{rustc}`"))?;
    components.push(json!({
        "type": "library", "bom-ref": "rust-std", "name": "rust-std", "version": release,
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }));
    components.push(json!({
        "type": "library", "bom-ref": "glibc", "name": "glibc", "licenses": [{"expression": "LGPL-2.1-or-later"}],
        "description": "of the host that built the program",
    }));
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(own, "application")},
        "components": components,
    }))
}

fn component(linked: &Linked, kind: &str) -> Value {
    let reference = format!("pkg:cargo/{}@{}", linked.name, linked.version);
    let mut component = json!({
        "type": kind, "bom-ref": reference, "purl": reference, "name": linked.name, "version": linked.version,
    });
    if !linked.license.is_empty() {
        // An older notation of manifests, which is no SPDX expression.
        let expression = linked.license.replace('/', " OR ");
        component["licenses"] = json!([{"expression": expression}]);
    }
    component
}

/// Parses lines of `NAME vVERSION[ (SOURCE)]|LICENSE`.
fn parse_tree(printed: &str) -> Result<BTreeSet<Linked>> {
    let parse = |line: &str| {
        let (package, license) = line.rsplit_once('|')?;
        let mut words = package.split_whitespace();
        let name = words.next()?.to_owned();
        let version = words.next()?.strip_prefix('v')?.to_owned();
        Some(Linked { name, version, license: license.trim().to_owned() })
    };
    let lines = printed.lines().filter(|line| !line.trim().is_empty());
    let packages: BTreeSet<Linked> = lines
        .map(|line| parse(line).with_context(|| format!("a line of cargo tree: `{line}`")))
        .collect::<Result<_>>()?;
    ensure!(!packages.is_empty(), "cargo tree prints nothing");
    Ok(packages)
}

/// The checksums in Cargo.lock by name and version. Packages of the workspace have none.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let package = |text: &str| {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        Some(((field("name")?.to_owned(), field("version")?.to_owned()), field("checksum")?.to_owned()))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
drakkar-x v0.1.0 (/src/drivers/x)|Apache-2.0
libc v0.2.1|MIT/Apache-2.0
serde v1.0.2|MIT OR Apache-2.0
libc v0.2.1|MIT/Apache-2.0
";
    const LOCK: &str = r#"
[[package]]
name = "drakkar-x"
version = "0.1.0"

[[package]]
name = "libc"
version = "0.2.1"
source = "registry"
checksum = "0a"
"#;

    #[test]
    fn a_program_has_its_packages_once_with_license_and_checksum() {
        let packages = parse_tree(TREE).unwrap();
        let made = document("drakkar-x", &packages, &checksums(LOCK), "rustc 1.95.0 (abc 2026)").unwrap();
        assert_eq!(made["metadata"]["component"]["purl"], "pkg:cargo/drakkar-x@0.1.0");
        let names: Vec<_> =
            made["components"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["libc", "serde", "rust-std", "glibc"]);
        let libc = &made["components"][0];
        assert_eq!(libc["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(libc["hashes"][0]["content"], "0a");
        assert_eq!(made["components"][1].get("hashes"), None);
        assert_eq!(made["components"][2]["version"], "1.95.0");
    }

    #[test]
    fn what_cannot_be_parsed_and_a_missing_program_are_errors() {
        assert!(parse_tree("warning: something\n").unwrap_err().to_string().contains("`warning: something`"));
        assert!(parse_tree("").is_err());
        let packages = parse_tree(TREE).unwrap();
        let error = document("drakkar-y", &packages, &BTreeMap::new(), "rustc 1.95.0").unwrap_err().to_string();
        assert!(error.contains("drakkar-y"), "{error}");
    }
}
