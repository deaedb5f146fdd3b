//! The node that a driver runs on.

use std::fmt;
use std::path::PathBuf;

/// The node that a driver runs on: its name, its directories, and a client. A driver's `main` fills it from its flags; an
/// embedded node provides one for a driver under test.
#[derive(Clone)]
pub struct NodeEnvironment {
    /// A client with the driver's identity.
    pub client: kube::Client,
    /// The node's name.
    pub node_name: String,
    /// The kubelet's directory: `/var/lib/kubelet` on most nodes.
    pub kubelet_root: PathBuf,
    /// The directory of dynamic CDI specs: `/var/run/cdi` on most nodes.
    pub cdi_directory: PathBuf,
}

impl fmt::Debug for NodeEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeEnvironment")
            .field("node_name", &self.node_name)
            .field("kubelet_root", &self.kubelet_root)
            .field("cdi_directory", &self.cdi_directory)
            .finish_non_exhaustive()
    }
}
