//! Why something is not published, and what to do.

use std::fmt;

/// Why resources of a driver are not published, or not as the driver wants them.
///
/// A driver is told in [`DraPlugin::handle_error`](crate::DraPlugin::handle_error): this is the source of the error there.
/// All but [`Self::Invalid`] and [`Self::OtherPool`] are tried again by themselves.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A pool is not valid. Nothing of it is sent; what was published of it before stays.
    #[error("pool {pool}: {}{}", Fields(.errors), More(*.omitted))]
    Invalid {
        /// The pool.
        pool: String,
        /// What is wrong with it; the first hundred problems.
        errors: Vec<InvalidField>,
        /// How many more there are.
        omitted: usize,
    },
    /// A driver with [`reconcile_pool_with_name`](crate::PluginBuilder::reconcile_pool_with_name) published another pool.
    #[error("pool {pool}: this driver publishes only pool {only}, which was chosen with reconcile_pool_with_name")]
    OtherPool {
        /// The pool.
        pool: String,
        /// The only one that it may publish.
        only: String,
    },
    /// The driver's service account may not do what is needed.
    #[error("{what}: {message}; the cluster role of the driver's service account needs this rule: {rule}")]
    Forbidden {
        /// What was tried.
        what: String,
        /// What the API server says.
        message: String,
        /// What to add to the cluster role.
        rule: &'static str,
    },
    /// The API server refuses a slice.
    #[error("{what}: the API server refuses it: {message}{hint}")]
    Rejected {
        /// What was tried.
        what: String,
        /// What the API server says.
        message: String,
        /// What may be the reason.
        hint: &'static str,
    },
    /// The API server took a slice but not all of it. It is left at that, and tried again now and then: fields are kept once
    /// the features are on.
    #[error(
        "pool {pool}, slice {slice}: the API server dropped {}; turn on {} there, or publish without",
        .fields.join(", "), .gates.join(", ")
    )]
    DroppedFields {
        /// The pool.
        pool: String,
        /// The slice's name.
        slice: String,
        /// The fields that are missing; the first ones.
        fields: Vec<String>,
        /// The feature gates of the API server that explain it.
        gates: Vec<&'static str>,
    },
    /// Somebody else changes the driver's slices again and again.
    #[error(
        "pool {pool}: somebody else changes or deletes its slices again and again; is a second instance of the driver on the \
         node, or another driver with the same name?"
    )]
    Contested {
        /// The pool.
        pool: String,
    },
    /// A task of the publisher has ended, and nothing is published any more.
    #[error("{0}")]
    Stopped(String),
    /// The API server gives no usable answer.
    #[error("{what}: {message}")]
    Api {
        /// What was tried.
        what: String,
        /// What went wrong.
        message: String,
    },
}

/// A field that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// Which: `devices[3].attributes[model].string`.
    pub field: String,
    /// What is wrong with it.
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
