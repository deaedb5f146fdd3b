//! Tests over real HTTP, as clients see the server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod clients;
mod deletion;
mod discovery;
mod faults;
mod lists;
mod objects;
mod openapi;
mod patches;
mod reviews;
mod support;
mod tables;
mod watches;
