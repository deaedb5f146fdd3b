//! What the CDI devices of a claim add to a container, in lines of at most 80 columns.

use drakkar_node::Node;
use drakkar_node::runner::ContainerSpec;

use super::print::{print_indented, print_line};
use crate::exit::Failure;

/// Prints what the devices of a claim add to a container, apart from metadata.
pub(super) async fn print_of(node: &Node, claim: &str) -> Result<(), Failure> {
    let claims = node.kubelet_claims().await;
    let prepared = claims.iter().filter(|prepared| prepared.claim.name == claim);
    let devices = prepared.flat_map(|claim| claim.drivers.values().flatten());
    let ids: Vec<String> = devices.flat_map(|device| device.cdi_device_ids.clone()).collect();
    let mut edits = edits_of(node, &ids)?;
    edits.retain(|edit| !edit.split_whitespace().collect::<String>().contains("/dra-device-attributes/"));
    if edits.is_empty() {
        print_line("    The device adds no device node, no variable and no mount of its own.")?;
    } else {
        print_line("    What the device adds to the container:")?;
        print_indented(&edits.join("\n"))?;
    }
    print_line("")
}

/// Returns what CDI devices add to a container, and what of them is ignored.
pub(super) fn edits_of(node: &Node, cdi_devices: &[String]) -> Result<Vec<String>, Failure> {
    let spec = ContainerSpec { cdi_devices: cdi_devices.to_vec(), ..ContainerSpec::default() };
    let (edits, notes) = node.runner().resolve(&spec).map_err(drakkar_node::NodeError::from)?;
    // Every container has these two, independent of its devices.
    let own = |line: &&str| !["env     PATH=", "env     HOSTNAME="].iter().any(|start| line.starts_with(start));
    let edits = edits.to_string();
    Ok(edits.lines().filter(own).map(fold).chain(notes.iter().map(|note| fold(note))).collect())
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
