//! Who owns which field: `metadata.managedFields`, and server-side apply on top of it.
//!
//! The rules are those of Kubernetes' structured merge: an apply owns what it names, every other write owns what it
//! changes; what a manager applied before and leaves out now is removed, unless somebody else owns it too; and to change
//! what somebody else owns is a conflict, unless it is forced.
//!
//! Fields are named as in the stored form of an object, whatever version a client speaks.

mod apply;
mod entry;
mod schema;
mod set;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use apply::apply;
pub(crate) use entry::record_update;
