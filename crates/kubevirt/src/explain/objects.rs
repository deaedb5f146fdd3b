//! Claims and claim templates that are known beside a VMI.

use serde_json::Value;

use super::follow::Entry;
use super::{Steps, Stopped, remedy};
use crate::vmi::{ClaimRequest, ResourceClaimRef};

/// `ResourceClaim` and `ResourceClaimTemplate` objects, against which requests are checked. Objects that are not here are not
/// checked: they can be in the cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimObjects(Vec<Value>);

impl ClaimObjects {
    /// Takes the claims and templates among objects of any kind.
    pub fn among<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Self {
        let is_claim =
            |object: &&Value| matches!(object["kind"].as_str(), Some("ResourceClaim" | "ResourceClaimTemplate"));
        Self(objects.into_iter().filter(is_claim).cloned().collect())
    }

    /// Returns `spec.devices` of the claim that an entry refers to, if it is known.
    fn devices(&self, entry: &ResourceClaimRef) -> Option<&Value> {
        let (kind, name) = match (&entry.resource_claim_name, &entry.resource_claim_template_name) {
            (Some(name), _) if !name.is_empty() => ("ResourceClaim", name),
            (_, Some(name)) => ("ResourceClaimTemplate", name),
            _ => return None,
        };
        let object = self.0.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == **name)?;
        let spec = if kind == "ResourceClaim" { &object["spec"] } else { &object["spec"]["spec"] };
        spec.get("devices")
    }

    /// Checks that the claim has the request, and that released KubeVirt can use it.
    pub(super) fn check(
        &self,
        claim: &ResourceClaimRef,
        entry: &Entry<'_>,
        request: &ClaimRequest,
        steps: &mut Steps,
    ) -> Result<(), Stopped> {
        let name = &request.request_name;
        let Some(devices) = self.devices(claim) else { return Ok(()) };
        let requests = devices["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(found) = requests.iter().find(|found| found["name"] == **name) else {
            let known: Vec<&str> = requests.iter().filter_map(|request| request["name"].as_str()).collect();
            let text = format!("{name} is not a request of the claim, it has {}", known.join(", "));
            let field = entry.list.annotation().unwrap_or("requestName");
            return Err(steps.stop("request", text, &format!("correct {field}, or add the request to the claim")));
        };
        // The hook, which reads annotations, can use every request.
        let is_annotated = entry.list.annotation().is_some();
        let remedy = |first| remedy::or_hook(first, entry.list, entry.name, request);
        if found.get("firstAvailable").is_some() {
            let text = format!("{name} has alternatives (firstAvailable)");
            if is_annotated {
                steps.fine("request", text);
            } else {
                let text = format!("{text}, which KubeVirt 1.9 does not find");
                steps.warn("request", text, remedy("use a request without alternatives"));
            }
            return Ok(());
        }
        let exactly = &found["exactly"];
        let class = exactly["deviceClassName"].as_str().unwrap_or("of no class");
        let count = exactly["count"].as_u64().unwrap_or(1);
        let is_all = exactly["allocationMode"] == "All";
        let wanted = match count {
            _ if is_all => "all devices".to_owned(),
            1 => "one device".to_owned(),
            count => format!("{count} devices"),
        };
        let text = format!("{name}: {wanted} of class {class}");
        if is_annotated || (count <= 1 && !is_all) {
            steps.fine("request", text);
        } else {
            let text = format!("{text}, KubeVirt 1.9 takes exactly one");
            steps.warn("request", text, remedy("use one request per device"));
        }
        Ok(())
    }
}
