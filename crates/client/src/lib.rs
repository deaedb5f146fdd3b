#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod backoff;
mod claim_ref;
mod connection;
mod dra_client;
mod error;
mod node_environment;
pub mod protobuf;
mod quantity;
mod random;
pub mod schema;
mod send_error;
mod server;
mod v1beta1;
mod version;

pub use backoff::{Backoff, Retry};
pub use claim_ref::ClaimRef;
pub use connection::{ConnectError, CredentialsError, KubeconfigError, ServiceAccountError, TlsError};
pub use dra_client::{Answer, AnswerBody, DraClient, escape};
pub use error::{ApiError, is_transient};
/// The body of an [`Answer`].
pub use hyper::body::Bytes;
pub use node_environment::NodeEnvironment;
pub use quantity::{Format, ParseQuantityError, Quantity};
pub use random::{random, uuid};
pub use send_error::{SendError, io_cause};
pub use server::Server;
pub use v1beta1::{from_v1, to_v1};
pub use version::DraVersion;
