//! Tests that docs/driver-authors.md and docs/go-gaps.md match the code: flags, manifests, names of tests, links.
//!
//! The Rust snippets are compiled as documentation tests (the end of `src/lib.rs`). Those do not run `#[cfg(test)]` code, so the
//! first driver and its tests are also in [`guide`], and run here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use drakkar_plugin::k8s_openapi::api::apps::v1::DaemonSet;
use drakkar_plugin::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use drakkar_plugin::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use drakkar_plugin::k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use drakkar_plugin::{DEFAULT_CDI_DIRECTORY, DEFAULT_KUBELET_ROOT, Flags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::support::DRIVER;

#[allow(dead_code, clippy::needless_pass_by_value, reason = "it is a program of its own, in the style of its reader")]
mod guide;
#[allow(dead_code, clippy::needless_pass_by_value, reason = "it is a program of its own, in the style of its reader")]
mod network;
mod permissions;
/// The project that `drakkar new driver` writes: its tests run here too.
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::doc_markdown,
    clippy::unwrap_used,
    reason = "a program of its own"
)]
#[path = "../../../cli/templates/driver/src/main.rs"]
mod template;
mod test_kit;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(repository().join("docs").join(name)).unwrap()
}

/// Returns the code of all snippets in a language, such as `yaml` or `rust,no_run`.
fn snippets(page: &str, language: &str) -> Vec<String> {
    let mut snippets = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let code: String = lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
        if info == language {
            snippets.push(code);
        }
    }
    snippets
}

/// Returns the rows of all tables, as cells.
fn rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    rows.map(|row| row.split('|').map(str::trim).collect())
}

#[test]
fn the_first_driver_and_its_tests_are_compiled_and_run() {
    let page = page("driver-authors.md");
    let tests = snippets(&page, "rust").into_iter().find(|snippet| snippet.starts_with("#[cfg(test)]")).unwrap();
    let program = [snippets(&page, "rust,no_run")[0].clone(), tests].join("\n");
    assert_eq!(program, include_str!("documentation/guide.rs"));
}

#[test]
fn the_network_driver_is_compiled_and_run() {
    let page = page("driver-authors.md");
    let program = include_str!("documentation/network.rs").split("\n#[cfg(test)]").next().unwrap();
    assert_eq!(snippets(&page, "rust,no_run")[1], program);
}

/// The front pages of the crate and of the project show the driver of the guide.
#[test]
fn the_driver_of_the_readmes_is_the_one_of_the_guide() {
    let program = include_str!("documentation/guide.rs").split("\n#[cfg(test)]").next().unwrap();
    for (readme, language) in [("crates/plugin/README.md", "rust,no_run"), ("README.md", "rust")] {
        let text = std::fs::read_to_string(repository().join(readme)).unwrap();
        assert_eq!(snippets(&text, language)[0], program, "{readme}");
    }
}

#[test]
fn the_table_of_flags_has_exactly_the_flags_with_variable_and_default() {
    let command = <Flags as clap::Args>::augment_args(clap::Command::new("driver"));
    let mut flags = BTreeMap::new();
    for flag in command.get_arguments() {
        let default: Vec<&str> = flag.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
        let default = if default.is_empty() { "none".to_owned() } else { format!("`{}`", default.join(",")) };
        let name = format!("`--{}`", flag.get_long().unwrap());
        flags.insert(name, (format!("`{}`", flag.get_env().unwrap().to_str().unwrap()), default));
    }
    let page = page("driver-authors.md");
    let documented: BTreeMap<_, _> = rows(&page)
        .filter(|row| row.len() == 4 && row[0].starts_with("`--"))
        .map(|row| (row[0].to_owned(), (row[1].to_owned(), row[2].to_owned())))
        .collect();
    assert_eq!(documented, flags);
}

