#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod attributes;
mod background;
mod builder;
mod call_watch;
mod claim;
mod claims;
mod disk;
mod driver;
mod error;
#[cfg(feature = "clap")]
mod flags;
mod flagz;
mod handles;
mod health;
mod helper;
mod http_endpoint;
mod ledger;
mod lock;
#[cfg(feature = "logging")]
pub mod logging;
mod metrics;
pub mod node_files;
mod orphans;
mod parameters;
mod publishing;
mod recent_errors;
mod registration;
mod server;
mod service;
mod socket;
mod start;
mod status;
mod store;
mod update;

pub use background::BackgroundError;
pub use builder::{DEFAULT_CDI_DIRECTORY, DEFAULT_KUBELET_ROOT, DeferredMetadata, PluginBuilder};
pub use claim::Claim;
pub use drakkar_slices::{
    Capacity, DeviceNodes, Devices, DriverResources, InvalidField, NodeSelection, Pool, PoolSlice, PublishError,
    PublishStatus, PublishedDevice, ResourcePublisher,
};
pub use driver::{Batch, Device, DeviceMetadata, DraPlugin, Outcomes};
pub use error::BoxError;
#[cfg(feature = "clap")]
pub use flags::Flags;
pub use handles::Handles;
pub use health::{DeviceHealth, HealthMonitor, HealthReporter, HealthStatus};
pub use helper::{Helper, StopError};
pub use http_endpoint::HttpDetails;
pub use parameters::{ParameterSource, Parameters, ParametersError};
pub use registration::{RegistrationStatus, Services};
pub use start::StartError;
pub use status::{ConditionStatus, DeviceCondition, DeviceStatus, ReportError, StatusReporter};
pub use update::{MetadataUpdate, MetadataUpdater, UpdateError};

pub use drakkar_cdi::{self as cdi, ContainerEdits, DeviceNode, Hook, Mount};
pub use drakkar_client::{ClaimRef, ConnectError, NodeEnvironment};
pub use drakkar_metadata::{self as metadata, DeviceAttribute, NetworkDeviceData};
// Crates whose types are in signatures here: a driver that uses their types must have the same versions.
pub use {k8s_openapi, kube, prometheus_client, tonic};

/// The snippets of the guide for driver authors.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/driver-authors.md")]
mod guide {}
