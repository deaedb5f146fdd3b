//! The kinds and scopes of routes, with the kernel's numbers.

use serde::{Deserialize, Serialize};

/// The kind of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RouteType {
    /// To a router or directly.
    Unicast,
    /// The host's own address.
    Local,
    /// A broadcast address.
    Broadcast,
    /// An anycast address.
    Anycast,
    /// Multicast.
    Multicast,
    /// Drops silently.
    BlackHole,
    /// Answers that it is unreachable.
    Unreachable,
    /// Answers that it is prohibited.
    Prohibit,
    /// Another kind, by its number.
    Other(u8),
}

/// The distance to the destination of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteScope {
    /// Behind a router.
    Global,
    /// Within the site.
    Site,
    /// On the link.
    Link,
    /// On this host.
    Host,
    /// Another scope, by its number.
    Other(u8),
}

impl RouteScope {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Global => 0,
            Self::Site => 200,
            Self::Link => 253,
            Self::Host => 254,
            Self::Other(number) => number,
        }
    }

    pub(super) fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Global,
            200 => Self::Site,
            253 => Self::Link,
            254 => Self::Host,
            other => Self::Other(other),
        }
    }
}

impl RouteType {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Unicast => 1,
            Self::Local => 2,
            Self::Broadcast => 3,
            Self::Anycast => 4,
            Self::Multicast => 5,
            Self::BlackHole => 6,
            Self::Unreachable => 7,
            Self::Prohibit => 8,
            Self::Other(number) => number,
        }
    }

    pub(super) fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Unicast,
            2 => Self::Local,
            3 => Self::Broadcast,
            4 => Self::Anycast,
            5 => Self::Multicast,
            6 => Self::BlackHole,
            7 => Self::Unreachable,
            8 => Self::Prohibit,
            other => Self::Other(other),
        }
    }
}
