//! The command as people and scripts use it: started as a process, judged by what it prints and how it ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, and one that cannot run says so"
)]

mod campaign;
#[cfg(feature = "demo")]
mod chaos;
mod demo;
mod documentation;
mod environment;
mod files;
mod help;
mod hostile;
mod mounts;
mod support;
mod wait;
mod workload;
