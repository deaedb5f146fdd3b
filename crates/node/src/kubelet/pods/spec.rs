//! Builds the spec of a container to run: command, environment and volumes.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, Volume};

use crate::kubelet::SandboxSpec;
use crate::kubelet::registry::create_directory;
use crate::runner::{ContainerSpec, HostPath};

/// Why a container's spec cannot be built.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpecError {
    #[error("container {container} has no command: this node has no images, so set one")]
    NoCommand { container: String },
    #[error(
        "container {container}: the value of environment variable {name} comes from {from}, which this node does not have"
    )]
    Environment { container: String, name: String, from: &'static str },
    #[error("container {container}: volume {volume}: {reason}")]
    Volume { container: String, volume: String, reason: String },
}

/// Builds the spec of a pod's sandbox.
pub(super) fn sandbox_spec(pod: &Pod) -> SandboxSpec {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    SandboxSpec {
        pod_uid: text(&pod.metadata.uid),
        pod_name: text(&pod.metadata.name),
        namespace: text(&pod.metadata.namespace),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        host_network: pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)),
    }
}

/// Builds the spec of a container; `directory` is the pod's own.
pub(super) fn container_spec(
    pod: &Pod,
    container: &Container,
    directory: &Path,
    cdi_devices: Vec<String>,
) -> Result<ContainerSpec, SpecError> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut env: Vec<(String, String)> = Vec::new();
    for variable in container.env.iter().flatten() {
        let value = value(pod, container, variable, &env)?;
        env.push((variable.name.clone(), value));
    }
    if container.env_from.as_ref().is_some_and(|sources| !sources.is_empty()) {
        let container = container.name.clone();
        return Err(SpecError::Environment { container, name: "(all)".to_owned(), from: "envFrom" });
    }
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    let mut command: Vec<String> = words.map(|word| expand(word, &env)).collect();
    if container.command.as_ref().is_none_or(Vec::is_empty) {
        if !is_pause(container) {
            return Err(SpecError::NoCommand { container: container.name.clone() });
        }
        command = vec!["sleep".to_owned(), "infinity".to_owned()];
    }
    Ok(ContainerSpec {
        pod_uid: text(&pod.metadata.uid),
        pod_name: text(&pod.metadata.name),
        namespace: text(&pod.metadata.namespace),
        name: container.name.clone(),
        command,
        env,
        working_dir: container.working_dir.as_ref().map(PathBuf::from),
        cdi_devices,
        host_paths: host_paths(pod, container, directory)?,
    })
}

/// Reports whether the image is `pause`, the only image whose command is known.
fn is_pause(container: &Container) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split([':', '@']).next() == Some("pause")
}

fn value(pod: &Pod, container: &Container, variable: &EnvVar, env: &[(String, String)]) -> Result<String, SpecError> {
    let unsupported =
        |from| SpecError::Environment { container: container.name.clone(), name: variable.name.clone(), from };
    let Some(source) = &variable.value_from else {
        return Ok(expand(variable.value.as_deref().unwrap_or_default(), env));
    };
    let Some(field) = &source.field_ref else { return Err(unsupported("something other than a field of the pod")) };
    let metadata = &pod.metadata;
    let quoted =
        |map: &str| field.field_path.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']").map(str::to_owned);
    let spec = pod.spec.as_ref();
    let found = match field.field_path.as_str() {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => Some(spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default()),
        _ => match (quoted("metadata.labels"), quoted("metadata.annotations")) {
            (Some(key), _) => Some(metadata.labels.iter().flatten().find(|(name, _)| **name == key)),
            (_, Some(key)) => Some(metadata.annotations.iter().flatten().find(|(name, _)| **name == key)),
            _ => None,
        }
        .map(|found| found.map(|(_, value)| value.clone()).unwrap_or_default()),
    };
    found.ok_or_else(|| unsupported("a field of the pod"))
}

