#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod budget;
mod check;
mod device;
mod error;
mod library;
mod names;
mod result_type;
mod selector;
mod stack;
mod values;

#[cfg(test)]
mod tests;

pub use self::budget::MAX_EVALUATION_COST;
pub use self::check::{MAX_EXPRESSION_BYTES, check};
pub use self::device::{DeviceError, DeviceValue};
pub use self::error::{CheckError, Problem};
pub use self::result_type::ResultType;
pub use self::selector::{Selector, SelectorError};
