//! Validates the container edits of a spec or of a device.

use std::collections::HashSet;

use super::{Findings, Level, MAX_CLOS_ID, Problem};
use crate::path;
use crate::spec::{ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice};

/// The points of a container's lifecycle at which a hook can run.
pub const HOOK_NAMES: &[&str] =
    &["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
const NODE_TYPES: &[&str] = &["b", "c", "u", "p"];

pub(super) fn check(path: &str, edits: &ContainerEdits, findings: &mut Findings) {
    env(&format!("{path}.env"), &edits.env, findings);
    for (index, node) in edits.device_nodes.iter().enumerate() {
        device_node(&format!("{path}.deviceNodes[{index}]"), node, findings);
    }
    net_devices(&format!("{path}.netDevices"), &edits.net_devices, findings);
    for (index, one) in edits.hooks.iter().enumerate() {
        hook(&format!("{path}.hooks[{index}]"), one, findings);
    }
    mounts(&format!("{path}.mounts"), &edits.mounts, findings);
    if let Some(rdt) = &edits.intel_rdt {
        intel_rdt(&format!("{path}.intelRdt"), rdt, findings);
    }
}

fn env(path: &str, env: &[String], findings: &mut Findings) {
    for (index, variable) in env.iter().enumerate() {
        if variable.find('=').is_none_or(|position| position == 0) {
            findings.runtime(format!("{path}[{index}]"), Problem::Env(variable.clone()));
        }
    }
    findings.texts(path, env);
}

fn device_node(path: &str, node: &DeviceNode, findings: &mut Findings) {
    findings.path(&format!("{path}.path"), &node.path, path::check);
    if !node.host_path.is_empty() {
        findings.path(&format!("{path}.hostPath"), &node.host_path, path::check);
    }
    if !node.node_type.is_empty() && !NODE_TYPES.contains(&node.node_type.as_str()) {
        let problem = Problem::NotSupported { value: node.node_type.clone(), allowed: NODE_TYPES };
        findings.runtime(format!("{path}.type"), problem);
    }
    let permissions = format!("{path}.permissions");
    if node.permissions == "none" {
        findings.strict(permissions, Problem::NoPermissions);
    } else if !node.permissions.chars().all(|c| "rwm".contains(c)) {
        findings.runtime(permissions, Problem::Permissions(node.permissions.clone()));
    }
}

fn net_devices(path: &str, devices: &[NetDevice], findings: &mut Findings) {
    let mut hosts = HashSet::new();
    let mut names = HashSet::new();
    for (index, device) in devices.iter().enumerate() {
        let fields =
            [("hostInterfaceName", &device.host_interface_name, &mut hosts), ("name", &device.name, &mut names)];
        for (field, value, seen) in fields {
            let field = format!("{path}[{index}].{field}");
            findings.required(&field, value);
            if !value.is_empty() {
                findings.unique(&field, Level::Runtime, value, seen);
            }
        }
    }
}

fn hook(path: &str, hook: &Hook, findings: &mut Findings) {
    if !HOOK_NAMES.contains(&hook.hook_name.as_str()) {
        let problem = Problem::NotSupported { value: hook.hook_name.clone(), allowed: HOOK_NAMES };
        findings.runtime(format!("{path}.hookName"), problem);
    }
    findings.path(&format!("{path}.path"), &hook.path, path::check);
    findings.texts(&format!("{path}.args"), &hook.args);
    env(&format!("{path}.env"), &hook.env, findings);
    if let Some(timeout) = hook.timeout.filter(|seconds| *seconds <= 0) {
        findings.strict(format!("{path}.timeout"), Problem::Timeout(timeout));
    }
}

fn mounts(path: &str, mounts: &[Mount], findings: &mut Findings) {
    let mut targets = HashSet::new();
    for (index, mount) in mounts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        findings.path(&format!("{path}.hostPath"), &mount.host_path, path::check);
        let target = format!("{path}.containerPath");
        findings.path(&target, &mount.container_path, path::check_target);
        // The later of two mounts would silently hide the earlier.
        if !mount.container_path.is_empty() {
            findings.unique(&target, Level::Strict, &mount.container_path, &mut targets);
        }
        let options = format!("{path}.options");
        findings.texts(&options, &mount.options);
        if !mount.options.iter().any(|option| option == "bind" || option == "rbind") {
            findings.strict(options, Problem::NoBind);
        }
        findings.text(&format!("{path}.type"), &mount.fs_type);
    }
}

fn intel_rdt(path: &str, rdt: &IntelRdt, findings: &mut Findings) {
    let id = rdt.clos_id.as_str();
    if id != "/" && (id.len() > MAX_CLOS_ID || id == "." || id == ".." || id.contains(['/', '\n'])) {
        findings.runtime(format!("{path}.closID"), Problem::ClosId(id.to_owned()));
    }
    findings.text(&format!("{path}.closID"), id);
    findings.text(&format!("{path}.l3CacheSchema"), &rdt.l3_cache_schema);
    findings.text(&format!("{path}.memBwSchema"), &rdt.mem_bw_schema);
    for (field, value) in [("enableCMT", rdt.enable_cmt), ("enableMBM", rdt.enable_mbm)] {
        if value.is_some() {
            findings.runtime(format!("{path}.{field}"), Problem::Removed);
        }
    }
    findings.texts(&format!("{path}.schemata"), rdt.schemata.as_deref().unwrap_or_default());
}
