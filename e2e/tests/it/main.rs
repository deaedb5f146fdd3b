//! Tests of the framework on a real single-node cluster: kubelet, containerd, scheduler, API server.
//!
//! `cargo xtask e2e` brings the cluster up, runs the tests and takes it down. Each test deploys its own driver, so most of
//! them run in parallel; those in `chart`, `disruption`, `network` and `node` need drivers or components for
//! themselves, and `load` needs the cluster for itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "these are tests")]

mod api_reports;
mod chart;
mod disruption;
mod kubelets;
mod kubevirt;
mod kubevirt_policies;
mod load;
mod metadata;
mod network;
mod node;
mod pod_start;
mod soak;
mod support;
