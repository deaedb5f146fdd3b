//! Where a driver runs.

use std::fmt;
use std::path::PathBuf;

/// What a driver must know of the node that it runs on. An embedded node hands one out, so that a driver under test is set up in
/// one call.
#[derive(Clone)]
pub struct NodeEnvironment {
    /// A client with the identity of the driver.
    pub client: kube::Client,
    /// The node's name.
    pub node_name: String,
    /// The kubelet's directory: `/var/lib/kubelet` on most nodes.
    pub kubelet_root: PathBuf,
    /// The directory of CDI specs that come and go: `/var/run/cdi` on most nodes.
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
