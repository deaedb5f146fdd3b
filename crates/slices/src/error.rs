//! Errors of publishing, each with its remedy.

use std::fmt;
use std::sync::Arc;

use drakkar_client::ApiError;
use tokio::task::JoinError;

/// Why resources are not published, or not as requested.
///
/// Reported by [`Observer::publish_failed`](crate::Observer::publish_failed); a driver with a kubelet plugin gets it in
/// `DraPlugin::handle_error`. The publisher retries by itself unless the error [is permanent](Self::is_permanent).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A pool is not valid. Nothing of it is sent; its last valid version stays published.
    #[error("pool {pool}: {}{}", Fields(.errors), More(*.omitted))]
    Invalid {
        /// The pool.
        pool: String,
        /// The invalid fields, up to a hundred.
        errors: Vec<InvalidField>,
        /// The number of invalid fields beyond those.
        omitted: usize,
    },
    /// A publisher that is limited to one pool got another one.
    #[error(
        "pool {pool}: this driver publishes only pool {only}, as set with reconcile_pool_with_name or \
         PublisherConfig::only_pool"
    )]
    OtherPool {
        /// The pool.
        pool: String,
        /// The only pool that may be published.
        only: String,
    },
    /// Devices of a pool were to be changed that is not published.
    #[error("pool {pool}: it is not published; publish it before you change devices of it")]
    UnknownPool {
        /// The pool.
        pool: String,
    },
    /// The service account lacks a permission.
    #[error("{what}: {message}; the cluster role of the driver's service account needs this rule: {rule}")]
    Forbidden {
        /// The request that was refused.
        what: String,
        /// The message of the API server.
        message: String,
        /// The rule to add to the cluster role.
        rule: &'static str,
    },
    /// The API server refuses a slice.
    #[error("{what}: the API server refuses it: {message}{hint}")]
    Rejected {
        /// The request that was refused.
        what: String,
        /// The message of the API server.
        message: String,
        /// A probable reason, or nothing.
        hint: &'static str,
    },
    /// The API server stored a slice without some of its fields, because their feature gates are off. What it stored is
    /// accepted, and the fields are sent again from time to time in case the gates have been turned on.
    #[error(
        "pool {pool}, slice {slice}: the API server dropped {}; turn on {} there, or publish without",
        .fields.join(", "), .gates.join(", ")
    )]
    DroppedFields {
        /// The pool.
        pool: String,
        /// The slice's name.
        slice: String,
        /// The first of the dropped fields.
        fields: Vec<String>,
        /// The feature gates of the API server that these fields need.
        gates: Vec<&'static str>,
    },
    /// Another client keeps changing the slices of a pool.
    #[error(
        "pool {pool}: another client changes or deletes its slices again and again; is a second instance of the driver on \
         the node, or another driver with the same name?"
    )]
    Contested {
        /// The pool.
        pool: String,
    },
    /// The publisher was dropped or has failed: nothing is published until a new one is started.
    #[error("the publisher has stopped; start a new one to publish")]
    Stopped,
    /// The validation of resources panicked, which is a bug. They are not published.
    #[error("the validation of the resources panicked: {0}")]
    Panicked(#[source] Arc<JoinError>),
    /// A pool cannot be encoded as JSON.
    #[error("pool {pool}: encode: {source}")]
    Encode {
        /// The pool.
        pool: String,
        /// The cause.
        source: Arc<serde_json::Error>,
    },
    /// The API server gave no usable answer.
    #[error("{what}: {source}")]
    Api {
        /// The request that failed.
        what: String,
        /// The cause.
        source: Arc<ApiError>,
    },
}

impl PublishError {
    /// Returns whether the error lasts until other resources are published, so that the publisher does not retry.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::OtherPool { .. }
            | Self::UnknownPool { .. }
            | Self::Stopped
            | Self::Panicked(_)
            | Self::Encode { .. } => true,
            Self::Forbidden { .. }
            | Self::Rejected { .. }
            | Self::DroppedFields { .. }
            | Self::Contested { .. }
            | Self::Api { .. } => false,
        }
    }
}

/// A field that breaks a rule of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// The path of the field: `devices[3].attributes[model].string`.
    pub field: String,
    /// The rule that it breaks.
    pub problem: String,
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

struct Fields<'a>(&'a [InvalidField]);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

struct More(usize);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, "; and {} more", self.0) }
    }
}
