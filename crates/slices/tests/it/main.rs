//! Tests of the publisher on the embedded API server.

#![allow(clippy::unwrap_used, clippy::panic)]

mod controller;
