#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod api;
mod content;
mod diff;
mod dropped;
mod error;
mod generations;
mod layout;
mod lookup;
mod mailbox;
mod name;
mod observer;
mod overview;
mod pool;
mod publisher;
mod resources;
mod source;
mod stored;
mod turn;
mod validate;
mod wanted;
mod write;

pub use self::error::{InvalidField, PublishError};
pub use self::generations::FILE as GENERATIONS_FILE;
pub use self::lookup::{LookupError, PublishedAttributes};
pub use self::mailbox::{PublishStatus, ResourcePublisher};
pub use self::observer::{Observer, SliceWrite};
pub use self::overview::Overview;
pub use self::publisher::{Publisher, PublisherConfig};
pub use self::resources::{Capacity, DeviceNodes, DriverResources, NodeSelection, Pool, PoolSlice, PublishedDevice};
pub use self::turn::FILE as ELECTION_FILE;
