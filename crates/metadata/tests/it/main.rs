//! The integration tests of `drakkar-metadata`: one binary, one module per topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "tests fail by panicking"
)]

mod bad_input;
mod budgets;
mod codec;
mod codec_text;
mod decode;
mod decode_older;
mod generate;
mod names;
mod paths;
mod properties;
mod read;
mod read_merge;
mod root;
mod schema;
mod selection;
mod snapshot;
mod support;
mod validate;
mod wait;
mod watch;
mod well_known;
