//! Resource limits, of a container that is created and of one that exists.

use drakkar_nri_api::v1alpha1::{
    HugepageLimit, LinuxCpu, LinuxMemory, LinuxPids, LinuxResources, OptionalBool, OptionalInt64, OptionalString,
    OptionalUInt64,
};

/// Resource limits. What is not set stays as it is.
///
/// ```
/// use drakkar_nri::Resources;
///
/// let resources = Resources::new().cpu_set("0-3").memory_nodes("0").memory_limit(1 << 30);
/// assert_eq!(resources.as_message().cpu.as_ref().unwrap().cpus, "0-3");
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resources(LinuxResources);

impl Resources {
    /// No limit is changed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the CPUs to run on, as `0-3,8`.
    #[must_use]
    pub fn cpu_set(mut self, cpus: impl Into<String>) -> Self {
        self.cpu().cpus = cpus.into();
        self
    }

    /// Sets the NUMA nodes to take memory from, as `0,1`.
    #[must_use]
    pub fn memory_nodes(mut self, nodes: impl Into<String>) -> Self {
        self.cpu().mems = nodes.into();
        self
    }

    /// Sets the CPU shares.
    #[must_use]
    pub fn cpu_shares(mut self, value: u64) -> Self {
        self.cpu().shares = Some(OptionalUInt64 { value });
        self
    }

    /// Sets the CPU quota, in microseconds per period.
    #[must_use]
    pub fn cpu_quota(mut self, value: i64) -> Self {
        self.cpu().quota = Some(OptionalInt64 { value });
        self
    }

    /// Sets the period of the CPU quota, in microseconds.
    #[must_use]
    pub fn cpu_period(mut self, value: u64) -> Self {
        self.cpu().period = Some(OptionalUInt64 { value });
        self
    }

    /// Sets the time for real-time tasks, in microseconds per period.
    #[must_use]
    pub fn realtime(mut self, runtime: i64, period: u64) -> Self {
        self.cpu().realtime_runtime = Some(OptionalInt64 { value: runtime });
        self.cpu().realtime_period = Some(OptionalUInt64 { value: period });
        self
    }

    /// Sets the memory limit in bytes.
    #[must_use]
    pub fn memory_limit(mut self, value: i64) -> Self {
        self.memory().limit = Some(OptionalInt64 { value });
        self
    }

    /// Sets the memory reservation in bytes.
    #[must_use]
    pub fn memory_reservation(mut self, value: i64) -> Self {
        self.memory().reservation = Some(OptionalInt64 { value });
        self
    }

    /// Sets the limit of memory and swap in bytes.
    #[must_use]
    pub fn memory_swap(mut self, value: i64) -> Self {
        self.memory().swap = Some(OptionalInt64 { value });
        self
    }

    /// Sets the swappiness, from 0 to 100.
    #[must_use]
    pub fn memory_swappiness(mut self, value: u64) -> Self {
        self.memory().swappiness = Some(OptionalUInt64 { value });
        self
    }

    /// Disables or enables the OOM killer.
    #[must_use]
    pub fn disable_oom_killer(mut self, value: bool) -> Self {
        self.memory().disable_oom_killer = Some(OptionalBool { value });
        self
    }

    /// Sets the limit for one size of huge pages, such as `2MB`, in bytes.
    #[must_use]
    pub fn hugepage_limit(mut self, page_size: impl Into<String>, limit: u64) -> Self {
        self.0.hugepage_limits.push(HugepageLimit { page_size: page_size.into(), limit });
        self
    }

    /// Sets the limit on processes.
    #[must_use]
    pub fn pids_limit(mut self, limit: i64) -> Self {
        self.0.pids = Some(LinuxPids { limit });
        self
    }

    /// Sets the class of block I/O.
    #[must_use]
    pub fn block_io_class(mut self, class: impl Into<String>) -> Self {
        self.0.blockio_class = Some(OptionalString { value: class.into() });
        self
    }

    /// Sets the class of Resource Director Technology.
    #[must_use]
    pub fn rdt_class(mut self, class: impl Into<String>) -> Self {
        self.0.rdt_class = Some(OptionalString { value: class.into() });
        self
    }

    /// Sets a file of cgroup v2, such as `memory.high`.
    #[must_use]
    pub fn unified(mut self, file: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.unified.insert(file.into(), value.into());
        self
    }

    /// Returns the message.
    pub fn as_message(&self) -> &LinuxResources {
        &self.0
    }

    /// Returns the message, to change what has no method here.
    pub fn message_mut(&mut self) -> &mut LinuxResources {
        &mut self.0
    }

    fn cpu(&mut self) -> &mut LinuxCpu {
        self.0.cpu.get_or_insert_default()
    }

    fn memory(&mut self) -> &mut LinuxMemory {
        self.0.memory.get_or_insert_default()
    }
}

impl From<LinuxResources> for Resources {
    fn from(resources: LinuxResources) -> Self {
        Self(resources)
    }
}

impl From<Resources> for LinuxResources {
    fn from(resources: Resources) -> Self {
        resources.0
    }
}
