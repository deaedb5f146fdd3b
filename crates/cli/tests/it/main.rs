//! Tests of the command as users and scripts run it: as a process, by its output and exit code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod campaign;
#[cfg(feature = "demo")]
mod chaos;
mod claims;
mod demo;
#[cfg(all(feature = "demo", feature = "operate"))]
mod doctor;
mod documentation;
mod driver_guide;
mod environment;
mod files;
mod guide;
mod help;
mod hostile;
mod kubevirt;
mod kubevirt_devices;
mod kubevirt_documents;
mod kubevirt_guide;
mod mounts;
mod net;
mod network_guide;
#[cfg(feature = "new")]
mod new;
#[cfg(all(feature = "demo", feature = "kubevirt-services", feature = "manual", feature = "net"))]
mod pictures;
#[cfg(all(feature = "demo", feature = "operate"))]
mod prepared;
mod project;
mod readiness;
mod shells;
mod soak;
mod support;
mod terminal_svg;
mod wait;
mod watch;
mod workload;