/// Replaces `$(NAME)` by the value of that variable, if it is set, and `$$` by `$`.
fn expand(text: &str, env: &[(String, String)]) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let value = reference.and_then(|(name, tail)| {
            let (_, value) = env.iter().rev().find(|(known, _)| known == name)?;
            Some((value, tail))
        });
        match value {
            Some((value, tail)) => {
                expanded.push_str(value);
                rest = tail;
            }
            None => {
                expanded.push('$');
                rest = after;
            }
        }
    }
    expanded + rest
}

fn host_paths(pod: &Pod, container: &Container, directory: &Path) -> Result<Vec<HostPath>, SpecError> {
    let mut paths = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let failed = |reason: String| SpecError::Volume {
            container: container.name.clone(),
            volume: mount.name.clone(),
            reason,
        };
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let volume = volumes.find(|volume| volume.name == mount.name).ok_or_else(|| failed("not in the pod".into()))?;
        let host = host_path(volume, directory).map_err(failed)?;
        let host = mount.sub_path.as_ref().map_or(host.clone(), |sub_path| host.join(sub_path));
        paths.push(HostPath {
            host,
            container: PathBuf::from(&mount.mount_path),
            read_only: mount.read_only == Some(true),
        });
    }
    Ok(paths)
}

fn host_path(volume: &Volume, directory: &Path) -> Result<PathBuf, String> {
    if let Some(source) = &volume.host_path {
        let path = PathBuf::from(&source.path);
        let create = source.type_.as_deref() == Some("DirectoryOrCreate");
        let created = if create { create_directory(&path) } else { Ok(()) };
        return created.map(|()| path).map_err(|error| format!("create {}: {error}", source.path));
    }
    if volume.empty_dir.is_some() {
        let path = directory.join("volumes").join(&volume.name);
        let created = create_directory(&path).map_err(|error| format!("create {}: {error}", path.display()));
        return created.map(|()| path);
    }
    Err("this node supports only volumes of type hostPath and emptyDir".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(container: &serde_json::Value) -> Result<ContainerSpec, SpecError> {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"app": "x"}},
            "spec": {"nodeName": "node-1", "containers": [container],
                "volumes": [{"name": "host", "hostPath": {"path": "/opt/x"}}, {"name": "scratch", "emptyDir": {}},
                    {"name": "odd", "configMap": {"name": "c"}}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let directory = tempfile::tempdir().unwrap();
        container_spec(&pod, &pod.spec.as_ref().unwrap().containers[0], directory.path(), vec![])
    }

    #[test]
    fn references_to_variables_are_expanded() {
        let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}]);
        let spec = spec(&json!({"name": "c", "command": ["sh", "-c"], "args": ["$(B) $(NONE) $$(B) $x"], "env": env}));
        let spec = spec.unwrap();
        assert_eq!(spec.command, ["sh", "-c", "12 $(NONE) $(B) $x"]);
        let env: Vec<&str> = spec.env.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(env, ["1", "12", "web", "x"]);
    }

    #[test]
    fn a_container_without_command_is_refused_unless_its_image_is_pause() {
        let error = spec(&json!({"name": "c", "image": "nginx"})).unwrap_err();
        assert!(matches!(error, SpecError::NoCommand { .. }), "{error}");
        let pause = spec(&json!({"name": "c", "image": "registry.k8s.io/pause:3.10"})).unwrap();
        assert_eq!(pause.command, ["sleep", "infinity"]);
    }

    #[test]
    fn host_paths_and_empty_dirs_are_mounted_and_other_volumes_are_refused() {
        let mounts =
            json!([{"name": "host", "mountPath": "/x", "readOnly": true}, {"name": "scratch", "mountPath": "/y"}]);
        let mounted = spec(&json!({"name": "c", "command": ["true"], "volumeMounts": mounts})).unwrap();
        assert_eq!(mounted.host_paths[0].host, Path::new("/opt/x"));
        assert!(mounted.host_paths[0].read_only && mounted.host_paths[1].host.ends_with("volumes/scratch"));
        let odd = json!([{"name": "odd", "mountPath": "/x"}]);
        let error = spec(&json!({"name": "c", "command": ["true"], "volumeMounts": odd})).unwrap_err();
        assert!(error.to_string().contains("volume odd: "), "{error}");
    }
}
