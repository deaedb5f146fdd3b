#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
pub mod attach;
#[cfg(feature = "driver")]
mod attacher;
#[cfg(feature = "driver")]
pub mod attributes;
#[cfg(feature = "driver")]
pub mod binder;
pub mod claim_config;
#[cfg(feature = "driver")]
mod claims;
#[cfg(feature = "driver")]
pub mod config;
#[cfg(feature = "driver")]
mod desired;
#[cfg(feature = "driver")]
mod device_name;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod events;
#[cfg(feature = "driver")]
mod follow;
#[cfg(feature = "driver")]
mod health;
#[cfg(feature = "driver")]
mod hooks;
#[cfg(feature = "driver")]
mod interfaces;
#[cfg(feature = "driver")]
pub mod inventory;
#[cfg(feature = "driver")]
mod ipam;
#[cfg(feature = "driver")]
mod journal;
#[cfg(feature = "driver")]
pub mod kernel;
#[cfg(feature = "driver")]
mod metadata;
#[cfg(feature = "driver")]
mod metrics;
#[cfg(feature = "driver")]
mod plan;
#[cfg(feature = "driver")]
mod protect;
#[cfg(feature = "driver")]
mod published;
#[cfg(feature = "driver")]
mod rdma_nodes;
#[cfg(feature = "driver")]
mod reports;
#[cfg(feature = "driver")]
pub mod restore;
#[cfg(feature = "driver")]
mod run;
#[cfg(feature = "driver")]
mod select;
#[cfg(feature = "driver")]
mod survey;
#[cfg(feature = "driver")]
pub mod table;

pub use self::claim_config::{ClaimConfig, FieldError};
#[cfg(feature = "driver")]
pub use self::{
    config::{Config, ConfigError},
    events::{EventStream, Events, EventsError, HostChanges},
    follow::Following,
    interfaces::{Interface, Interfaces, LookupError, Settings, Subject},
    plan::{Decision, GONE, HeldInterface, Holding, SHARES, UNSELECTED},
    protect::Refusal,
    run::{Options, RunError, Running, run, start},
    select::Choice,
    survey::survey,
};

#[cfg(feature = "driver")]
pub use drakkar_plugin::BoxError;

/// The name of the driver, and the domain of its attributes, taints and API versions.
pub const DRIVER_NAME: &str = "net.drakkar.dev";
