//! `doctor`: a healthy node is all green, and each fault is found, alone and with what to do.

mod api;
pub(crate) mod claims;
mod files;
mod guide;
mod hostile;
pub(crate) mod node;
mod runtime;
mod sockets;

use self::node::HealthyNode;

/// Nothing is wrong, and what is skipped was not asked for.
#[tokio::test]
async fn a_healthy_node_is_all_green() {
    let node = HealthyNode::start().await;
    let report = node.report(&[]).await;
    assert_eq!(report.problems(), Vec::<String>::new(), "{report:#?}");
    assert_eq!(report.code, 0);
    let skipped: Vec<&str> = report.with_status("skipped").map(|finding| &*finding.check).collect();
    assert_eq!(skipped, ["kubelet", "readyz", "nri"], "{report:#?}");
    let checks: std::collections::BTreeSet<&str> = report.findings.iter().map(|finding| &*finding.check).collect();
    assert_eq!(checks.len(), 22, "every check says something: {checks:?}");
    for wanted in [
        "gpu.example.com: registration socket answers, with v1.DRAPlugin",
        "gpu.example.com: 1 prepared claim, each with its state record",
        "gpu.example.com: 1 metadata file valid and as recorded",
        "gpu.example.com: 1 CDI spec for 1 claim",
        "gpu.example.com: the kubelet's checkpoint has the same 1 claim",
        "gpu.example.com: 1 prepared claim as allocated in the API server",
        "gpu.example.com: 1 ResourceSlice with 2 devices for this node",
    ] {
        let is_there = report.with_status("ok").any(|finding| finding.message.starts_with(wanted));
        assert!(is_there, "{wanted}: {report:#?}");
    }
}

/// The text has the same findings, fits a terminal, and can be read without colours.
#[tokio::test]
async fn the_text_fits_eighty_columns_and_colours_are_not_needed() {
    let node = HealthyNode::start().await;
    let (code, text) = node.text(&["--nri-socket", "/nonexistent/nri.sock", "--no-api"]).await;
    assert_eq!(code, 1, "{text}");
    let directory = node.directory();
    for line in text.lines() {
        let has_path = line.contains(directory.to_str().unwrap());
        assert!(line.chars().count() <= 80 || has_path, "{line}");
    }
    for wanted in [
        "Kubelet and sockets\n  ✓ ",
        "  ✗ nri-socket-missing: NRI socket /nonexistent/nri.sock: it does not exist, and\n    a driver needs it\n    do: turn NRI on",
        "  - skipped: the API server is not asked: --no-api\n",
        "\n✗ 1 error, 0 warnings, ",
    ] {
        assert!(text.contains(wanted), "{wanted}\nis not in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// Warnings fail only a strict run; a host root that does not exist is a usage error.
#[tokio::test]
async fn exit_codes_say_whether_something_is_wrong() {
    let node = HealthyNode::start().await;
    node.leave_dead_socket(&node.registry().join("gpu.example.com-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11@reg.sock"));
    assert_eq!(node.report(&[]).await.code, 0, "a warning");
    assert_eq!(node.report(&["--strict"]).await.code, 1);
    let (code, text) = node.text(&["--host-root", "/nonexistent"]).await;
    assert_eq!((code, text.contains("host root /nonexistent: No such file")), (2, true), "{text}");
}
