//! Pods and containers as NRI's messages, and back: what the plugins have made of a container.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use drakkar_cdi::{Hook as CdiHook, Mount as CdiMount};
use drakkar_nri_api::v1alpha1::{
    CdiDevice, Container, ContainerState, Hook, Hooks, LinuxContainer, LinuxDevice, LinuxNamespace, LinuxPodSandbox,
    Mount, OptionalFileMode, OptionalInt, OptionalUInt32, PodSandbox, User,
};

use super::network::PodNetwork;
use crate::kubelet::SandboxSpec;
use crate::runner::cdi::{Edits, Node};
use crate::runner::{ContainerId, ContainerSpec, Exit, Isolation, Limit, ignored_mount_options};

/// Returns a sandbox.
pub(super) fn pod(id: &str, spec: &SandboxSpec, network: Option<&PodNetwork>) -> PodSandbox {
    let namespace = |kind: &str, path: String| LinuxNamespace { r#type: kind.to_owned(), path };
    let mut namespaces: Vec<LinuxNamespace> =
        ["pid", "ipc", "uts", "mount"].map(|kind| namespace(kind, String::new())).into();
    namespaces.extend(network.map(|network| namespace("network", network.path().display().to_string())));
    PodSandbox {
        id: id.to_owned(),
        name: spec.pod_name.clone(),
        uid: spec.pod_uid.clone(),
        namespace: spec.namespace.clone(),
        labels: with_pod_labels(spec.labels.clone(), &spec.namespace, &spec.pod_name, &spec.pod_uid),
        annotations: spec.annotations.clone(),
        runtime_handler: String::new(),
        linux: Some(LinuxPodSandbox { namespaces, ..LinuxPodSandbox::default() }),
        // As with CRI-O, the sandbox has no process.
        pid: 0,
        ips: network.map(PodNetwork::addresses).unwrap_or_default(),
    }
}

fn with_pod_labels(
    mut labels: BTreeMap<String, String>,
    namespace: &str,
    name: &str,
    uid: &str,
) -> BTreeMap<String, String> {
    let own = [("name", name), ("namespace", namespace), ("uid", uid)];
    labels.extend(own.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned())));
    labels
}

/// Returns a container that is about to be created, with the edits of its CDI devices.
pub(super) fn container(id: &ContainerId, sandbox: &PodSandbox, spec: &ContainerSpec, edits: &Edits) -> Container {
    let mut labels = with_pod_labels(BTreeMap::new(), &spec.namespace, &spec.pod_name, &spec.pod_uid);
    labels.insert("io.kubernetes.container.name".to_owned(), spec.name.clone());
    Container {
        id: id.to_string(),
        pod_sandbox_id: sandbox.id.clone(),
        name: spec.name.clone(),
        state: ContainerState::ContainerCreated as i32,
        labels,
        args: spec.command.clone(),
        env: edits.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        mounts: edits.mounts.iter().map(mount).collect(),
        hooks: Some(hooks(&edits.hooks)),
        linux: Some(LinuxContainer {
            namespaces: sandbox.linux.iter().flat_map(|linux| linux.namespaces.clone()).collect(),
            devices: edits.device_nodes.iter().map(device).collect(),
            ..LinuxContainer::default()
        }),
        created_at: now(),
        cdi_devices: spec.cdi_devices.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
        user: Some(User { additional_gids: edits.additional_gids.clone(), ..User::default() }),
        ..Container::default()
    }
}

/// Updates a container that has started.
pub(super) fn set_started(container: &mut Container, pid: u32) {
    container.state = ContainerState::ContainerRunning as i32;
    container.started_at = now();
    container.pid = pid;
}

