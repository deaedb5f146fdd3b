//! Servers with a DRA and a health service whose handlers do as they are told.

mod double;
mod endpoints;
mod one;
