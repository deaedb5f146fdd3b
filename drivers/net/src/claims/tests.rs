mod conflicts;
mod faults;
mod lifecycle;
pub(crate) mod node;
mod real;
