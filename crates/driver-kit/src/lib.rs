#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod attributes;
pub mod background;
pub mod cdi;
pub mod config;
pub mod device_name;
pub mod files;
pub mod instance;
pub mod journal;
pub mod logged;
pub mod readable;
pub mod serde_text;
pub mod table;
pub mod unfinished;