/// Decodes a manifest, and fails the test if it has unknown fields.
fn strict<T: DeserializeOwned + Serialize>(manifest: &Value) -> T {
    let object: T = serde_json::from_value(manifest.clone()).unwrap();
    let mut known = serde_json::to_value(&object).unwrap();
    for field in ["apiVersion", "kind"] {
        known[field] = manifest[field].clone();
    }
    assert_eq!(&known, manifest);
    object
}

/// Returns the manifests of the guide, by kind.
fn manifests() -> BTreeMap<String, Value> {
    let page = page("driver-authors.md");
    let documents = snippets(&page, "yaml").into_iter().flat_map(|yaml| {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
        documents
    });
    documents.map(|document| (document["kind"].as_str().unwrap().to_owned(), document)).collect()
}

#[test]
fn every_manifest_is_valid() {
    let manifests = manifests();
    let kinds: Vec<&str> = manifests.keys().map(String::as_str).collect();
    let expected = [
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
        "DeviceClass",
        "Namespace",
        "ResourceSlice",
        "ServiceAccount",
    ];
    assert_eq!(kinds, expected);
    let namespace: Namespace = strict(&manifests["Namespace"]);
    let account: ServiceAccount = strict(&manifests["ServiceAccount"]);
    let role: ClusterRole = strict(&manifests["ClusterRole"]);
    let binding: ClusterRoleBinding = strict(&manifests["ClusterRoleBinding"]);
    let set: DaemonSet = strict(&manifests["DaemonSet"]);
    assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    let [subject] = &binding.subjects.unwrap()[..] else { panic!("one subject") };
    assert_eq!(
        (Some(&subject.name), &subject.namespace),
        (account.metadata.name.as_ref(), &account.metadata.namespace)
    );
    assert_eq!(set.spec.template.spec.unwrap().service_account_name, account.metadata.name);
    assert_eq!(set.metadata.namespace, namespace.metadata.name);
    assert_eq!(account.metadata.namespace, namespace.metadata.name);
    strict::<DeviceClass>(&manifests["DeviceClass"]);
    let slice: ResourceSlice = strict(&manifests["ResourceSlice"]);
    assert_eq!(slice.spec.driver, DRIVER);
}

/// Returns the manifests with which the end-to-end tests deploy their driver, by kind.
fn tested_manifests() -> BTreeMap<String, Value> {
    let yaml = std::fs::read_to_string(repository().join("e2e/manifests/driver.yaml")).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
    documents.into_iter().map(|document| (document["kind"].as_str().unwrap().to_owned(), document)).collect()
}

#[test]
fn the_daemon_set_has_the_least_privileges_and_those_of_the_end_to_end_tests() {
    let context = |manifests: &BTreeMap<String, Value>| {
        manifests["DaemonSet"].pointer("/spec/template/spec/containers/0/securityContext").unwrap().clone()
    };
    let documented = context(&manifests());
    assert_eq!(documented, context(&tested_manifests()));
    assert_eq!(documented["capabilities"]["drop"][0], "ALL");
    assert_eq!(documented["allowPrivilegeEscalation"], false);
    assert_eq!(documented["readOnlyRootFilesystem"], true);
    assert_eq!(documented["privileged"], Value::Null);
}

