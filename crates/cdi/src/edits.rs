//! Container edits in the words of a driver: device nodes, bind mounts, variables, hooks.

use std::fmt::Display;

use crate::spec::{ContainerEdits, DeviceNode, Hook, Mount};

/// ```
/// use drakkar_cdi::{ContainerEdits, DeviceNode, Mount};
///
/// let edits = ContainerEdits::default()
///     .device_node("/dev/gpu0")
///     .device_node(DeviceNode { permissions: "rw".into(), ..DeviceNode::new("/dev/gpuctl") })
///     .mount(Mount::read_only("/opt/gpu/lib", "/usr/lib/gpu"))
///     .env_var("GPU", "gpu-0");
/// assert_eq!(edits.env, ["GPU=gpu-0"]);
/// assert!(drakkar_cdi::validate_edits(&edits).is_ok());
/// ```
impl ContainerEdits {
    /// Adds a device node: a path that is the same in the container as on the host, or a [`DeviceNode`] with more settings.
    #[must_use]
    pub fn device_node(mut self, node: impl Into<DeviceNode>) -> Self {
        self.device_nodes.push(node.into());
        self
    }

    /// Adds a mount.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env_var(mut self, name: impl Display, value: impl Display) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// Adds a hook.
    #[must_use]
    pub fn hook(mut self, hook: Hook) -> Self {
        self.hooks.push(hook);
        self
    }
}

impl DeviceNode {
    /// Creates a node with the same path in the container as on the host, whose type and numbers the runtime reads there.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Creates a node that has another path in the container than on the host.
    pub fn mapped(host_path: impl Into<String>, path: impl Into<String>) -> Self {
        Self { host_path: host_path.into(), ..Self::new(path) }
    }
}

impl From<&str> for DeviceNode {
    fn from(path: &str) -> Self {
        Self::new(path)
    }
}

impl From<String> for DeviceNode {
    fn from(path: String) -> Self {
        Self::new(path)
    }
}

impl Mount {
    /// Creates a bind mount of a file or directory of the host that the container can only read.
    pub fn read_only(host_path: impl Into<String>, container_path: impl Into<String>) -> Self {
        Self::bind("ro", host_path.into(), container_path.into())
    }

    /// Creates a bind mount of a file or directory of the host that the container can write to.
    pub fn read_write(host_path: impl Into<String>, container_path: impl Into<String>) -> Self {
        Self::bind("rw", host_path.into(), container_path.into())
    }

    fn bind(access: &str, host_path: String, container_path: String) -> Self {
        Self { host_path, container_path, options: vec![access.into(), "bind".into()], fs_type: String::new() }
    }
}

impl Hook {
    /// Creates a hook that runs a program of the host at a point of the container's lifecycle, for example
    /// `createContainer`. The program gets its own path as the first argument, and then `arguments`.
    pub fn new<A: Into<String>>(
        point: impl Into<String>,
        path: impl Into<String>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let path = path.into();
        let args = std::iter::once(path.clone()).chain(arguments.into_iter().map(Into::into)).collect();
        Self { hook_name: point.into(), path, args, ..Self::default() }
    }
}
