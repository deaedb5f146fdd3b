//! `drakkar kubevirt validate`: what KubeVirt's admission says.

use std::fmt::Write as _;
use std::path::PathBuf;

use drakkar_kubevirt::admission::{Cause, Warning, as_remarshalled, schema_violations, validate, warnings};
use drakkar_kubevirt::claims::{DEVICE_CLASS_NAME, DEVICE_SELECTOR};
use drakkar_metadata::show::Printable;

use super::cluster::ClusterConfig;
use super::documents::{Documents, Machine};
use crate::commands::input::Input;
use crate::exit::{Code, Failure};
use crate::output::print;

/// What a cluster answers about a virtual machine.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Why it is refused.
    pub(crate) causes: Vec<Cause>,
    /// What it admits and what then fails. Released KubeVirt has none.
    pub(crate) warnings: Vec<Warning>,
    /// The remedy for a cause that another command removes.
    pub(crate) hint: Option<String>,
}

/// Decides about a virtual machine as a cluster does: KubeVirt's mutating webhook checks the schema and writes the object
/// anew, then the validating webhook applies its rules.
///
/// KubeVirt answers with the violations of the schema alone. By default the causes of the rules follow them, so that a user
/// sees all that is wrong at once.
pub(crate) fn verdict(machine: &Machine<'_>, cluster: &ClusterConfig) -> Verdict {
    // The document was read as a virtual machine, so its lists and objects are of the types that the schema expects.
    let mut causes = schema_violations(&machine.document.to_string()).unwrap_or_default();
    let hint = class_hint(&causes);
    let is_strict = cluster.behaviour.is_strict();
    if is_strict && !causes.is_empty() {
        return Verdict { causes, warnings: Vec::new(), hint };
    }
    let workload = as_remarshalled(machine.workload.clone());
    causes.extend(validate(&workload, &cluster.gates, cluster.behaviour));
    let warnings = if is_strict { Vec::new() } else { warnings(&workload) };
    Verdict { causes, warnings, hint }
}

/// The remedy for fields that KubeVirt does not know and `drakkar kubevirt claims` replaces.
fn class_hint(causes: &[Cause]) -> Option<String> {
    let field = [DEVICE_CLASS_NAME, DEVICE_SELECTOR]
        .into_iter()
        .find(|field| causes.iter().any(|cause| cause.message.contains(&format!(".{field} in body"))))?;
    Some(format!("run `drakkar kubevirt claims FILE` first: it writes the claims of devices with {field}"))
}

pub(crate) fn run(input: &Input, files: &[PathBuf], cluster: &ClusterConfig) -> Result<(), Failure> {
    let mut text = String::new();
    let mut refused = 0;
    let mut checked = 0;
    let mut failures = Vec::new();
    let mut hint = None;
    for file in files {
        let documents = match Documents::read(input, file) {
            Ok(documents) => documents,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        let machines = match documents.machines() {
            Ok(machines) => machines,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        for machine in &machines {
            let subject =
                format!("{}: {} {}", file.display(), machine.workload.kind(), machine.workload.metadata().name);
            let subject = Printable::whole(&subject);
            let answer = verdict(machine, cluster);
            checked += 1;
            refused += usize::from(!answer.causes.is_empty());
            let decision = if answer.causes.is_empty() { "admitted" } else { "refused" };
            let _ = writeln!(text, "{subject}: {decision}");
            for cause in &answer.causes {
                let _ = writeln!(text, "  {}", Printable::whole(cause.to_string()));
            }
            for warning in &answer.warnings {
                let _ = writeln!(text, "  warning: {}", Printable::whole(warning.to_string()));
            }
            hint = hint.or(answer.hint);
        }
    }
    print(&text)?;
    if refused > 0 {
        let message = format!("KubeVirt refuses {refused} of {checked} virtual machines");
        let failure = Failure::new(Code::Invalid, message);
        failures.push(match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        });
    }
    Failure::join(failures).map_or(Ok(()), Err)
}