/// Updates a container that has exited.
pub(super) fn set_exited(container: &mut Container, exit: &Exit) {
    container.state = ContainerState::ContainerStopped as i32;
    container.finished_at = now();
    container.pid = 0;
    container.exit_code = exit.code;
    container.status_reason.clone_from(&exit.reason);
    container.status_message.clone_from(&exit.message);
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn mount(mount: &CdiMount) -> Mount {
    let CdiMount { host_path, container_path, options, fs_type } = mount.clone();
    let is_bind = options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
    let r#type = if fs_type.is_empty() && is_bind { "bind".to_owned() } else { fs_type };
    Mount { destination: container_path, r#type, source: host_path, options }
}

fn device(node: &Node) -> LinuxDevice {
    LinuxDevice {
        path: node.path.clone(),
        r#type: node.kind.to_string(),
        major: node.major.into(),
        minor: node.minor.into(),
        file_mode: Some(OptionalFileMode { value: node.mode }),
        uid: node.uid.map(|value| OptionalUInt32 { value }),
        gid: node.gid.map(|value| OptionalUInt32 { value }),
    }
}

/// The lists of hooks, by the name that the OCI runtime specification has for them.
fn hook_lists(hooks: &mut Hooks) -> [(&'static str, &mut Vec<Hook>); 6] {
    let Hooks { prestart, create_runtime, create_container, start_container, poststart, poststop } = hooks;
    [
        ("prestart", prestart),
        ("createRuntime", create_runtime),
        ("createContainer", create_container),
        ("startContainer", start_container),
        ("poststart", poststart),
        ("poststop", poststop),
    ]
}

fn hooks(all: &[CdiHook]) -> Hooks {
    let mut hooks = Hooks::default();
    for hook in all {
        let CdiHook { hook_name, path, args, env, timeout, .. } = hook.clone();
        let timeout = timeout.map(|value| OptionalInt { value });
        if let Some((_, list)) = hook_lists(&mut hooks).into_iter().find(|(name, _)| *name == hook_name) {
            list.push(Hook { path, args, env, timeout });
        }
    }
    hooks
}

/// What plugins have made of a container: its edits, and what edits cannot say.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) command: Vec<String>,
    pub(super) edits: Edits,
    pub(super) limits: Vec<Limit>,
    pub(super) oom_score_adj: Option<i64>,
}

/// Applies the changes of plugins to a container's edits. Refuses what would have no effect.
pub(super) fn apply(container: &Container, edits: Edits, isolation: &Isolation) -> Result<Applied, String> {
    let linux = container.linux.clone().unwrap_or_default();
    let split = |variable: &String| {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        (name.to_owned(), value.to_owned())
    };
    let mut mounts = Vec::new();
    for new in &container.mounts {
        match edits.mounts.iter().find(|old| mount(old) == *new) {
            Some(old) => mounts.push(old.clone()),
            None => mounts.push(new_mount(new, isolation)?),
        }
    }
    let mut device_nodes = Vec::new();
    for new in &linux.devices {
        match edits.device_nodes.iter().find(|old| device(old) == *new) {
            Some(old) => device_nodes.push(old.clone()),
            None => device_nodes.push(new_device(new, isolation)?),
        }
    }
    let limit = |limit: &drakkar_nri_api::v1alpha1::PosixRlimit| {
        Limit::new(&limit.r#type, limit.soft, limit.hard)
            .ok_or_else(|| format!("there is no rlimit {:?}", limit.r#type))
    };
    let mut hooks = container.hooks.clone().unwrap_or_default();
    let hooks = hook_lists(&mut hooks).into_iter().flat_map(|(name, list)| {
        list.drain(..).map(move |Hook { path, args, env, timeout }| CdiHook {
            hook_name: name.to_owned(),
            path,
            args,
            env,
            timeout: timeout.map(|timeout| timeout.value),
        })
    });
    let mut edits =
        Edits { env: container.env.iter().map(split).collect(), mounts, device_nodes, hooks: hooks.collect(), ..edits };
    edits.sort_mounts();
    Ok(Applied {
        command: container.args.clone(),
        edits,
        limits: container.rlimits.iter().map(limit).collect::<Result<_, _>>()?,
        oom_score_adj: linux.oom_score_adj.map(|adjustment| adjustment.value),
    })
}

fn new_mount(mount: &Mount, isolation: &Isolation) -> Result<CdiMount, String> {
    let Mount { destination, r#type, source, options } = mount.clone();
    let ignored = ignored_mount_options(&options);
    if !ignored.is_empty() && !matches!(isolation, Isolation::Oci(_)) {
        return Err(format!("mount at {destination}: this node cannot apply the options {}", ignored.join(",")));
    }
    Ok(CdiMount { host_path: source, container_path: destination, options, fs_type: r#type })
}

fn new_device(device: &LinuxDevice, isolation: &Isolation) -> Result<Node, String> {
    let LinuxDevice { path, r#type, major, minor, file_mode, uid, gid } = device.clone();
    let refused = |reason: &str| format!("device {path}: {reason}");
    let number = |number: i64| u32::try_from(number).map_err(|_large| refused("a number is not one of a device"));
    let (major, minor) = (number(major)?, number(minor)?);
    let kind = match r#type.as_str() {
        "b" => 'b',
        "c" | "u" => 'c',
        "p" => 'p',
        _ => return Err(refused("its type is none of b, c, u and p")),
    };
    if *isolation == Isolation::UserNamespace && kind != 'p' {
        let is_same = |found: std::fs::Metadata| found.rdev() == rustix::fs::makedev(major, minor);
        if !std::fs::metadata(&path).is_ok_and(is_same) {
            return Err(refused("in a user namespace, the host must have the same device at that path"));
        }
    }
    Ok(Node {
        host_path: path.clone(),
        path,
        kind,
        major,
        minor,
        mode: file_mode.map_or(0o666, |mode| mode.value) & 0o7777,
        permissions: "rwm".to_owned(),
        uid: uid.map(|uid| uid.value),
        gid: gid.map(|gid| gid.value),
    })
}
