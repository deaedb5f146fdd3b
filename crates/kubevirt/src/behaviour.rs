//! How closely released KubeVirt is followed where it fails.

/// Whether the code does what a user needs, or what KubeVirt 1.9.0 does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// Does the right thing where released KubeVirt fails, and accepts everything that KubeVirt accepts.
    #[default]
    Extended,
    /// Behaves as KubeVirt 1.9.0, its limitations included: the same decisions, types and fields of causes, and elements.
    /// Texts are our own. docs/kubevirt-differences.md has the cases without this behaviour.
    Strict,
}

impl Behaviour {
    /// Whether only what released KubeVirt does is allowed.
    #[must_use]
    pub fn is_strict(self) -> bool {
        self == Self::Strict
    }
}
