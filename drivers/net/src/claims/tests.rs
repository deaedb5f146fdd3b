mod conflicts;
mod faults;
mod lifecycle;
pub(crate) mod node;
pub(crate) mod real;
