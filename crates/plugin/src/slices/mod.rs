//! Publishing resources: what a driver has to offer becomes `ResourceSlice` objects, and they stay as the driver wants them.
//!
//! [`ResourcePublisher::publish`] only leaves what is wanted in an inbox ([`mailbox`]); one task ([`publisher`]) does the rest:
//!
//! 1. Each pool is checked ([`validate`]) and brought into the form in which it is sent and compared ([`content`],
//!    [`wanted`]), then split into slices so that as few as possible change ([`layout`]).
//! 2. A list and a watch tell what the API server has ([`source`], [`api`], [`stored`]). Only digests of it are kept.
//! 3. Whenever either changes, the difference is written ([`diff`], [`pool`]): at once, also when a kubelet has wiped the
//!    slices. When nothing changes nothing is sent.
//!
//! Failures are tried again after pauses that grow and differ from node to node ([`backoff`]). In a rolling update the newer
//! instance publishes and the older keeps quiet ([`turn`]). Generations of pools never go back ([`generations`]).
//!
//! Before the first call of `publish` nothing is asked of the API server.

mod api;
mod backoff;
mod content;
mod diff;
mod dropped;
mod error;
mod generations;
mod layout;
mod lookup;
mod mailbox;
mod name;
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
pub(crate) use self::generations::FILE as GENERATIONS_FILE;
pub(crate) use self::lookup::{LookupError, PublishedAttributes};
pub use self::mailbox::{PublishStatus, ResourcePublisher};
pub(crate) use self::overview::Overview;
pub(crate) use self::publisher::{Publisher, PublisherSettings};
pub use self::resources::{Capacity, DeviceNodes, DriverResources, NodeSelection, Pool, PoolSlice, PublishedDevice};
pub(crate) use self::turn::FILE as TURN_FILE;
