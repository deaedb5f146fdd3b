//! A real Kubernetes node on one machine: unmodified components, built from source, brought up in seconds and taken
//! down without a trace.
//!
//! For people there is `cargo xtask e2e up` and `down`. Tests attach to the cluster that is up:
//!
//! ```no_run
//! use drakkar_e2e::{Cluster, Component, Image, Place, run};
//!
//! # fn main() -> drakkar_e2e::Result<()> {
//! let cluster = Cluster::attach(Place::of_checkout()?)?;
//! let tar = std::env::temp_dir().join("driver.tar");
//! Image::new("localhost/driver:e2e", "target/debug/examples/minimal")?.write(&tar)?;
//! cluster.import(&tar)?;
//! run(cluster.kubectl().args(["apply", "--filename", "driver.yaml"]))?;
//! // Anything can be run in the node, as root there: with its mounts, its network and its processes.
//! println!("{}", run(cluster.command("ls").arg("/var/lib/kubelet/plugins_registry"))?);
//! cluster.kill(Component::Kubelet)?;
//! cluster.start(Component::Kubelet)?;
//! # Ok(())
//! # }
//! ```
//!
//! A client in Rust reads [`Cluster::kubeconfig`]. The crate has no Kubernetes client itself, so that it builds
//! quickly.
//!
//! | module | owns |
//! |---|---|
//! | `binaries` | the programs: building them from `cluster/*/go.mod`, their versions |
//! | `place` | the directories, and names and addresses that follow from them |
//! | `namespaces` | the namespaces that the node lives in, and starting programs there |
//! | `cgroup` | the cgroup of all pods |
//! | `kubelet` | the kubelets that the node can have |
//! | `certificates`, `config` | what components are given: identities, command lines, files |
//! | `cluster` | all of it, up and down, and what tests ask of it |
//! | `process`, `daemon` | processes by more than their number; those that tests start in the node |
//! | `image`, `program` | OCI images without a container engine |
//! | `footprint` | what a cluster could leave on the machine |
//! | `machine` | what the machine must have |

#![forbid(unsafe_code)]

mod binaries;
mod certificates;
mod cgroup;
mod cluster;
mod component;
mod config;
mod daemon;
mod error;
mod footprint;
mod image;
mod kubelet;
mod machine;
mod namespaces;
mod place;
mod process;
mod program;
mod run;

pub use binaries::build;
pub use cluster::{Cluster, versions};
pub use component::Component;
pub use config::Options;
pub use daemon::Daemon;
pub use error::{Error, Result};
pub use footprint::Footprint;
pub use image::Image;
pub use kubelet::Kubelet;
pub use machine::unfit;
pub use place::{Place, directories};
pub use run::{run, wait_until};
