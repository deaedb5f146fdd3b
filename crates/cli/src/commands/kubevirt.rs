//! `drakkar kubevirt`: DRA devices of KubeVirt's virtual machines.

mod check;
mod claims;
mod cluster;
mod devices;
pub(super) mod documents;
mod domain_xml;
mod explain;
mod render;
mod resolve;
#[cfg(feature = "cel")]
mod selectors;
#[cfg(feature = "kubevirt-services")]
mod services;
mod validate;

use std::path::Path;

use drakkar_kubevirt::placement::HostTopology;

use self::cluster::ClusterConfig;
use self::documents::Documents;
use super::input::Input;
use crate::args::kubevirt::KubevirtCommand;
use crate::exit::{Code, Failure};

pub(crate) fn run(root: &Path, command: KubevirtCommand) -> Result<(), Failure> {
    // The root is that of a container with metadata files; documents are files of this host.
    let input = Input::below(Path::new("/"))?;
    match command {
        KubevirtCommand::Explain { document, cluster, resolution } => {
            let cluster = ClusterConfig::read(&input, &cluster)?;
            let resolver = devices::resolver(root, &resolution, cluster.behaviour)?;
            explain::run(&Documents::read(&input, &document.file)?, &cluster, &resolver)
        }
        KubevirtCommand::Claims { document, one_claim, persistent, same } => {
            claims::run(&Documents::read(&input, &document.file)?, one_claim, persistent, &same)
        }
        KubevirtCommand::Validate { files, cluster } => {
            validate::run(&input, &files, &ClusterConfig::read(&input, &cluster)?)
        }
        KubevirtCommand::Render { document, gates, output } => {
            let workload = Documents::read(&input, &document.file)?.workload()?;
            render::run(workload.vmi(), &ClusterConfig::of_gates(&input, &gates)?, output)
        }
        KubevirtCommand::Resolve { document, resolution, strictness, output } => {
            let workload = Documents::read(&input, &document.file)?.workload()?;
            let resolver = devices::resolver(root, &resolution, strictness.into())?;
            resolve::run(workload.vmi(), &resolver, output)
        }
        KubevirtCommand::DomainXml { document, cluster, resolution, domain, sysfs } => {
            let workload = Documents::read(&input, &document.file)?.workload()?;
            let cluster = ClusterConfig::read(&input, &cluster)?;
            let resolver = devices::resolver(root, &resolution, cluster.behaviour)?;
            let domain = domain.map(|file| text(&input, &file)).transpose()?;
            let host = sysfs.map_or_else(HostTopology::default, |sysfs| HostTopology::new(&sysfs));
            domain_xml::run(workload.vmi(), &cluster, &resolver, domain, &host)
        }
        KubevirtCommand::Check { files, driver } => check::run(root, &Input::below(root)?, &files, driver.as_ref()),
        #[cfg(feature = "kubevirt-services")]
        KubevirtCommand::Webhook(options) => services::webhook(&input, &options),
        #[cfg(feature = "kubevirt-services")]
        KubevirtCommand::Hook(options) => services::hook(
            devices::resolver(root, &options.resolution, drakkar_kubevirt::Behaviour::Extended)?,
            &options,
        ),
    }
}

/// Reads a file that must be text.
fn text(input: &Input, file: &Path) -> Result<String, Failure> {
    String::from_utf8(input.read_document(file)?)
        .map_err(|error| Failure::new(Code::Invalid, format!("{}: {error}", file.display())))
}
