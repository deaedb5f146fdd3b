//! The gRPC messages and services between virt-launcher and a hook.
//!
//! Generated from the files in `proto` by `cargo xtask proto`, and committed.
// Nobody edits the modules below: they are in the style of the generator.
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

/// Package `kubevirt.hooks.info`.
#[rustfmt::skip]
pub mod hooks_info;
/// Package `kubevirt.hooks.v1alpha1`.
#[rustfmt::skip]
pub mod hooks_v1alpha1;
/// Package `kubevirt.hooks.v1alpha2`.
#[rustfmt::skip]
pub mod hooks_v1alpha2;
/// Package `kubevirt.hooks.v1alpha3`.
#[rustfmt::skip]
pub mod hooks_v1alpha3;
/// Package `kubevirt.hooks.plugins.v1alpha1`.
#[rustfmt::skip]
pub mod plugins_v1alpha1;
