//! `drakkar doctor`: checks a node from the kubelet's sockets to the files that containers see.
//!
//! [`node_facts`] gathers what is true, each function in [`checks`] judges one aspect of it and returns findings, and [`report`]
//! prints them. A finding that is a problem has a [`Kind`](kind::Kind), whose id is stable and listed in docs/doctor.md.

mod checks;
mod finding;
mod kind;
mod report;

pub(crate) use self::checks::{difference, spec_difference};
use self::finding::Status;
pub(crate) use self::finding::count;
pub(crate) use self::report::{Mark, write_line};
use crate::args::LineOutput;
use crate::args::operate::DoctorOptions;
use crate::exit::Failure;
use crate::node_facts;
use crate::output::{plain, styled};

pub(crate) fn run(options: &DoctorOptions) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let facts = runtime.block_on(node_facts::gather(options))?;
    let report = report::Report::new(&facts, checks::run(&facts));
    match options.output {
        LineOutput::Text => styled(|output| report.write_text(output))?,
        LineOutput::Json => plain(|output| report.write_json(output))?,
    }
    let fails = report.count(Status::Error) > 0 || (options.strict && report.count(Status::Warning) > 0);
    if fails { Err(Failure::silent(1)) } else { Ok(()) }
}
