//! Runs the commands of `drakkar` in docs/network-driver.md that are followed by their output.

use snapbox::cmd::cargo_bin;
use tempfile::TempDir;

use crate::guide::Guide;

#[test]
fn the_commands_print_the_documented_output() {
    let directory = TempDir::new().unwrap();
    let guide = Guide {
        page: "network-driver.md",
        program: cargo_bin!("drakkar").to_owned(),
        directory: directory.path().to_owned(),
        container: None,
    };
    assert_eq!(guide.check(|command| command.starts_with("drakkar ")), 1);
}
