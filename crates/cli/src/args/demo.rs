//! The arguments of `drakkar demo`.

use clap::{Args, ValueEnum};

/// The options of the demo.
#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Keep the node running at the end.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run this driver instead of the two samples: a command for sh.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) driver: Option<String>,
    /// Run containers with this OCI runtime: runc, crun or a path; needs root. With "none" no container runs, and the
    /// demo shows what each would get.
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime: Option<String>,
}

/// The demo's drivers.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SampleKind {
    /// GPUs, whose metadata is known when a claim is prepared.
    Gpu,
    /// Network interfaces, whose metadata is known later.
    Net,
}
