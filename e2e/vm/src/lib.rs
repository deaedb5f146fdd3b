#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod cpio;
mod error;
pub mod guest;
mod image;
mod machine;
mod module_build;
mod packages;
mod program;
mod qmp;
mod release;
mod run;
mod vm;

pub use cache::Cache;
pub use error::{Error, Result};
pub use image::{Image, NETWORK_MODULES, PASSTHROUGH_MODULES};
pub use machine::Machine;
pub use release::{Features, Release};
pub use vm::Vm;

/// Returns why the virtual machine cannot run on this host, or `None` if it can: its packages are in the cache, or can be had.
pub fn unsupported_reason(cache: &Cache) -> Option<String> {
    if Release::is_cached(cache) {
        return None;
    }
    packages::unsupported_reason().or_else(|| packages::unreachable_reason(cache))
}
