//! `drakkar new driver`: the files that it writes, and the tests of the driver that they are.
//!
//! That the templates compile and their tests pass is part of the tests of `drakkar-plugin`. The ignored test here builds a whole
//! project with cargo: `cargo xtask test drakkar it -- --ignored generated_project`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::project::{Project, repository};
use crate::support::drakkar;

/// Returns the files below a directory, relative to it.
fn files(directory: &Path) -> BTreeSet<String> {
    fn walk(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(directory, directory, &mut found);
    found
}

/// Creates the project of a driver in a directory, and returns the project's directory.
fn new_driver(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join("project");
    let source = repository();
    let command = drakkar().args(["new", "driver", name, "--path"]).arg(&path).arg("--drakkar-path").arg(source);
    let assert = command.assert().success().stderr_eq("");
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in
        [&format!("with the DRA driver {name}:"), "  src/driver.rs", "  cargo test\n", "drakkar demo --driver '"]
    {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    path
}

#[test]
fn every_template_becomes_a_file_with_the_names_of_the_driver() {
    let directory = TempDir::new().unwrap();
    let project = new_driver(directory.path(), "nic.example.org");
    let templates = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/driver"));
    let expected: BTreeSet<String> = templates.into_iter().map(|name| name.replace(".toml.in", ".toml")).collect();
    assert_eq!(files(&project), expected);
    for name in &expected {
        let content = fs::read_to_string(project.join(name)).unwrap();
        for placeholder in ["gpu.example.com", "gpu-driver", "DRAKKAR"] {
            assert!(!content.contains(placeholder), "{placeholder} is in {name}");
        }
    }
    let read = |name: &str| fs::read_to_string(project.join(name)).unwrap();
    assert!(read("src/driver.rs").contains("DRIVER: &str = \"nic.example.org\""));
    assert!(read("Cargo.toml").contains("name = \"nic-driver\""));
    assert!(read("README.md").contains("$ cargo test\n"));
}

#[test]
fn the_manifests_are_those_of_the_guide_with_the_names_of_the_driver() {
    let directory = TempDir::new().unwrap();
    let project = new_driver(directory.path(), "nic.example.org");
    let yaml = fs::read_to_string(project.join("deploy/driver.yaml")).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
    let page = fs::read_to_string(repository().join("docs/driver-authors.md")).unwrap();
    let page = page.replace("gpu.example.com", "nic.example.org").replace("gpu-driver", "nic-driver");
    let blocks = page.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next());
    let documented: Vec<Value> =
        blocks.flat_map(|block| serde_saphyr::from_multiple::<Value>(block).unwrap()).collect();
    for document in &documents {
        assert!(documented.contains(document), "{} of deploy/driver.yaml is not in the guide", document["kind"]);
    }
    assert_eq!(documents.len(), 6);
}

#[test]
fn a_directory_with_files_is_left_alone() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("mine"), "precious").unwrap();
    let command = drakkar().args(["new", "driver", "gpu.example.com", "--path"]).arg(directory.path());
    let assert = command.arg("--drakkar-path").arg(repository()).assert().code(2);
    let message = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(message.contains("is not empty") && message.contains("--path"), "{message}");
    assert_eq!(files(directory.path()).into_iter().collect::<Vec<_>>(), ["mine"]);
}

#[test]
fn wrong_arguments_are_explained() {
    let directory = TempDir::new().unwrap();
    for (arguments, code, problem) in [
        (&["gpu"][..], 2, "must be a domain name that you own, such as gpu.example.com"),
        (&["gpu..example.com"], 2, "driver name \"gpu..example.com\""),
        (&["3d.example.com"], 2, "must start with a letter"),
        (&["gpu.example.com"], 3, "--drakkar-path"),
        (&["gpu.example.com", "--drakkar-path", "/nonexistent"], 1, "/nonexistent"),
        (&["gpu.example.com", "--drakkar-path", "."], 3, "no source of Drakkar here"),
    ] {
        let output = drakkar().args(["new", "driver"]).args(arguments).current_dir(directory.path()).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.contains(problem), "{arguments:?}: {message}");
    }
    assert!(files(directory.path()).is_empty(), "nothing is written before the arguments are checked");
}

/// Without `--drakkar-path`: the source that contains the current directory, which is where `cargo run -- new` runs.
#[test]
fn the_source_around_the_current_directory_is_found() {
    let directory = TempDir::new().unwrap();
    let command = drakkar().args(["new", "driver", "gpu.example.com", "--path"]).arg(directory.path());
    command.current_dir(env!("CARGO_MANIFEST_DIR")).assert().success();
    let manifest = fs::read_to_string(directory.path().join("Cargo.toml")).unwrap();
    // Relative to the project, if both have a directory in common.
    let dependency = manifest.lines().find_map(|line| line.strip_prefix("drakkar-plugin = { path = \""));
    let path = dependency.and_then(|rest| rest.strip_suffix("\" }")).unwrap_or_else(|| panic!("{manifest}"));
    let plugin = repository().join("crates/plugin").canonicalize().unwrap();
    assert_eq!(directory.path().canonicalize().unwrap().join(path).canonicalize().unwrap(), plugin);
}

#[test]
#[ignore = "builds a project: cargo xtask test drakkar it -- --ignored word_by_word generated_project"]
fn the_generated_project_is_formatted_builds_without_warnings_and_passes_its_tests() {
    let directory = TempDir::new().unwrap();
    let project = Project::at(new_driver(directory.path(), "nic.example.org"));
    project.run("cargo fmt --check");
    project.run("cargo clippy --all-targets -- -D warnings");
    let output = project.run("cargo test");
    assert!(output.contains("a_pod_has_its_device_and_reads_its_metadata ... ok"), "{output}");
    assert!(output.contains("test result: ok. 4 passed; 0 failed; 0 ignored"), "{output}");
    let output = project.run("cargo build && drakkar demo --driver 'target/debug/nic-driver --enable-device-metadata'");
    assert!(output.contains("Driver nic.example.org is registered") && output.contains("No leftovers"), "{output}");
}
