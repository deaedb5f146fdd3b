//! Runs every command of docs/kubevirt.md that is followed by its output, in the launcher that the page describes.

use snapbox::cmd::cargo_bin;
use tempfile::TempDir;

use crate::guide::Guide;
use crate::kubevirt::Launcher;

#[test]
fn the_commands_print_the_documented_output() {
    let launcher = Launcher::new();
    let directory = TempDir::new().unwrap();
    let guide = Guide {
        page: "kubevirt.md",
        program: cargo_bin!("drakkar").to_owned(),
        directory: directory.path().to_owned(),
        container: Some(launcher.container.root().to_owned()),
    };
    assert!(guide.check(|_| true) >= 6);
    assert!(guide.check_links() >= 5);
}
