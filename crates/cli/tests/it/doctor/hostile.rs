//! Names and contents on a node can be an attacker's.

use std::fs::{self, File};
use std::os::unix::fs::symlink;

use super::node::HealthyNode;

/// Escape sequences in names and contents are printed escaped. JSON keeps what JSON need not escape, as all commands do unless they
/// write to a terminal.
#[tokio::test]
async fn nothing_controls_the_terminal() {
    let node = HealthyNode::start().await;
    fs::create_dir(node.plugin().join("dra-device-metadata/\u{1b}[2J\u{202e}_x")).unwrap();
    fs::write(node.node.cdi_directory().join("a\u{9b}31m.json"), "\u{1b}]0;owned\u{7}").unwrap();
    fs::write(node.metadata(), "\u{1b}[31m").unwrap();
    node.leave_dead_socket(&node.plugin().join("dra@\u{1b}[2J.sock"));
    for more in [&[][..], &["-o", "json"]] {
        let (code, text) = node.text(more).await;
        assert_eq!(code, 1, "{text}");
        let is_json = !more.is_empty();
        let is_unsafe =
            |c: char| c != '\n' && (c.is_ascii_control() || (!is_json && !drakkar_metadata::show::is_safe(c)));
        assert!(!text.contains(is_unsafe), "{text:?}");
        assert!(text.contains("metadata-invalid") && text.contains("cdi-spec-foreign"), "{text}");
    }
}

/// Links lead nowhere, pipes do not block, and large files are not read.
#[tokio::test]
async fn links_pipes_and_large_files_are_reported_and_not_read() {
    let node = HealthyNode::start().await;
    let secret = node.directory().join("secret");
    fs::write(&secret, "TOP-SECRET").unwrap();
    fs::remove_file(node.metadata()).unwrap();
    symlink(&secret, node.metadata()).unwrap();
    let claim = node.plugin().join("dra-device-metadata/default_pipe");
    fs::create_dir(&claim).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        claim.join(".claim.json"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let large = node.plugin().join("dra-device-metadata/default_large");
    fs::create_dir(&large).unwrap();
    File::create(large.join(".claim.json")).unwrap().set_len(1 << 40).unwrap();
    let (code, text) = node.text(&[]).await;
    assert_eq!(code, 1, "{text}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    for wanted in ["metadata.json: it is a symbolic link", "not a regular file", "more than 8388608 bytes"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!text.contains("TOP-SECRET"), "{text}");
}
