#![doc = include_str!("../README.md")]

mod eventually;
mod inotify;
pub mod kubelet;
mod node;
pub mod nri;
mod objects;
pub mod runner;
mod runtime;
mod scheduler;

pub use drakkar_apiserver::{self as api, ApiServer, Identity};
pub use eventually::Deadline;
pub use kubelet::{Kubelet, Timing};
pub use node::{AllocatedClaim, DriverProcess, Leftovers, Node, NodeBuilder, NodeError, PodHandle};
pub use objects::{ClaimSpec, Container, Pod, device_class, resource_slice};
pub use runner::{Isolation, Runner};
pub use scheduler::Scheduler;
