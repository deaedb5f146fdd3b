//! The configuration of an OCI bundle.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use drakkar_cdi::Hook;
use serde_json::{Map, Value, json};

use crate::runner::cdi::{Edits, Node};
use crate::runner::limit::Limit;
use crate::runner::native::{Extras, Program};
use crate::runner::root::{HIDDEN, HostDirectories, READ_ONLY};

/// The capabilities of a container's processes, as in containerd and Docker.
const CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Creates what is not a mount in a container's root.
pub(super) fn create_root(root: &Path, host: &HostDirectories) -> io::Result<()> {
    for directory in ["dev", "proc", "run", "tmp", "var/tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for directory in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(directory), fs::Permissions::from_mode(0o1777))?;
    }
    symlink("../run", root.join("var/run"))?;
    for (name, link) in host.iter() {
        match link {
            Some(link) => symlink(link, root.join(name))?,
            None => fs::create_dir(root.join(name))?,
        }
    }
    Ok(())
}

/// Returns the whole configuration.
pub(super) fn config(program: &Program<'_>, host_name: &str, edits: &Edits, host: &HostDirectories) -> Value {
    let env: Vec<String> = program.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    json!({
        "ociVersion": "1.0.2",
        "hostname": host_name,
        "root": { "path": "rootfs", "readonly": false },
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0, "additionalGids": edits.additional_gids },
            "args": program.command,
            "env": env,
            "cwd": program.working_dir,
            "capabilities": { "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES },
            "noNewPrivileges": true,
        },
        "mounts": mounts(edits, host),
        "hooks": hooks(&edits.hooks),
        "linux": {
            // The network is the host's, unless the pod has one.
            "namespaces": [
                { "type": "mount" }, { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "cgroup" },
            ],
            "maskedPaths": below_proc(HIDDEN),
            "readonlyPaths": below_proc(READ_ONLY),
            "devices": edits.device_nodes.iter().map(device).collect::<Vec<_>>(),
            "resources": { "devices": allowed(&edits.device_nodes) },
        },
    })
}

/// Adds what a container has besides its root and its program.
pub(super) fn add_extras(config: &mut Value, extras: &Extras) {
    if let Some(pod) = &extras.pod
        && let Value::Array(namespaces) = &mut config["linux"]["namespaces"]
    {
        namespaces.push(json!({ "type": "network", "path": pod.path() }));
    }
    if !extras.limits.is_empty() {
        let limit = |limit: &Limit| json!({ "type": limit.name(), "hard": limit.hard, "soft": limit.soft });
        config["process"]["rlimits"] = extras.limits.iter().map(limit).collect();
    }
    if let Some(adjustment) = extras.oom_score_adj {
        config["process"]["oomScoreAdj"] = json!(adjustment);
    }
}

fn below_proc(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("/proc/{name}")).collect()
}

fn mounts(edits: &Edits, host: &HostDirectories) -> Vec<Value> {
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
                "options": ["nosuid", "noexec", "nodev", "mode=1777"] }),
    ];
    for (name, _) in host.iter().filter(|(_, link)| link.is_none()) {
        let path = format!("/{name}");
        mounts.push(json!({ "destination": path, "type": "bind", "source": path, "options": ["rbind", "rro"] }));
    }
    for mount in &edits.mounts {
        let mut entry = json!({ "destination": mount.container_path, "source": mount.host_path });
        if !mount.fs_type.is_empty() {
            entry["type"] = json!(mount.fs_type);
        }
        if !mount.options.is_empty() {
            entry["options"] = json!(mount.options);
        }
        mounts.push(entry);
    }
    mounts
}

fn device(node: &Node) -> Value {
    let mut device = json!({
        "path": node.path,
        "type": node.kind,
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.mode,
    });
    for (field, id) in [("uid", node.uid), ("gid", node.gid)] {
        if let Some(id) = id {
            device[field] = json!(id);
        }
    }
    device
}

fn allowed(nodes: &[Node]) -> Vec<Value> {
    let allow = |node: &Node| {
        let access = if node.permissions == "none" { "" } else { &node.permissions };
        json!({ "allow": true, "type": node.kind, "major": node.major, "minor": node.minor, "access": access })
    };
    let none = json!({ "allow": false, "access": "rwm" });
    [none].into_iter().chain(nodes.iter().filter(|node| matches!(node.kind, 'b' | 'c')).map(allow)).collect()
}

fn hooks(hooks: &[Hook]) -> Value {
    let mut all = Map::new();
    for hook in hooks {
        let mut entry = json!({ "path": hook.path, "args": hook.args, "env": hook.env });
        if let Some(timeout) = hook.timeout {
            entry["timeout"] = json!(timeout);
        }
        if let Value::Array(list) = all.entry(&hook.hook_name).or_insert_with(|| json!([])) {
            list.push(entry);
        }
    }
    Value::Object(all)
}
