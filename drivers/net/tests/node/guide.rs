//! Runs every command of docs/network-driver.md that is followed by its output.

use std::path::Path;

use tempfile::TempDir;

#[path = "../../../../crates/cli/tests/it/guide.rs"]
mod runner;

use self::runner::{Guide, repository};

#[test]
fn the_commands_print_the_documented_output() {
    let directory = TempDir::new().unwrap();
    std::os::unix::fs::symlink(repository().join("examples"), directory.path().join("examples")).unwrap();
    let guide = Guide {
        page: "network-driver.md",
        program: Path::new(env!("CARGO_BIN_EXE_drakkar-net")).to_owned(),
        directory: directory.path().to_owned(),
        container: None,
    };
    // The commands of `drakkar` are run by the tests of that program.
    assert!(guide.check(|command| !command.starts_with("drakkar ")) >= 3);
    assert!(guide.check_links() >= 5);
}
