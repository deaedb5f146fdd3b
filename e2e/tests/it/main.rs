//! The framework on a real cluster of one node: kubelet, containerd, scheduler, API server.
//!
//! `cargo xtask e2e` brings it up, runs these and takes it down. Each test deploys a driver of its own, so those that leave
//! the cluster alone run side by side; those in `disruption` and `node` stop
//! parts of it, and `load` wants it for itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "these are tests")]

mod disruption;
mod kubelets;
mod load;
mod metadata;
mod node;
mod support;
mod upwards;
