#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod attributes;
pub mod claim_config;
pub mod config;
mod devices;
mod driver;
mod events;
mod health;
mod journal;
mod metadata;
mod metrics;
mod mode;
mod nodes;
mod plan;
mod prepare;
mod protect;
mod run;
mod select;
mod source;
mod survey;
pub mod table;
mod target;
mod unfinished;

pub use self::claim_config::ClaimConfig;
pub use self::config::{Config, ConfigError};
pub use self::events::Events;
pub use self::journal::JournalProblem;
pub use self::mode::{IommuBackend, Mode};
pub use self::nodes::NodeError;
pub use self::plan::{Decision, GONE, Note, UNRESPONSIVE, UNSELECTED};
pub use self::prepare::{
    DeviceManager, DeviceRequest, HeldDevice, ManagerSettings, PrepareError, PreparedDevice, Recovery, RecoveryProblem,
    Retry,
};
pub use self::protect::Refusal;
pub use self::run::{Options, RunError, Running, run, start};
pub use self::select::{Choice, FormerDrivers};
pub use self::source::{Source, SourceError};
pub use self::survey::survey;
pub use self::target::Target;

pub use drakkar_driver_kit::cdi::CdiError;
pub use drakkar_plugin::BoxError;

/// The name of the driver, and the domain of its attributes, taints and API versions.
pub const DRIVER_NAME: &str = "pci.drakkar.dev";
