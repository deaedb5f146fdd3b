//! `demo`.

use std::path::Path;

use snapbox::str;
use tempfile::TempDir;

use crate::support::drakkar;

#[test]
fn the_demo_runs_in_eighty_columns_and_leaves_nothing_behind() {
    let temporary = TempDir::new().unwrap();
    let assert = drakkar().arg("demo").env("TMPDIR", temporary.path()).assert().success().stderr_eq("");
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    for wanted in ["net    eth      net.example.com  -       not written yet", "0000:03:00.0", "10.9.0.5/24", ": ok ("]
    {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    for line in output.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn the_demo_can_leave_its_files_to_look_around() {
    let temporary = TempDir::new().unwrap();
    let assert = drakkar().args(["demo", "--keep"]).env("TMPDIR", temporary.path()).assert().success();
    let output = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let command = output.lines().last().unwrap().trim();
    let root = command.strip_prefix("drakkar --root ").unwrap().strip_suffix(" list").unwrap();
    assert!(Path::new(root).starts_with(temporary.path()), "{root}");
    drakkar().args(["--root", root, "list"]).assert().success().stdout_eq(str![[r#"
CLAIM  REQUEST  DRIVER           DEVICE  DETAILS
gpus   gpu      gpu.example.com  gpu-0   pci 0000:03:00.0
gpus   gpu      gpu.example.com  gpu-1   pci 0000:04:00.0
net    eth      net.example.com  eth1    net1 10.9.0.5/24

"#]]);
}
