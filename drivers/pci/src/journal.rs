//! The journal: what was changed in the kernel for which claim, and what it was before.
//!
//! The files are those of [`drakkar_driver_kit::journal`], one for each claim. What several claims need (a member of an IOMMU group,
//! the virtual functions of a device) is in the file of each of them, with the same former state.

mod record;

pub use drakkar_driver_kit::journal::JournalProblem;

pub(crate) use self::record::{DeviceRecord, FunctionRecord, Phase, PhysicalFunctionRecord, PreparedRecord, Record};

/// The journal of the driver.
pub(crate) type Journal = drakkar_driver_kit::journal::Journal<Record>;
