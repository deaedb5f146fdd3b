//! Ownership of fields: `metadata.managedFields`, and server-side apply on top of it.
//!
//! The rules are those of Kubernetes' structured merge. An apply owns the fields that it names, any other write the fields
//! that it changes. A field that a manager applied before and leaves out now is removed, unless another manager owns it too.
//! Changing a field that another manager owns is a conflict, unless the apply is forced.
//!
//! Fields have the names of the stored form of an object, whatever version a client uses.

mod apply;
mod entry;
mod schema;
mod set;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use apply::apply;
pub(crate) use entry::record_update;
pub(crate) use schema::Schema;
