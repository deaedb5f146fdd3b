//! The releases of NRI that a node can have, and how they differ on the wire.

/// The release of NRI in the container runtime, with the containerd that has it.
///
/// | | 0.6 | 0.8 | 0.12 |
/// |---|---|---|---|
/// | containerd | 1.7.25 | 2.0.7 | 2.3.4 |
/// | events with an empty answer | `StateChange` | `StateChange` | calls of their own |
/// | valid mask of events | `0x07FF` | `0x07FF` | `0x3FFF` |
/// | timeouts in `Configure` | no | yes | yes |
/// | `Synchronize` in parts | no | yes | yes |
/// | CDI devices in adjustments | no | yes | yes |
/// | addresses of pods | no | no | yes |
/// | network namespace in `StopPodSandbox` | no | no | yes |
/// | a failed `Synchronize` | leaves the plugin connected without events | ends the connection | ends the connection |
/// | operations wait while a plugin synchronizes | no | yes | yes |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Version {
    /// 0.6.
    V0_6,
    /// 0.8.
    V0_8,
    /// 0.12.
    #[default]
    V0_12,
}

impl Version {
    /// Returns the name and version of the runtime.
    pub(super) fn runtime(self) -> (&'static str, &'static str) {
        let version = match self {
            Self::V0_6 => "v1.7.25",
            Self::V0_8 => "v2.0.7",
            Self::V0_12 => "v2.3.4",
        };
        ("containerd", version)
    }

    /// Returns the version of NRI as the runtime tells it.
    pub(super) fn nri(self) -> &'static str {
        if self >= Self::V0_12 { "v0.12.0" } else { "" }
    }

    /// Returns a bit for each event that plugins may subscribe to.
    pub(super) fn valid_events(self) -> i32 {
        if self >= Self::V0_12 { 0x3fff } else { 0x07ff }
    }

    /// Reports whether every event has a call of its own.
    pub(super) fn has_own_calls(self) -> bool {
        self >= Self::V0_12
    }

    /// Reports whether `Configure` has the timeouts, `Synchronize` has parts, and adjustments have CDI devices; and whether
    /// operations wait while a plugin synchronizes.
    pub(super) fn is_at_least_0_7(self) -> bool {
        self >= Self::V0_8
    }

    /// Reports whether pods have their addresses, and their namespaces even when they stop.
    pub(super) fn has_all_of_pods(self) -> bool {
        self >= Self::V0_12
    }
}
