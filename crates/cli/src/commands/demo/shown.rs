//! The story where containers cannot be run: what they would be given is shown instead.

use drakkar_node::runner::ContainerSpec;
use drakkar_node::{Deadline, Isolation, Node};

use super::show::{Steps, indented, say};
use crate::exit::{Code, Failure};

/// Whether containers are only told what they would be.
pub(super) fn is_so(node: &Node) -> bool {
    *node.runner().isolation() == Isolation::ShowOnly
}

/// Waits until the claims are prepared, and shows what their CDI devices would do to a container.
pub(super) async fn tell(node: &Node, steps: &mut Steps) -> Result<(), Failure> {
    let patience = Deadline::default();
    let claims = loop {
        let claims = node.kubelet_claims().await;
        if !claims.is_empty() && claims.iter().all(|claim| claim.prepared) {
            break claims;
        }
        let late = |waited| Failure::new(Code::Refused, format!("the claims are not prepared after {waited:?}"));
        patience.pause().await.map_err(late)?;
    };
    steps.step("The drivers have prepared the claims")?;
    say("    Containers are not run here. This is what they would be given:")?;
    for claim in claims {
        for (driver, device) in claim.drivers.iter().flat_map(|(driver, all)| all.iter().map(move |one| (driver, one)))
        {
            let requests = device.request_names.join(", ");
            say(&format!("    claim {}, request {requests}: {} of {driver}", claim.claim.name, device.device_name))?;
            let spec = ContainerSpec { cdi_devices: device.cdi_device_ids.clone(), ..ContainerSpec::default() };
            let (edits, notes) = node.runner().resolve(&spec).map_err(drakkar_node::NodeError::from)?;
            // Every container has these two, whatever its devices are.
            let own = |line: &&str| !["env     PATH=", "env     HOSTNAME="].iter().any(|start| line.starts_with(start));
            let edits: Vec<String> =
                edits.to_string().lines().filter(own).map(|line| line.replace(" at /", "\n        at /")).collect();
            // One mount can be for several devices of a request; it is with the first.
            indented(if edits.is_empty() { "nothing more".to_owned() } else { edits.join("\n") }.as_str())?;
            notes.iter().try_for_each(|note| indented(note))?;
        }
    }
    say("")
}
