//! The kubelets that a node can have: that of the release that all is of, or an older one.

/// Which kubelet the node has. All else is of one release, whichever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// That of the same release as all else.
    #[default]
    SameRelease,
    /// The oldest that calls version v1 of the DRA service.
    V1_34,
    /// The oldest that calls version v1beta1. Kubernetes supports no such distance to the API server.
    V1_32,
}

impl Kubelet {
    /// Those that are older than all else.
    pub const OLDER: [Self; 2] = [Self::V1_34, Self::V1_32];

    /// The release of an older one, such as `1.34`.
    pub fn release(self) -> Option<&'static str> {
        match self {
            Self::SameRelease => None,
            Self::V1_34 => Some("1.34"),
            Self::V1_32 => Some("1.32"),
        }
    }

    /// The name of its program. An older one's module has it too.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::SameRelease => "kubelet",
            Self::V1_34 => "kubelet-1.34",
            Self::V1_32 => "kubelet-1.32",
        }
    }

    /// The feature gates without which it has no DRA.
    pub(crate) fn gates(self) -> &'static [&'static str] {
        match self {
            Self::SameRelease | Self::V1_34 => &[],
            Self::V1_32 => &["DynamicResourceAllocation"],
        }
    }

    /// The version of the DRA API that it asks the API server for, where that is not served by default.
    pub(crate) fn api(self) -> Option<&'static str> {
        match self {
            Self::SameRelease | Self::V1_34 => None,
            Self::V1_32 => Some("resource.k8s.io/v1beta1"),
        }
    }
}
