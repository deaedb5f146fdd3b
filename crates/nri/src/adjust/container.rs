//! Changes to a container that is about to be created.

use drakkar_nri_api::v1alpha1::{
    self, CdiDevice, Hooks, KeyValue, LinuxContainerAdjustment, LinuxDevice, LinuxIoPriority, LinuxMemoryPolicy,
    LinuxNamespace, LinuxNetDevice, LinuxRdt, LinuxScheduler, LinuxSeccomp, Mount, OptionalInt, PosixRlimit,
};

use super::{Resources, removal};

/// Changes to a container that is about to be created. Changes nothing by default.
///
/// The NRI version that a setting needs is noted where it is later than 0.4; older runtimes ignore it without a word.
///
/// ```
/// use drakkar_nri::ContainerAdjustment;
///
/// let adjustment = ContainerAdjustment::new()
///     .annotation("net.example.com/interface", "eth1")
///     .remove_env("HTTP_PROXY")
///     .bind_mount("/run/net", "/run/net", ["ro"])
///     .cdi_device("example.com/net=eth1");
/// assert_eq!(adjustment.as_message().env[0].key, "-HTTP_PROXY");
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerAdjustment(v1alpha1::ContainerAdjustment);

impl ContainerAdjustment {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.annotations.insert(key.into(), value.into());
        self
    }

    /// Removes an annotation.
    #[must_use]
    pub fn remove_annotation(self, key: &str) -> Self {
        self.annotation(removal(key), "")
    }

    /// Adds a mount, or replaces the one at the same destination. Its options are passed on as they are: a bind mount needs
    /// `bind` or `rbind`.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.0.mounts.push(mount);
        self
    }

    /// Adds a bind mount with options such as `ro`.
    #[must_use]
    pub fn bind_mount<O: Into<String>>(
        self,
        source: impl Into<String>,
        destination: impl Into<String>,
        options: impl IntoIterator<Item = O>,
    ) -> Self {
        let options = std::iter::once("rbind".to_owned()).chain(options.into_iter().map(Into::into)).collect();
        let (source, destination) = (source.into(), destination.into());
        self.mount(Mount { source, destination, r#type: "bind".to_owned(), options })
    }

    /// Removes the mount at a destination.
    #[must_use]
    pub fn remove_mount(self, destination: &str) -> Self {
        self.mount(Mount { destination: removal(destination), ..Mount::default() })
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.env.push(KeyValue { key: key.into(), value: value.into() });
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn remove_env(self, key: &str) -> Self {
        self.env(removal(key), "")
    }

    /// Adds OCI hooks.
    #[must_use]
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        let all = self.0.hooks.get_or_insert_default();
        all.prestart.extend(hooks.prestart);
        all.create_runtime.extend(hooks.create_runtime);
        all.create_container.extend(hooks.create_container);
        all.start_container.extend(hooks.start_container);
        all.poststart.extend(hooks.poststart);
        all.poststop.extend(hooks.poststop);
        self
    }

    /// Sets a resource limit as of setrlimit(2), such as `RLIMIT_MEMLOCK`.
    #[must_use]
    pub fn rlimit(mut self, name: impl Into<String>, hard: u64, soft: u64) -> Self {
        self.0.rlimits.push(PosixRlimit { r#type: name.into(), hard, soft });
        self
    }

    /// Adds a CDI device by its qualified name, such as `example.com/net=eth1`. Since NRI 0.7.
    #[must_use]
    pub fn cdi_device(mut self, name: impl Into<String>) -> Self {
        self.0.cdi_devices.push(CdiDevice { name: name.into() });
        self
    }

    /// Sets the command. Conflicts with another plugin that sets it. Since NRI 0.10.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.0.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the command, also if another plugin has set it. Since NRI 0.10.
    #[must_use]
    pub fn override_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.0.args = std::iter::once(String::new()).chain(args.into_iter().map(Into::into)).collect();
        self
    }

    /// Adds a device node.
    #[must_use]
    pub fn device(mut self, device: LinuxDevice) -> Self {
        self.linux().devices.push(device);
        self
    }

    /// Removes the device node at a path.
    #[must_use]
    pub fn remove_device(self, path: &str) -> Self {
        self.device(LinuxDevice { path: removal(path), ..LinuxDevice::default() })
    }

    /// Sets resource limits, in place of all that were set before.
    #[must_use]
    pub fn resources(mut self, resources: Resources) -> Self {
        self.linux().resources = Some(resources.into());
        self
    }

    /// Sets the path of the cgroup.
    #[must_use]
    pub fn cgroups_path(mut self, path: impl Into<String>) -> Self {
        self.linux().cgroups_path = path.into();
        self
    }

    /// Sets the adjustment of the OOM score. Since NRI 0.7.
    #[must_use]
    pub fn oom_score_adj(mut self, value: i64) -> Self {
        self.linux().oom_score_adj = Some(OptionalInt { value });
        self
    }

    /// Sets the I/O priority. Since NRI 0.10.
    #[must_use]
    pub fn io_priority(mut self, priority: LinuxIoPriority) -> Self {
        self.linux().io_priority = Some(priority);
        self
    }

    /// Sets the seccomp policy. Since NRI 0.10.
    #[must_use]
    pub fn seccomp(mut self, policy: LinuxSeccomp) -> Self {
        self.linux().seccomp_policy = Some(policy);
        self
    }

    /// Adds a namespace of a type such as `network`, or replaces it. Since NRI 0.10.
    #[must_use]
    pub fn namespace(mut self, kind: impl Into<String>, path: impl Into<String>) -> Self {
        self.linux().namespaces.push(LinuxNamespace { r#type: kind.into(), path: path.into() });
        self
    }

    /// Removes the namespace of a type. Since NRI 0.10.
    #[must_use]
    pub fn remove_namespace(self, kind: &str) -> Self {
        self.namespace(removal(kind), "")
    }

    /// Sets a sysctl. Since NRI 0.11.
    #[must_use]
    pub fn sysctl(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.linux().sysctl.insert(key.into(), value.into());
        self
    }

    /// Removes a sysctl. Since NRI 0.11.
    #[must_use]
    pub fn remove_sysctl(self, key: &str) -> Self {
        self.sysctl(removal(key), "")
    }

    /// Lets the OCI runtime move an interface of the host into the container under a name. Since NRI 0.11.
    #[must_use]
    pub fn net_device(mut self, host_name: impl Into<String>, name: impl Into<String>) -> Self {
        self.linux().net_devices.insert(host_name.into(), LinuxNetDevice { name: name.into() });
        self
    }

    /// Leaves an interface of the host where it is, which another plugin would move. Since NRI 0.11.
    #[must_use]
    pub fn remove_net_device(self, host_name: &str) -> Self {
        self.net_device(removal(host_name), "")
    }

    /// Sets the scheduling attributes. Since NRI 0.11.
    #[must_use]
    pub fn scheduler(mut self, scheduler: LinuxScheduler) -> Self {
        self.linux().scheduler = Some(scheduler);
        self
    }

    /// Sets cache and memory bandwidth. Since NRI 0.11.
    #[must_use]
    pub fn rdt(mut self, rdt: LinuxRdt) -> Self {
        self.linux().rdt = Some(rdt);
        self
    }

    /// Sets the memory policy. Since NRI 0.12.
    #[must_use]
    pub fn memory_policy(mut self, policy: LinuxMemoryPolicy) -> Self {
        self.linux().memory_policy = Some(policy);
        self
    }

    /// Returns the message.
    pub fn as_message(&self) -> &v1alpha1::ContainerAdjustment {
        &self.0
    }

    /// Returns the message, or `None` if nothing is changed.
    pub(super) fn into_message(self) -> Option<v1alpha1::ContainerAdjustment> {
        Some(self.0).filter(|message| *message != v1alpha1::ContainerAdjustment::default())
    }

    fn linux(&mut self) -> &mut LinuxContainerAdjustment {
        self.0.linux.get_or_insert_default()
    }
}

impl From<v1alpha1::ContainerAdjustment> for ContainerAdjustment {
    fn from(adjustment: v1alpha1::ContainerAdjustment) -> Self {
        Self(adjustment)
    }
}