#[test]
fn the_permissions_are_those_of_the_end_to_end_tests() {
    let verbs_of = |rules: &Value| -> BTreeMap<String, BTreeSet<String>> {
        let rules = rules["rules"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        rules
            .map(|rule| (text(&rule["resources"][0]), rule["verbs"].as_array().unwrap().iter().map(text).collect()))
            .collect()
    };
    let role = verbs_of(&manifests()["ClusterRole"]);
    assert_eq!(role, verbs_of(&tested_manifests()["ClusterRole"]));
    let mut table = BTreeMap::new();
    for row in rows(&page("driver-authors.md")).filter(|row| row.len() == 4 && row[2].starts_with('`')) {
        let resource = row[2].trim_start_matches('`').split('`').next().unwrap();
        if role.contains_key(resource) {
            // Verbs after a semicolon are for drivers that the end-to-end tests do not deploy.
            let verbs = row[3].split(';').next().unwrap().split(", ").map(str::to_owned).collect();
            table.insert(resource.to_owned(), verbs);
        }
    }
    assert_eq!(table, role, "the table and the manifest");
}

#[test]
fn the_daemon_set_mounts_the_needed_directories_under_their_host_paths_and_sets_existing_flags() {
    let set: DaemonSet = strict(&manifests()["DaemonSet"]);
    let pod = set.spec.template.spec.unwrap();
    let [driver] = &pod.containers[..] else { panic!("one container") };
    let mounted: BTreeMap<&str, &str> = driver
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| {
            let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name).unwrap();
            (mount.mount_path.as_str(), volume.host_path.as_ref().unwrap().path.as_str())
        })
        .collect();
    let registry = format!("{DEFAULT_KUBELET_ROOT}/plugins_registry");
    let plugin = format!("{DEFAULT_KUBELET_ROOT}/plugins/{DRIVER}");
    let needed = [registry.as_str(), plugin.as_str(), DEFAULT_CDI_DIRECTORY];
    assert_eq!(mounted, needed.into_iter().map(|path| (path, path)).collect());

    let command = <Flags as clap::Args>::augment_args(clap::Command::new("driver"));
    let variables: BTreeSet<_> = command.get_arguments().filter_map(|flag| flag.get_env()?.to_str()).collect();
    for variable in driver.env.iter().flatten() {
        assert!(variables.contains(variable.name.as_str()), "{}", variable.name);
    }
    let arguments = driver.args.clone().unwrap();
    command.clone().try_get_matches_from(["driver".to_owned()].into_iter().chain(arguments)).unwrap();
}

#[test]
fn every_gap_of_the_go_framework_has_exactly_one_row() {
    let page = page("go-gaps.md");
    let mut numbers: Vec<u32> = rows(&page).filter_map(|row| row[0].strip_prefix('G')?.parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=63).collect::<Vec<_>>());
}

/// A row names tests as `path`: `name`, `name`; `path`: `name` and so on.
#[test]
fn the_tests_that_the_rows_name_exist() {
    let page = page("go-gaps.md");
    let mut checked = 0;
    for row in rows(&page).filter(|row| row[0].starts_with('G')) {
        let [gap, _, _, tests] = row[..] else { panic!("four cells: {row:?}") };
        let mut source = None;
        for name in tests.split('`').skip(1).step_by(2) {
            if name.contains('/') {
                let path = repository().join("crates").join(name);
                source = Some(std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{gap}: {name}: {error}")));
            } else {
                let source = source.as_ref().unwrap_or_else(|| panic!("{gap}: {name} has no file before it"));
                assert!(source.contains(&format!("fn {name}(")), "{gap}: there is no test {name}");
            }
            checked += 1;
        }
    }
    assert!(checked > 45, "{checked}");
}

/// The faults of docs/RELIABILITY.md were tried by tests that exist.
#[test]
fn the_tests_of_the_promises_exist() {
    let page = page("RELIABILITY.md");
    let names = page.split('`').skip(1).step_by(2);
    let paths: Vec<&str> =
        names.filter(|name| ["crates/", "drivers/", "e2e/"].iter().any(|top| name.starts_with(top))).collect();
    assert!(paths.len() > 20, "{paths:?}");
    for path in paths {
        assert!(repository().join(path).exists(), "{path} does not exist");
    }
}

#[test]
fn links_lead_to_existing_files_and_headings() {
    for name in ["driver-authors.md", "go-gaps.md"] {
        let page = page(name);
        let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let text = match file {
                "" => page.clone(),
                file => std::fs::read_to_string(repository().join("docs").join(file))
                    .unwrap_or_else(|error| panic!("{name}: {target}: {error}")),
            };
            assert!(heading.is_empty() || text.lines().filter_map(anchor).any(|known| known == heading), "{target}");
        }
    }
}

/// Returns the anchor of a heading.
fn anchor(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}
