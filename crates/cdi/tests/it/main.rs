//! The integration tests of `drakkar-cdi`: one binary, one module per topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests fail by panicking"
)]

mod claim_spec;
mod generate;
mod metadata_spec;
mod names;
mod properties;
mod spec;
mod support;
mod validate;
mod validate_strict;
mod version;
