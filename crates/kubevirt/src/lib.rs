#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod admission;
pub mod behaviour;
#[cfg(test)]
mod cases;
pub mod check;
pub mod claims;
pub mod device_plugin;
pub mod explain;
pub mod gates;
pub mod hook;
pub mod hostdev;
pub mod migration;
pub mod placement;
pub mod render;
pub mod resolve;
pub mod vmi;
#[cfg(feature = "webhook")]
pub mod webhook;
pub mod xml;

pub use behaviour::Behaviour;
pub use gates::{FeatureGates, Gate, Stage};
