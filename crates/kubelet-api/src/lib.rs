#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// Nobody edits the modules below `checkpoint`: `cargo xtask proto` makes them, in the style of the generator.
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    dead_code,
    missing_debug_implementations,
    missing_docs,
    rust_2018_idioms,
    unreachable_pub,
    unused_qualifications
)]

#[warn(clippy::all, missing_debug_implementations, missing_docs, unreachable_pub)]
pub mod checkpoint;

/// Package `k8s.io.kubelet.pkg.apis.dra.v1`.
#[rustfmt::skip]
pub mod dra_v1;
/// Package `k8s.io.kubelet.pkg.apis.dra.v1beta1`.
#[rustfmt::skip]
pub mod dra_v1beta1;
/// Package `v1`: health.
#[rustfmt::skip]
pub mod health_v1;
/// Package `v1alpha1`: health.
#[rustfmt::skip]
pub mod health_v1alpha1;
/// Package `pluginregistration`.
#[rustfmt::skip]
pub mod registration;

#[cfg(test)]
mod tests;
