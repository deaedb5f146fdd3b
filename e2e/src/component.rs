//! The programs that make up the node, in the order in which they are started.

use std::fmt;

/// A component that runs as a process of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// etcd, with the API server's data.
    Etcd,
    /// containerd, with CDI and NRI.
    Containerd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// The kubelet.
    Kubelet,
}

impl Component {
    /// All of them, in the order in which they are started.
    pub const ALL: [Self; 6] =
        [Self::Etcd, Self::Containerd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubelet];

    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Containerd => "containerd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
