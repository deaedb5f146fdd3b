#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod attributes;
mod bind;
mod change_error;
mod group;
mod in_use;
mod inventory;
mod kernel;
mod mdev;
mod mdev_write;
mod net_device;
mod pci;
mod read;
mod roots;
pub mod simulation;
mod sriov;
mod uevent;

pub use drakkar_metadata::PciAddress;

pub use self::bind::{Binding, Restored, bind_to, bind_to_kernel_driver, restore, set_override, unbind};
pub use self::change_error::ChangeError;
pub use self::group::{BlockingMember, IommuGroup, Viability};
pub use self::in_use::{HostUse, InUse, InUseKind};
pub use self::inventory::{Changes, Inventory, Problem, ScanError};
pub use self::kernel::{DEFAULT_READ_TIMEOUT, DEFAULT_WRITE_TIMEOUT, HostKernel, HungWrite, Kernel, Sysfs, WriteError};
pub use self::mdev::{Mdev, MdevParent, MdevParentName, MdevType};
pub use self::mdev_write::{MdevState, create_mdev, remove_mdev};
pub use self::net_device::NetDevice;
pub use self::pci::{ConfigSpace, Link, PciDevice, Sriov};
pub use self::roots::Roots;
pub use self::sriov::{VfCount, set_num_vfs, virtual_function, virtual_functions};
pub use self::uevent::{Action, DeviceEvent, ParseUeventError, Uevent, UeventError, UeventSocket};
