//! Claims on a simulated kernel, with every kind of failure, and killed at every step.

mod crash;
mod faults;
mod killed;
mod machine;
mod modes;
mod properties;
mod recovery;
mod sharing;
