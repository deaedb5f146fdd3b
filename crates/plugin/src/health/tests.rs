//! A hub whose monitor does as it is told, and readers of its streams.

mod double;
mod leases;
mod monitor;
mod properties;
mod reports;
mod services;
