//! Attach and restore on the kernel of this machine, in network namespaces of their own.

mod conflicts;
mod faults;
mod killed;
mod life;
pub(crate) mod machine;
mod many;
mod returns;
