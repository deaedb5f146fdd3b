//! A real single-node Kubernetes cluster for tests: unmodified components, built from source, started in seconds and
//! removed completely.
//!
//! You start and stop it with `cargo xtask e2e up` and `down`. Tests attach to the running cluster:
//!
//! ```no_run
//! use drakkar_e2e::{Cluster, Component, Image, ClusterPaths, run};
//!
//! # fn main() -> drakkar_e2e::Result<()> {
//! let cluster = Cluster::attach(ClusterPaths::of_checkout()?)?;
//! let tar = std::env::temp_dir().join("driver.tar");
//! Image::new("localhost/driver:e2e", "target/debug/examples/minimal")?.write(&tar)?;
//! cluster.import(&tar)?;
//! run(cluster.kubectl().args(["apply", "--filename", "driver.yaml"]))?;
//! // Commands run in the node as root: with its mounts, its network and its processes.
//! println!("{}", run(cluster.command("ls").arg("/var/lib/kubelet/plugins_registry"))?);
//! cluster.kill(Component::Kubelet)?;
//! cluster.start(Component::Kubelet)?;
//! # Ok(())
//! # }
//! ```
//!
//! Rust clients load [`Cluster::kubeconfig`]. This crate does not depend on a Kubernetes client, so that it builds
//! quickly.
//!
//! | module | owns |
//! |---|---|
//! | `api_server` | etcd and kube-apiserver alone, without a node |
//! | `binaries` | the node's programs: building them from `cluster/*/go.mod`, their versions |
//! | `paths` | the directories, and the names and addresses derived from them |
//! | `namespaces` | the node's Linux namespaces, and starting programs in them |
//! | `cgroup` | the parent cgroup of all pods |
//! | `kubelet` | the kubelet releases that the node can run |
//! | `certificates`, `config` | the components' identities, command lines and configuration files |
//! | `cluster` | bringing the cluster up and down, and the API for tests |
//! | `process`, `daemon` | processes identified by pid, start time and boot; programs that tests start in the node |
//! | `image`, `program` | OCI images without a container engine |
//! | `host_snapshot` | the state of the host that a cluster could leave changed |
//! | `host` | what the host must provide |

#![forbid(unsafe_code)]

mod api_server;
mod binaries;
mod certificates;
mod cgroup;
mod cluster;
mod component;
mod config;
mod daemon;
mod error;
mod host;
mod host_snapshot;
mod image;
mod kubelet;
mod namespaces;
mod paths;
mod process;
mod program;
mod run;

pub use api_server::ApiServerAlone;
pub use binaries::{build, build_helm};
pub use cluster::{Cluster, helm_command, versions};
pub use component::Component;
pub use config::Options;
pub use daemon::Daemon;
pub use error::{Error, Result};
pub use host::unsupported_reason;
pub use host_snapshot::HostSnapshot;
pub use image::Image;
pub use kubelet::Kubelet;
pub use paths::{ClusterPaths, directory_variables};
pub use run::{run, wait_until};
