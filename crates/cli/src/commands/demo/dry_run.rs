//! The dry run: shows what containers would get, without running them.

use drakkar_node::{Deadline, Isolation, Node};

use super::edits::edits_of;
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
            let edits = edits_of(node, &device.cdi_device_ids)?;
            // A mount for several devices of a request is listed with the first.
            print_indented(if edits.is_empty() { "nothing else".to_owned() } else { edits.join("\n") }.as_str())?;
        }
    }
    print_line("")
}
