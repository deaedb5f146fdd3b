//! KubeVirt's own code beside ours: the same cases to both sides. Without Go the recorded answers of KubeVirt are used.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
// What asks a program is compiled without it too, so that it cannot break unseen.
#![cfg_attr(not(feature = "full"), allow(dead_code))]

mod differences;
mod generate;
#[cfg(feature = "go")]
mod generated;
mod goldens;
#[cfg(feature = "full")]
mod hooks;
mod suite;
mod suites;
mod support;
mod xml;
