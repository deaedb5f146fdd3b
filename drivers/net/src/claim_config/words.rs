//! The values of fields that are one of several words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Defines an enum of words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All words.
            pub const WORDS: &[&str] = &[$($word),+];

            /// Returns the word.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(super::fields::unknown(&format!("{text:?} is not known"), text, Self::WORDS)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// The scope of a route.
    RouteScope {
        /// Behind a gateway.
        Global = "global",
        /// On the link.
        Link = "link",
        /// On this host.
        Host = "host",
    }
}

words! {
    /// The mode of macvlan interfaces.
    #[derive(Default)]
    MacvlanMode {
        /// They reach each other directly.
        #[default]
        Bridge = "bridge",
        /// They do not reach each other.
        Private = "private",
        /// They reach each other through the switch outside.
        Vepa = "vepa",
        /// One interface takes over the device.
        Passthru = "passthru",
    }
}

words! {
    /// The mode of ipvlan interfaces.
    #[derive(Default)]
    IpvlanMode {
        /// Frames are switched.
        #[default]
        L2 = "l2",
        /// Packets are routed.
        L3 = "l3",
        /// Packets are routed, and seen by the filters of the host.
        L3s = "l3s",
    }
}

words! {
    /// How ipvlan interfaces of one device reach each other.
    #[derive(Default)]
    IpvlanFlag {
        /// Directly.
        #[default]
        Bridge = "bridge",
        /// Not at all.
        Private = "private",
        /// Through the switch outside.
        Vepa = "vepa",
    }
}

words! {
    /// The protocol of a VLAN tag.
    #[derive(Default)]
    VlanProtocol {
        /// Customer tags.
        #[default]
        Dot1Q = "802.1Q",
        /// Provider tags.
        Dot1Ad = "802.1ad",
    }
}

words! {
    /// The driver of a device.
    DeviceDriver {
        /// The driver of the kernel, with an interface.
        Kernel = "kernel",
        /// The driver that hands the device to programs in user space (DPDK): it has no interface.
        VfioPci = "vfio-pci",
    }
}

impl DeviceDriver {
    /// Returns whether programs in user space drive the device.
    pub fn is_userspace(self) -> bool {
        self != Self::Kernel
    }
}

words! {
    /// The look for another host that has an address, before the pod uses it.
    #[derive(Default)]
    DuplicateDetection {
        /// None: addresses are used at once.
        Off = "off",
        /// One that costs little: an ARP probe and a few milliseconds for IPv4, the kernel's own for IPv6.
        #[default]
        Quick = "quick",
        /// One that waits for slow hosts: three ARP probes for IPv4, the kernel's own for IPv6.
        Full = "full",
    }
}
