//! Tests of servers with a DRA and a health service whose handlers are scripted.

mod double;
mod endpoints;
mod one;
