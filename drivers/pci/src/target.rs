//! What a published device stands for, and its name.
//!
//! A name follows from the hardware alone, so it is the same after a restart, and the device of an allocated claim is found
//! again without any record.

use std::fmt;

use drakkar_driver_kit::device_name::{is_exact, label};
use drakkar_sysfs::{MdevParentName, PciAddress};

/// What a published device stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A PCI function.
    Function(PciAddress),
    /// A virtual function that the driver makes when it is needed, by its number.
    VirtualFunction {
        /// The physical function.
        physical: PciAddress,
        /// The number of the virtual function, from 0.
        index: u16,
    },
    /// A mediated device that the driver makes for a claim and removes after it.
    NewMdev {
        /// The device that it is made of.
        parent: MdevParentName,
        /// The id of its type.
        type_id: String,
        /// Its number among the devices of this type and parent, from 0.
        slot: u32,
    },
    /// A mediated device that somebody else has made.
    Mdev {
        /// Its UUID.
        uuid: String,
    },
}

impl Target {
    /// Returns the name under which the device is published: a DNS label.
    pub fn name(&self) -> String {
        match self {
            Self::Function(address) => label("pci", &address.to_string(), "", true),
            Self::VirtualFunction { physical, index } => label("vf", &physical.to_string(), &format!("-{index}"), true),
            Self::NewMdev { parent, type_id, slot } => {
                // Only in an address the places of colons and dots are known.
                let is_exact = is_exact(type_id, "-")
                    && match parent {
                        MdevParentName::Pci(_) => true,
                        MdevParentName::Other(name) => is_exact(name, ""),
                    };
                label("mdev", &format!("{parent}-{type_id}"), &format!("-{slot}"), is_exact)
            }
            Self::Mdev { uuid } => label("mdev", uuid, "", is_exact(uuid, "-")),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(address) => address.fmt(f),
            Self::VirtualFunction { physical, index } => write!(f, "virtual function {index} of {physical}"),
            Self::NewMdev { parent, type_id, .. } => write!(f, "a mediated device of type {type_id} on {parent}"),
            Self::Mdev { uuid } => write!(f, "mediated device {uuid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use drakkar_metadata::name::DeviceName;
    use rstest::rstest;

    use super::*;

    fn mdev(parent: &str, type_id: &str, slot: u32) -> Target {
        let parent = parent.parse().map_or_else(|_| MdevParentName::Other(parent.to_owned()), MdevParentName::Pci);
        Target::NewMdev { parent, type_id: type_id.to_owned(), slot }
    }

    #[rstest]
    #[case(Target::Function("0000:65:00.0".parse().unwrap()), "pci-0000-65-00-0")]
    #[case(Target::Function("10000:e1:00.0".parse().unwrap()), "pci-10000-e1-00-0")]
    #[case(Target::VirtualFunction { physical: "0000:65:00.1".parse().unwrap(), index: 12 }, "vf-0000-65-00-1-12")]
    #[case(mdev("0000:65:00.0", "nvidia-63", 3), "mdev-0000-65-00-0-nvidia-63-3")]
    #[case(mdev("mtty", "mtty-1", 0), "mdev-mtty-mtty-1-0")]
    #[case(mdev("0000:00:02.0", "i915-GVTg_V5_4", 0), "mdev-0000-00-02-0-i915-gvtg-v5-4-ea63a602-0")]
    #[case(Target::Mdev { uuid: "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001".into() }, "mdev-83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")]
    fn names_are_stable_labels(#[case] target: Target, #[case] expected: &str) {
        let name = target.name();
        assert_eq!(name, expected);
        DeviceName::new(name).unwrap();
    }

    #[test]
    fn long_names_are_valid_and_differ() {
        let name =
            |end: &str| mdev("ffffffff:ff:1f.7", &format!("{}{end}", "Long_Type".repeat(20)), 4_294_967_295).name();
        assert_ne!(name("a"), name("b"));
        DeviceName::new(name("a")).unwrap();
        assert_ne!(mdev("a", "X", 0).name(), mdev("a", "x", 0).name());
        assert_ne!(mdev("0000:65:00.0", "a.b", 0).name(), mdev("0000:65:00.0", "a-b", 0).name());
        assert_ne!(mdev("a-b", "c", 0).name(), mdev("a", "b-c", 0).name());
    }
}
