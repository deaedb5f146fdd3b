#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod adjust;
mod backoff;
mod builder;
mod call;
mod connect;
mod context;
mod counters;
mod error;
mod event;
mod handle;
mod handler;
mod plugin;
mod pod;
mod request;
mod runtime;
mod session;
mod slots;
mod status;
mod updater;
pub mod wire;

pub use drakkar_nri_api::v1alpha1 as api;
pub use drakkar_nri_api::v1alpha1::{Container, LinuxResources, PodSandbox, ValidateContainerAdjustmentRequest};

pub use adjust::{Adjustments, ContainerAdjustment, ContainerUpdate, Resources, Updates};
pub use builder::Plugin;
pub use call::{Abandoned, Call};
pub use connect::{DEFAULT_SOCKET, DESCRIPTOR_VARIABLE, INDEX_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE};
pub use counters::{Counters, EventCounters};
pub use error::{BoxError, ConnectionError, StartError, UpdateError};
pub use event::{Event, Events};
pub use handle::{Handle, State};
pub use plugin::{Configuration, NriPlugin, Verdict};
pub use pod::PodSandboxExt;
pub use runtime::Runtime;
pub use status::{Code, Status};
pub use updater::Updater;
