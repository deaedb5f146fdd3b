//! `drakkar kubevirt render`: the claims and resources of a launcher pod.

use drakkar_kubevirt::render::render;
use drakkar_kubevirt::vmi::VirtualMachineInstance;

use super::cluster::ClusterConfig;
use crate::args::kubevirt::Structured;
use crate::exit::{Code, Failure};
use crate::output::{plain, write_yaml};

pub(crate) fn run(vmi: &VirtualMachineInstance, cluster: &ClusterConfig, output: Structured) -> Result<(), Failure> {
    let rendered = render(vmi, &cluster.gates, cluster.permitted.as_ref())
        .map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
    plain(|writer| match output {
        Structured::Yaml => write_yaml(writer, &rendered),
        Structured::Json => {
            serde_json::to_writer_pretty(&mut *writer, &rendered)?;
            writer.write_all(b"\n")
        }
    })?;
    Ok(())
}
