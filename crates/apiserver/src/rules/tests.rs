//! The rules against what a real API server said.

mod access;
mod formats;
mod real_server;
mod recorded;
