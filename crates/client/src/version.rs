//! The versions of `resource.k8s.io`.

use std::fmt;

/// A version of the API group `resource.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraVersion {
    /// Served since Kubernetes 1.34.
    V1,
    /// Served since Kubernetes 1.33 if enabled. Has the same form as v1.
    V1beta2,
    /// Served since Kubernetes 1.32 if enabled. Requests and devices have another form, see [`crate::to_v1`].
    V1beta1,
}

impl DraVersion {
    /// All versions, the newest first.
    pub const ALL: [Self; 3] = [Self::V1, Self::V1beta2, Self::V1beta1];

    /// Returns the name of the version, as in paths: `v1beta1`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1beta2 => "v1beta2",
            Self::V1beta1 => "v1beta1",
        }
    }

    /// Returns the `apiVersion` of objects: `resource.k8s.io/v1beta1`.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "resource.k8s.io/v1",
            Self::V1beta2 => "resource.k8s.io/v1beta2",
            Self::V1beta1 => "resource.k8s.io/v1beta1",
        }
    }

    /// Returns whether objects have the same form as in v1.
    pub const fn has_v1_form(self) -> bool {
        !matches!(self, Self::V1beta1)
    }

    /// Returns the newest version that a server serves, by its name.
    pub(crate) fn newest(is_served: impl Fn(&str) -> bool) -> Option<Self> {
        Self::ALL.into_iter().find(|version| is_served(version.name()))
    }
}

impl fmt::Display for DraVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
