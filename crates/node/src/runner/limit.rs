//! Resource limits of a container's processes, by the names of the OCI runtime specification.

use rustix::process::{Resource, Rlimit};

use super::child_action::ChildAction;

/// The limits that Linux has, by name.
const NAMES: [(&str, Resource); 16] = [
    ("RLIMIT_AS", Resource::As),
    ("RLIMIT_CORE", Resource::Core),
    ("RLIMIT_CPU", Resource::Cpu),
    ("RLIMIT_DATA", Resource::Data),
    ("RLIMIT_FSIZE", Resource::Fsize),
    ("RLIMIT_LOCKS", Resource::Locks),
    ("RLIMIT_MEMLOCK", Resource::Memlock),
    ("RLIMIT_MSGQUEUE", Resource::Msgqueue),
    ("RLIMIT_NICE", Resource::Nice),
    ("RLIMIT_NOFILE", Resource::Nofile),
    ("RLIMIT_NPROC", Resource::Nproc),
    ("RLIMIT_RSS", Resource::Rss),
    ("RLIMIT_RTPRIO", Resource::Rtprio),
    ("RLIMIT_RTTIME", Resource::Rttime),
    ("RLIMIT_SIGPENDING", Resource::Sigpending),
    ("RLIMIT_STACK", Resource::Stack),
];

/// A resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    resource: Resource,
    pub(super) soft: u64,
    pub(super) hard: u64,
}

impl Limit {
    /// Creates a limit; `None` if there is none of that name.
    pub(crate) fn new(name: &str, soft: u64, hard: u64) -> Option<Self> {
        let (_, resource) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(Self { resource: *resource, soft, hard })
    }

    pub(super) fn name(&self) -> &'static str {
        NAMES.iter().find(|(_, resource)| *resource == self.resource).map(|(name, _)| *name).unwrap_or_default()
    }

    pub(super) fn action(&self) -> ChildAction {
        // The largest number stands for no limit.
        let value = |value: u64| (value != u64::MAX).then_some(value);
        let limit = Rlimit { current: value(self.soft), maximum: value(self.hard) };
        ChildAction::Limit { resource: self.resource, limit }
    }
}
