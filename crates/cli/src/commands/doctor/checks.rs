//! The checks. Each is a function of the facts; none asks or changes anything itself.

mod api;
mod cdi;
mod claims;
mod files;
mod kubelet;
mod nri;
mod permissions;

pub(crate) use self::cdi::spec_difference;
pub(crate) use self::files::difference;
use super::finding::Finding;
use crate::node_facts::Facts;

/// A check of one aspect of a node.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) group: &'static str,
    /// The name, as in JSON.
    pub(crate) name: &'static str,
    run: fn(&Facts) -> Vec<Finding>,
}

/// What a check found.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) check: &'static Check,
    pub(crate) findings: Vec<Finding>,
}

/// All checks, in the order of the report.
const CHECKS: &[Check] = &[
    Check { group: "Kubelet and sockets", name: "kubelet", run: kubelet::kubelet },
    Check { group: "Kubelet and sockets", name: "registration", run: kubelet::registration },
    Check { group: "Kubelet and sockets", name: "stale-sockets", run: kubelet::stale_sockets },
    Check { group: "Kubelet and sockets", name: "readyz", run: kubelet::readyz },
    Check { group: "Container runtime", name: "cdi-runtime", run: cdi::runtime },
    Check { group: "Container runtime", name: "nri", run: nri::nri },
    Check { group: "Files", name: "plugin-dir", run: files::plugin_directory },
    Check { group: "Files", name: "permissions", run: permissions::permissions },
    Check { group: "Files", name: "disk", run: permissions::disk },
    Check { group: "Files", name: "temporary-files", run: files::temporary_files },
    Check { group: "Files", name: "records", run: files::records },
    Check { group: "Files", name: "metadata", run: files::metadata },
    Check { group: "Files", name: "cdi-specs", run: cdi::specs },
    Check { group: "Files", name: "cdi-records", run: cdi::records },
    Check { group: "Claims", name: "checkpoint", run: claims::checkpoint },
    Check { group: "Claims", name: "api-claims", run: claims::api_claims },
    Check { group: "API server", name: "connection", run: api::connection },
    Check { group: "API server", name: "clock", run: api::clock },
    Check { group: "API server", name: "versions", run: api::versions },
    Check { group: "API server", name: "node", run: api::node },
    Check { group: "API server", name: "device-classes", run: api::device_classes },
    Check { group: "API server", name: "resource-slices", run: api::resource_slices },
];

/// Runs all checks.
pub(crate) fn run(facts: &Facts) -> Vec<Checked> {
    CHECKS.iter().map(|check| Checked { check, findings: (check.run)(facts) }).collect()
}
