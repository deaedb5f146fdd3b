//! `drakkar inspect`: follows one claim from its allocation to the file in the container.
//!
//! The steps are those of the data: API server, kubelet's checkpoint, driver's record, metadata file, CDI spec, mount. A step that
//! is missing or differs says so, with the reason, and so do the steps after it.

mod mounts;
mod steps;

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use self::steps::{Step, StepStatus};
use crate::args::LineOutput;
use crate::args::operate::InspectOptions;
use crate::commands::doctor::{Mark, write_line};
use crate::exit::{Code, Failure};
use crate::node_facts::api::{Answer, Api, ApiFailure};
use crate::node_facts::{self, NodeFiles};
use crate::output::{plain, style, styled};

/// The version of the JSON form. It changes when a field changes its meaning or goes.
const FORMAT_VERSION: u32 = 1;

/// Which claim is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Name { namespace: String, name: String },
    Uid(String),
}

/// A claim as the API server, the kubelet or a driver names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ClaimId {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Inspection<'a> {
    format_version: u32,
    claim: &'a ClaimId,
    /// Whether all steps agree.
    complete: bool,
    steps: &'a [Step],
}

pub(crate) fn run(options: &InspectOptions) -> Result<(), Failure> {
    let wanted = Wanted::parse(&options.claim)?;
    let node = NodeFiles::read(&options.host, [])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (object, api) = runtime.block_on(from_api(options, &wanted, &node));
    let Some(claim) = identify(&wanted, object.as_ref(), &node) else {
        let place = if api.is_some() { "on this node" } else { "in the API server and on this node" };
        let failure = Failure::new(Code::NotFound, format!("claim {}: not found {place}", options.claim));
        return Err(match api {
            Some(problem) => failure.hint(problem),
            None => failure.hint("`drakkar node claims` lists what is prepared here"),
        });
    };
    let mut steps = steps::api(&claim, object.as_ref(), api.as_deref());
    steps.extend(steps::on_node(&claim, object.as_ref(), &node));
    steps.extend(mounts::steps(&claim, &node, &options.host.host_root));
    let complete = !steps.iter().any(|step| matches!(step.status, StepStatus::Missing | StepStatus::Differs));
    match options.output {
        LineOutput::Text => styled(|output| write_text(output, &claim, &steps))?,
        LineOutput::Json => {
            let inspection = Inspection { format_version: FORMAT_VERSION, claim: &claim, complete, steps: &steps };
            plain(|output| {
                serde_json::to_writer_pretty(&mut *output, &inspection)?;
                writeln!(output)
            })?;
        }
    }
    if complete { Ok(()) } else { Err(Failure::silent(Code::System as u8)) }
}

impl Wanted {
    fn parse(text: &str) -> Result<Self, Failure> {
        let usage = |problem: String| Failure::new(Code::Usage, format!("claim {text}: {problem}"));
        match text.split_once('/') {
            Some((namespace, name)) => {
                use drakkar_metadata::name::{ClaimName, Namespace};
                let namespace = namespace.parse::<Namespace>().map_err(|error| usage(error.to_string()))?;
                let name = name.parse::<ClaimName>().map_err(|error| usage(error.to_string()))?;
                Ok(Self::Name { namespace: namespace.to_string(), name: name.to_string() })
            }
            None if drakkar_metadata::name::syntax::is_uuid(text) => Ok(Self::Uid(text.to_owned())),
            None => Err(usage("neither NAMESPACE/NAME nor a UID".to_owned())),
        }
    }

    fn is(&self, claim: &ClaimId) -> bool {
        match self {
            Self::Name { namespace, name } => claim.namespace == *namespace && claim.name == *name,
            Self::Uid(uid) => claim.uid == *uid,
        }
    }
}

/// Returns the claim's object, if the API server has it, and why it could not be asked.
async fn from_api(options: &InspectOptions, wanted: &Wanted, node: &NodeFiles) -> (Option<Value>, Option<String>) {
    let reader = match node_facts::connect(&options.api).await {
        Ok((reader, _)) => reader,
        Err(Api::Failed(
            ApiFailure::Config(error) | ApiFailure::Unreachable(error) | ApiFailure::Unauthorized(error),
        )) => {
            return (None, Some(error));
        }
        Err(Api::Off(reason)) => return (None, Some(format!("not asked: {reason}"))),
        Err(Api::Up(_)) => return (None, None),
    };
    // A claim that is known here has a name, which spares a list of all claims.
    let here = identify(wanted, None, node);
    let answer = match (wanted, &here) {
        (Wanted::Name { namespace, name }, _) => reader.claim(namespace, name).await,
        (Wanted::Uid(_), Some(here)) => reader.claim(&here.namespace, &here.name).await,
        (Wanted::Uid(uid), None) => reader.claim_with_uid(uid).await,
    };
    match answer {
        Answer::Got(object) => (object, None),
        Answer::Forbidden(message) | Answer::Failed(message) => (None, Some(message)),
    }
}

/// Finds the claim's full name: in its object or, without one, on the node.
fn identify(wanted: &Wanted, object: Option<&Value>, node: &NodeFiles) -> Option<ClaimId> {
    let of_object = object.map(|object| {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        ClaimId { namespace: text("/metadata/namespace"), name: text("/metadata/name"), uid: text("/metadata/uid") }
    });
    let records =
        node.drivers.iter().flat_map(|driver| &driver.files.claims).filter_map(|claim| claim.record.as_ref().ok());
    let recorded = records.map(|record| ClaimId {
        namespace: record.claim.namespace.to_string(),
        name: record.claim.name.to_string(),
        uid: record.claim.uid.to_string(),
    });
    let checkpointed = node.checkpoint.claims().iter().map(|claim| ClaimId {
        namespace: claim.namespace.clone(),
        name: claim.claim_name.clone(),
        uid: claim.claim_uid.clone(),
    });
    of_object.into_iter().chain(recorded).chain(checkpointed).find(|claim| wanted.is(claim))
}

fn write_text(output: &mut dyn Write, claim: &ClaimId, steps: &[Step]) -> io::Result<()> {
    use drakkar_metadata::show::Printable;
    let bold = style::HEADER;
    let ClaimId { namespace, name, uid } = claim;
    writeln!(
        output,
        "Claim {}/{} (uid {})",
        Printable::whole(namespace),
        Printable::whole(name),
        Printable::whole(uid)
    )?;
    let mut place = None;
    for step in steps {
        if place != Some(&step.place) {
            place = Some(&step.place);
            writeln!(output, "{bold}{}{bold:#}", Printable::whole(&step.place))?;
        }
        let (mark, label) = match step.status {
            StepStatus::Ok => (Mark::OK, None),
            StepStatus::Skipped => (Mark::SKIPPED, Some("skipped")),
            StepStatus::Missing => (Mark::ERROR, Some("missing")),
            StepStatus::Differs => (Mark::ERROR, Some("differs")),
        };
        write_line(output, mark, label, &step.message, step.remedy.as_deref())?;
    }
    Ok(())
}
