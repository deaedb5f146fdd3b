//! The kubelet releases that a node can run: the release of the other components, or an older one.

/// The kubelet release of the node. All other components are of one release in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// The release of the other components.
    #[default]
    SameRelease,
    /// The oldest kubelet that calls v1 of the DRA service.
    V1_34,
    /// The oldest kubelet that calls v1beta1. Kubernetes does not support this version skew to the API server.
    V1_32,
}

impl Kubelet {
    /// The kubelets that are older than the other components.
    pub const OLDER: [Self; 2] = [Self::V1_34, Self::V1_32];

    /// The release of an older kubelet, such as `1.34`.
    pub fn release(self) -> Option<&'static str> {
        match self {
            Self::SameRelease => None,
            Self::V1_34 => Some("1.34"),
            Self::V1_32 => Some("1.32"),
        }
    }

    /// The name of the program; for an older kubelet also that of its Go module's directory.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::SameRelease => "kubelet",
            Self::V1_34 => "kubelet-1.34",
            Self::V1_32 => "kubelet-1.32",
        }
    }

    /// The feature gates that it needs for DRA.
    pub(crate) fn gates(self) -> &'static [&'static str] {
        match self {
            Self::SameRelease | Self::V1_34 => &[],
            Self::V1_32 => &["DynamicResourceAllocation"],
        }
    }

    /// The version of the DRA API that it needs, if the API server does not serve it by default.
    pub(crate) fn api(self) -> Option<&'static str> {
        match self {
            Self::SameRelease | Self::V1_34 => None,
            Self::V1_32 => Some("resource.k8s.io/v1beta1"),
        }
    }
}
