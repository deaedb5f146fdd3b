//! Tests of a hub with a scripted monitor, and of the readers of its streams.

mod double;
mod leases;
mod monitor;
mod properties;
mod reports;
mod services;
