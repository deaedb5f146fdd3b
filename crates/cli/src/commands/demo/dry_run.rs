//! The dry run: shows what containers would get, without running them.

use drakkar_node::runner::ContainerSpec;
use drakkar_node::{Deadline, Isolation, Node};

use super::print::{Progress, print_indented, print_line};
use crate::exit::{Code, Failure};

/// Returns whether the node runs no containers.
pub(super) fn is_dry_run(node: &Node) -> bool {
    *node.runner().isolation() == Isolation::ShowOnly
}

/// Waits until the claims are prepared, and shows what their CDI devices would add to a container.
pub(super) async fn run(node: &Node, progress: &mut Progress) -> Result<(), Failure> {
    let deadline = Deadline::default();
    let claims = loop {
        let claims = node.kubelet_claims().await;
        if !claims.is_empty() && claims.iter().all(|claim| claim.prepared) {
            break claims;
        }
        let timed_out =
            |waited| Failure::new(Code::System, format!("timed out after {waited:?}: the claims are not prepared"));
        deadline.pause().await.map_err(timed_out)?;
    };
    progress.complete("The drivers have prepared the claims")?;
    print_line("    No containers run. This is what they would get:")?;
    for claim in claims {
        for (driver, device) in claim.drivers.iter().flat_map(|(driver, all)| all.iter().map(move |one| (driver, one)))
        {
            let requests = device.request_names.join(", ");
            print_line(&format!(
                "    claim {}, request {requests}: {} of {driver}",
                claim.claim.name, device.device_name
            ))?;
            let spec = ContainerSpec { cdi_devices: device.cdi_device_ids.clone(), ..ContainerSpec::default() };
            let (edits, notes) = node.runner().resolve(&spec).map_err(drakkar_node::NodeError::from)?;
            // Every container has these two, independent of its devices.
            let own = |line: &&str| !["env     PATH=", "env     HOSTNAME="].iter().any(|start| line.starts_with(start));
            let edits: Vec<String> = edits.to_string().lines().filter(own).map(fold).collect();
            // A mount for several devices of a request is listed with the first.
            print_indented(if edits.is_empty() { "nothing else".to_owned() } else { edits.join("\n") }.as_str())?;
            notes.iter().try_for_each(|note| print_indented(&fold(note)))?;
        }
    }
    print_line("")
}

/// The width of a line, without its indentation.
const WIDTH: usize = 74;
/// The indentation of the further lines of an edit.
const INDENT: usize = 8;

/// Breaks the line of an edit, which has long paths, at spaces and slashes.
fn fold(line: &str) -> String {
    let mut folded = String::with_capacity(line.len() + 32);
    let mut used = 0;
    let line = line.replace(" at /", "\nat /");
    for (number, part) in line.split('\n').enumerate() {
        if number > 0 {
            folded.push_str(&format!("\n{:INDENT$}", ""));
            used = INDENT;
        }
        for piece in part.split_inclusive(['/', ' ']) {
            if used > INDENT && used + piece.trim_end().len() > WIDTH {
                folded.truncate(folded.trim_end().len());
                folded.push_str(&format!("\n{:INDENT$}", ""));
                used = INDENT;
            }
            folded.push_str(piece);
            used += piece.len();
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_broken_at_slashes() {
        let directory =
            "/tmp/dk-abcdef/kubelet/plugins/gpu.example.com/dra-device-metadata/default_trainer-gpus-x7k2p/gpu";
        let line = format!("mount   {directory}/metadata.json at /var/run/a/b (ro,nosuid)");
        let folded = fold(&line);
        assert!(folded.lines().all(|line| line.len() <= WIDTH), "{folded}");
        assert!(folded.lines().skip(1).all(|line| line.starts_with("        ")), "{folded}");
        let joined = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(joined(&folded), joined(&line));
        assert!(folded.ends_with("\n        at /var/run/a/b (ro,nosuid)"), "{folded}");
        assert_eq!(fold("env     A=1"), "env     A=1");
    }
}
