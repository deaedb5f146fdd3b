#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod api;
mod content;
mod desired;
mod device_json;
pub mod devices;
mod diff;
mod draft;
mod dropped;
mod error;
mod generations;
mod layout;
mod lookup;
mod name;
mod observer;
mod overview;
mod pending;
mod pool;
mod publisher;
mod publisher_election;
mod reflector;
mod resources;
mod slice_devices;
mod stored;
mod update;
mod validate;
mod write;

pub use self::devices::Devices;
pub use self::error::{InvalidField, PublishError};
pub use self::generations::FILE as GENERATIONS_FILE;
pub use self::lookup::{LookupError, PublishedAttributes};
pub use self::observer::{Observer, SliceWrite};
pub use self::overview::{Overview, PoolOverview};
pub use self::pending::{PublishStatus, ResourcePublisher};
pub use self::publisher::{Publisher, PublisherConfig};
pub use self::publisher_election::FILE as ELECTION_FILE;
pub use self::resources::{Capacity, DeviceNodes, DriverResources, NodeSelection, Pool, PoolSlice, PublishedDevice};
