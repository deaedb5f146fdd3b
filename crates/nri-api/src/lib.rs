#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// Nobody edits the modules below: `cargo xtask proto` makes them, in the style of the generator.
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

/// Package `ttrpc`: the bodies of the messages that carry the calls.
#[rustfmt::skip]
pub mod ttrpc;
/// Package `nri.pkg.api.v1alpha1`: NRI.
#[rustfmt::skip]
pub mod v1alpha1;

/// The service of a plugin, which the runtime calls.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The service of a runtime, which plugins call.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The version of NRI that the messages are of.
pub const NRI_VERSION: &str = "0.12.2";

#[cfg(test)]
mod tests;
