#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` in the arguments reads best")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn directories() -> (TempDir, Vec<PathBuf>) {
    let base = tempfile::tempdir().unwrap();
    let directories: Vec<PathBuf> = ["low", "high"].map(|name| base.path().join(name)).to_vec();
    directories.iter().for_each(|directory| fs::create_dir(directory).unwrap());
    (base, directories)
}

fn spec(devices: &[(&str, &str)], edits: Value) -> String {
    let device = |(name, value): &(&str, &str)| json!({ "name": name, "containerEdits": { "env": [value] } });
    let devices: Vec<Value> = devices.iter().map(device).collect();
    json!({ "cdiVersion": "0.6.0", "kind": "example.com/x", "devices": devices, "containerEdits": edits }).to_string()
}

fn write(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join(name), text).unwrap();
}

fn env(specs: &Specs, devices: &[&str]) -> Vec<String> {
    let devices: Vec<String> = devices.iter().map(|name| format!("example.com/x={name}")).collect();
    let mut edits = Edits::default();
    specs.inject(&devices, &mut edits).unwrap();
    edits.env.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[test]
fn a_later_directory_has_priority_device_by_device() {
    let (_base, directories) = directories();
    write(&directories[0], "a.json", &spec(&[("0", "FROM=low"), ("1", "FROM=low")], json!({})));
    write(&directories[1], "a.json", &spec(&[("0", "FROM=high")], json!({})));
    let specs = scan(&directories);
    assert_eq!(env(&specs, &["0"]), ["FROM=high"]);
    assert_eq!(env(&specs, &["1"]), ["FROM=low"]);
    assert!(specs.problems().is_empty());
}

#[test]
fn a_device_in_two_files_of_one_directory_is_in_neither_and_priority_does_not_help() {
    let (_base, directories) = directories();
    write(&directories[0], "a.json", &spec(&[("0", "A=1"), ("1", "A=1")], json!({})));
    write(&directories[0], "b.json", &spec(&[("0", "B=1"), ("2", "B=1")], json!({})));
    write(&directories[1], "c.json", &spec(&[("0", "C=1"), ("1", "C=1")], json!({})));
    let specs = scan(&directories);
    assert_eq!(specs.names(), ["example.com/x=1", "example.com/x=2"]);
    assert_eq!(env(&specs, &["1"]), ["C=1"]);
    let files: Vec<_> = specs.problems().iter().map(|problem| problem.path.file_name().unwrap().to_owned()).collect();
    assert_eq!(files, ["b.json", "a.json"]);
    assert!(specs.problems()[0].problem.starts_with("conflicting device \"example.com/x=0\""));
}

#[test]
fn invalid_files_are_reported_and_do_not_affect_others() {
    let (_base, directories) = directories();
    let [low, high] = &directories[..] else { panic!("two directories") };
    write(low, "broken.json", "{");
    write(low, "empty.json", "");
    write(low, "unknown-key.json", r#"{"cdiVersion": "0.6.0", "kind": "example.com/x", "what": 1}"#);
    write(low, "invalid.json", &spec(&[("-", "A=1")], json!({})));
    write(low, "twice.yaml", "cdiVersion: 0.6.0\nkind: a.b/c\nkind: a.b/c\n");
    fs::create_dir(low.join("directory.json")).unwrap();
    std::os::unix::fs::symlink(low, low.join("link-to-directory.json")).unwrap();
    std::os::unix::fs::symlink("nowhere", low.join("dangling.json")).unwrap();
    let pipe = low.join("pipe.json");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    write(low, "ignored.yml", "not: a spec");
    write(low, "ignored.json.tmp", "{");
    write(high, ".hidden.json", &spec(&[("good", "A=1")], json!({})));
    let specs = scan(&directories);
    assert_eq!(specs.names(), ["example.com/x=good"]);
    let bad: Vec<_> =
        specs.problems().iter().map(|problem| problem.path.file_name().unwrap().to_str().unwrap()).collect();
    let expected = [
        "broken.json",
        "dangling.json",
        "empty.json",
        "invalid.json",
        "link-to-directory.json",
        "pipe.json",
        "twice.yaml",
        "unknown-key.json",
    ];
    assert_eq!(bad, expected);
}

#[test]
fn links_to_files_are_followed_and_yaml_is_read() {
    let (base, directories) = directories();
    let yaml = "cdiVersion: \"0.6.0\"\nkind: example.com/x\ndevices:\n- name: y\n  containerEdits:\n    env:\n    - A=1\n    \
        mounts:\n    - hostPath: /a\n      containerPath: /b\n      options: [ro, bind]\n";
    write(base.path(), "target", yaml);
    std::os::unix::fs::symlink(base.path().join("target"), directories[0].join("x.yaml")).unwrap();
    let specs = scan(&directories);
    assert_eq!(specs.problems(), []);
    assert_eq!(env(&specs, &["y"]), ["A=1"]);
}

#[test]
fn a_missing_directory_is_empty_and_an_unreadable_one_ends_the_scan() {
    let (base, mut directories) = directories();
    write(&directories[1], "a.json", &spec(&[("0", "A=1")], json!({})));
    directories[0] = base.path().join("missing");
    assert_eq!(scan(&directories).names().len(), 1);
    write(base.path(), "file", "");
    directories[0] = base.path().join("file");
    let specs = scan(&directories);
    assert!(specs.names().is_empty());
    assert!(specs.problems()[0].problem.starts_with("read directory: "), "{specs:?}");
}

#[test]
fn the_edits_of_a_file_are_applied_once_before_those_of_its_first_device() {
    let (_base, directories) = directories();
    write(
        &directories[0],
        "a.json",
        &spec(&[("0", "A=device 0"), ("1", "B=device 1")], json!({ "env": ["A=file", "F=1"] })),
    );
    let specs = scan(&directories);
    assert_eq!(env(&specs, &["0", "1", "0"]), ["A=device 0", "F=1", "B=device 1"]);
}

#[test]
fn a_node_takes_missing_fields_from_the_host_and_must_agree_with_it() {
    let node = |node: Value| {
        let devices = json!([{ "name": "0", "containerEdits": { "deviceNodes": [node] } }]);
        let spec = json!({ "cdiVersion": "0.6.0", "kind": "example.com/x", "devices": devices });
        let (_base, directories) = directories();
        write(&directories[0], "a.json", &spec.to_string());
        let mut edits = Edits::default();
        scan(&directories).inject(&["example.com/x=0".to_owned()], &mut edits).map(|()| edits.device_nodes.remove(0))
    };
    let null = node(json!({ "path": "/dev/null" })).unwrap();
    assert_eq!((null.kind, null.major, null.minor, null.mode), ('c', 1, 3, 0o666));
    let missing = node(json!({ "path": "/dev/x", "hostPath": "/no/such/device" })).unwrap_err().to_string();
    assert!(missing.contains("failed to stat CDI host device \"/no/such/device\""), "{missing}");
    let other = node(json!({ "path": "/dev/null", "type": "b" })).unwrap_err().to_string();
    assert!(other.contains("must be of type \"b\" but \"/dev/null\" is c"), "{other}");
    let file = node(json!({ "path": "/dev/x", "hostPath": "/etc/passwd" })).unwrap_err().to_string();
    assert!(file.contains("is not a device"), "{file}");
    assert!(node(json!({ "path": "/dev/x", "type": "c", "major": 5 })).is_ok());
}

fn knows(cache: &Cache, name: &str) -> bool {
    cache.specs().names().contains(&format!("example.com/x={name}").as_str())
}

#[test]
fn a_runtime_notices_renames_in_the_directory_writes_and_removals() {
    let (_base, directories) = directories();
    let cache = Cache::new(directories.clone());
    let directory = &directories[0];
    write(directory, "a.json.tmp", &spec(&[("renamed", "A=1")], json!({})));
    assert!(!knows(&cache, "renamed"));
    fs::rename(directory.join("a.json.tmp"), directory.join("a.json")).unwrap();
    assert!(knows(&cache, "renamed"));
    write(directory, "b.json", &spec(&[("written", "A=1")], json!({})));
    assert!(knows(&cache, "written"));
    fs::remove_file(directory.join("a.json")).unwrap();
    assert!(!knows(&cache, "renamed") && knows(&cache, "written"));
}

#[test]
fn a_file_from_another_directory_goes_unnoticed_and_the_error_says_so() {
    let (base, directories) = directories();
    let cache = Cache::new(directories.clone());
    write(base.path(), "a.json", &spec(&[("moved", "A=1")], json!({})));
    write(base.path(), "b.json", &spec(&[("linked", "A=1")], json!({})));
    fs::rename(base.path().join("a.json"), directories[0].join("a.json")).unwrap();
    fs::hard_link(base.path().join("b.json"), directories[0].join("b.json")).unwrap();
    assert!(!knows(&cache, "moved") && !knows(&cache, "linked"));
    let error = cache.inject(&["example.com/x=moved".to_owned()], &mut Edits::default()).unwrap_err().to_string();
    let start = "unresolvable CDI devices example.com/x=moved (also: ";
    assert!(
        error.starts_with(start) && error.contains("a.json: has example.com/x=moved, but was added in a way"),
        "{error}"
    );
    // Any noticed change makes up for it.
    write(&directories[1], "c.json", "{}");
    assert!(knows(&cache, "moved") && knows(&cache, "linked"));
}

/// The kernel reports the removal of a directory when the last process has closed it.
#[test]
fn a_directory_that_replaces_one_that_is_still_open_is_read() {
    let (_base, directories) = directories();
    let cache = Cache::new(directories.clone());
    let _open = fs::File::open(&directories[0]).unwrap();
    fs::remove_dir_all(&directories[0]).unwrap();
    assert!(!knows(&cache, "a"));
    fs::create_dir(&directories[0]).unwrap();
    write(&directories[0], "a.json", &spec(&[("a", "A=1")], json!({})));
    assert!(knows(&cache, "a"));
}

#[test]
fn directories_may_come_and_go() {
    let (_base, directories) = directories();
    fs::remove_dir(&directories[0]).unwrap();
    let cache = Cache::new(directories.clone());
    for name in ["a", "b"] {
        fs::create_dir(&directories[0]).unwrap();
        write(&directories[0], "a.json", &spec(&[(name, "A=1")], json!({})));
        assert!(knows(&cache, name));
        fs::remove_dir_all(&directories[0]).unwrap();
        assert!(!knows(&cache, name));
    }
}
