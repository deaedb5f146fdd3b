//! The adjustments of all plugins to one container.
//!
//! They are applied to the container's message, so that each plugin sees those of the plugins before it. Two plugins that set
//! the same thing are in conflict, unless the later one also removes it in the same answer. What this node cannot apply is
//! refused: a container that lacks what a plugin gave it would look as if the plugin were wrong.

use std::collections::{BTreeMap, BTreeSet};

use drakkar_nri_api::v1alpha1::{
    Container, ContainerAdjustment, Hooks, KeyValue, LinuxContainer, LinuxContainerAdjustment, LinuxDevice, Mount,
    PosixRlimit,
};
use prost::Message as _;

/// What the container runner can do with adjustments, besides what it can always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Supported {
    /// OCI hooks.
    pub(crate) hooks: bool,
    /// CDI devices.
    pub(crate) cdi_devices: bool,
}

/// A container with all adjustments.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Adjusted {
    /// The container, without what its new CDI devices add.
    pub(crate) container: Container,
    /// The CDI devices that plugins have added.
    pub(crate) cdi_devices: Vec<String>,
}

/// The adjustments so far.
#[derive(Debug)]
pub(super) struct Merge {
    container: Container,
    cdi_devices: Vec<String>,
    /// All adjustments, one after the other.
    adjustments: ContainerAdjustment,
    /// The plugin that has set a thing, by kind and key.
    owners: BTreeMap<(&'static str, String), String>,
    supported: Supported,
}

impl Merge {
    pub(super) fn new(container: Container, supported: Supported) -> Self {
        Self {
            container,
            cdi_devices: Vec::new(),
            adjustments: ContainerAdjustment::default(),
            owners: BTreeMap::new(),
            supported,
        }
    }

    /// Returns the container as it is now.
    pub(super) fn container(&self) -> &Container {
        &self.container
    }

    pub(super) fn adjustments(&self) -> &ContainerAdjustment {
        &self.adjustments
    }

    pub(super) fn finish(self) -> Adjusted {
        Adjusted { container: self.container, cdi_devices: self.cdi_devices }
    }

    /// Applies the adjustments of a plugin.
    pub(super) fn apply(&mut self, plugin: &str, adjustment: ContainerAdjustment) -> Result<(), String> {
        let refused = self.refused(&adjustment);
        if !refused.is_empty() {
            return Err(format!("this node cannot apply the adjustment of {}", refused.join(", ")));
        }
        // Joins lists and maps.
        self.adjustments
            .merge(&adjustment.encode_to_vec()[..])
            .map_err(|error| format!("invalid adjustment: {error}"))?;
        let ContainerAdjustment { annotations, mounts, env, hooks, linux, rlimits, cdi_devices, args } = adjustment;
        let LinuxContainerAdjustment { devices, oom_score_adj, .. } = linux.unwrap_or_default();
        self.annotations(plugin, annotations)?;
        self.mounts(plugin, mounts)?;
        self.env(plugin, env)?;
        self.devices(plugin, devices)?;
        self.rlimits(plugin, rlimits)?;
        for device in cdi_devices {
            self.claim(plugin, "CDI device", &device.name)?;
            self.cdi_devices.push(device.name);
        }
        self.args(plugin, args)?;
        self.add_hooks(hooks.unwrap_or_default());
        if let Some(value) = oom_score_adj {
            self.claim(plugin, "OOM score adjustment", "")?;
            self.linux().oom_score_adj = Some(value);
        }
        Ok(())
    }

    /// Returns what this node cannot apply.
    fn refused(&self, adjustment: &ContainerAdjustment) -> Vec<&'static str> {
        let linux = adjustment.linux.clone().unwrap_or_default();
        let is_set = |message: Option<usize>| message.is_some_and(|length| length > 0);
        let hooks = adjustment.hooks.as_ref().map(Hooks::encoded_len);
        let checks = [
            ("hooks (they need the isolation of an OCI runtime)", !self.supported.hooks && is_set(hooks)),
            (
                "CDI devices (this NRI does not have them)",
                !self.supported.cdi_devices && !adjustment.cdi_devices.is_empty(),
            ),
            ("resources", is_set(linux.resources.as_ref().map(prost::Message::encoded_len))),
            ("the cgroup", !linux.cgroups_path.is_empty()),
            ("the IO priority", linux.io_priority.is_some()),
            ("the seccomp policy", linux.seccomp_policy.is_some()),
            ("namespaces", !linux.namespaces.is_empty()),
            ("sysctl", !linux.sysctl.is_empty()),
            ("network devices", !linux.net_devices.is_empty()),
            ("the scheduler", linux.scheduler.is_some()),
            ("RDT", linux.rdt.is_some()),
            ("the memory policy", linux.memory_policy.is_some()),
        ];
        checks.into_iter().filter(|(_, refused)| *refused).map(|(name, _)| name).collect()
    }

    /// Makes a plugin the owner of a thing.
    fn claim(&mut self, plugin: &str, kind: &'static str, key: &str) -> Result<(), String> {
        match self.owners.insert((kind, key.to_owned()), plugin.to_owned()) {
            Some(other) if other != plugin => Err(format!("{kind} {key:?} was set by plugin {other}, too")),
            _ => Ok(()),
        }
    }

    fn release(&mut self, kind: &'static str, key: &str) {
        self.owners.remove(&(kind, key.to_owned()));
    }

    /// Releases what is removed and claims what is set.
    fn take(
        &mut self,
        plugin: &str,
        kind: &'static str,
        removed: &BTreeSet<String>,
        set: &[&str],
    ) -> Result<(), String> {
        removed.iter().for_each(|key| self.release(kind, key));
        set.iter().try_for_each(|key| self.claim(plugin, kind, key))
    }

    fn linux(&mut self) -> &mut LinuxContainer {
        self.container.linux.get_or_insert_default()
    }

    fn annotations(&mut self, plugin: &str, annotations: BTreeMap<String, String>) -> Result<(), String> {
        let (removed, set): (Vec<_>, Vec<_>) = annotations.into_iter().partition(|(key, _)| key.starts_with('-'));
        let removed: BTreeSet<String> = removed.into_iter().map(|(key, _)| unmarked(&key)).collect();
        let keys: Vec<&str> = set.iter().map(|(key, _)| key.as_str()).collect();
        self.take(plugin, "annotation", &removed, &keys)?;
        self.container.annotations.retain(|key, _| !removed.contains(key));
        self.container.annotations.extend(set);
        Ok(())
    }

    fn mounts(&mut self, plugin: &str, mounts: Vec<Mount>) -> Result<(), String> {
        let (removed, set) = split(mounts, |mount| &mount.destination);
        let keys: Vec<&str> = set.iter().map(|mount| mount.destination.as_str()).collect();
        self.take(plugin, "mount", &removed, &keys)?;
        self.container
            .mounts
            .retain(|mount| !removed.contains(&mount.destination) && !keys.contains(&&*mount.destination));
        self.container.mounts.extend(set);
        Ok(())
    }

    fn env(&mut self, plugin: &str, env: Vec<KeyValue>) -> Result<(), String> {
        let (removed, set) = split(env, |variable| &variable.key);
        let keys: Vec<&str> = set.iter().map(|variable| variable.key.as_str()).collect();
        self.take(plugin, "environment variable", &removed, &keys)?;
        let name = |variable: &str| variable.split_once('=').map_or(variable, |(name, _)| name).to_owned();
        self.container.env.retain(|variable| {
            let name = name(variable);
            !removed.contains(&name) && !keys.contains(&name.as_str())
        });
        self.container.env.extend(set.into_iter().map(|KeyValue { key, value }| format!("{key}={value}")));
        Ok(())
    }

    fn devices(&mut self, plugin: &str, devices: Vec<LinuxDevice>) -> Result<(), String> {
        if devices.is_empty() {
            return Ok(());
        }
        let (removed, set) = split(devices, |device| &device.path);
        let keys: Vec<&str> = set.iter().map(|device| device.path.as_str()).collect();
        self.take(plugin, "device", &removed, &keys)?;
        let devices = &mut self.linux().devices;
        devices.retain(|device| !removed.contains(&device.path) && !keys.contains(&&*device.path));
        devices.extend(set);
        Ok(())
    }

    fn rlimits(&mut self, plugin: &str, rlimits: Vec<PosixRlimit>) -> Result<(), String> {
        for limit in rlimits {
            self.claim(plugin, "rlimit", &limit.r#type)?;
            self.container.rlimits.retain(|old| old.r#type != limit.r#type);
            self.container.rlimits.push(limit);
        }
        Ok(())
    }

    fn args(&mut self, plugin: &str, args: Vec<String>) -> Result<(), String> {
        let args = match args.split_first() {
            None => return Ok(()),
            // An empty first word overrides other plugins.
            Some((first, rest)) if first.is_empty() => {
                self.release("command", "");
                rest.to_vec()
            }
            Some(_) => args,
        };
        self.claim(plugin, "command", "")?;
        self.container.args = args;
        Ok(())
    }

    fn add_hooks(&mut self, hooks: Hooks) {
        let all = self.container.hooks.get_or_insert_default();
        all.prestart.extend(hooks.prestart);
        all.create_runtime.extend(hooks.create_runtime);
        all.create_container.extend(hooks.create_container);
        all.start_container.extend(hooks.start_container);
        all.poststart.extend(hooks.poststart);
        all.poststop.extend(hooks.poststop);
    }
}

/// Separates the keys that are marked for removal from what is set.
fn split<T>(all: Vec<T>, key: impl Fn(&T) -> &String) -> (BTreeSet<String>, Vec<T>) {
    let (removed, set): (Vec<T>, Vec<T>) = all.into_iter().partition(|thing| key(thing).starts_with('-'));
    (removed.iter().map(|thing| unmarked(key(thing))).collect(), set)
}

fn unmarked(key: &str) -> String {
    key.strip_prefix('-').unwrap_or(key).to_owned()
}

#[cfg(test)]
mod tests {
    use drakkar_nri_api::v1alpha1::{CdiDevice, LinuxResources, OptionalInt};

    use super::*;

    const ALL: Supported = Supported { hooks: true, cdi_devices: true };

    fn env(key: &str, value: &str) -> KeyValue {
        KeyValue { key: key.to_owned(), value: value.to_owned() }
    }

    fn with_env(variables: &[(&str, &str)]) -> ContainerAdjustment {
        let env = variables.iter().map(|(key, value)| env(key, value)).collect();
        ContainerAdjustment { env, ..ContainerAdjustment::default() }
    }

    fn merge(env: &[&str]) -> Merge {
        let env = env.iter().map(|&variable| variable.to_owned()).collect();
        Merge::new(Container { env, ..Container::default() }, ALL)
    }

    #[test]
    fn variables_are_set_replaced_and_removed_and_later_plugins_see_that() {
        let mut merge = merge(&["A=1", "B=2", "C=3"]);
        merge.apply("10-first", with_env(&[("B", "x"), ("-C", ""), ("D", "4")])).unwrap();
        assert_eq!(merge.container().env, ["A=1", "B=x", "D=4"]);
        merge.apply("20-second", with_env(&[("-A", "")])).unwrap();
        assert_eq!(merge.finish().container.env, ["B=x", "D=4"]);
    }

    #[test]
    fn two_plugins_that_set_the_same_are_in_conflict_unless_the_later_one_removes_it_first() {
        let mut merge = merge(&[]);
        merge.apply("10-first", with_env(&[("A", "1")])).unwrap();
        let conflict = merge.apply("20-second", with_env(&[("A", "2")])).unwrap_err();
        assert_eq!(conflict, "environment variable \"A\" was set by plugin 10-first, too");
        merge.apply("30-third", with_env(&[("-A", ""), ("A", "3")])).unwrap();
        assert_eq!(merge.finish().container.env, ["A=3"]);
    }

    #[test]
    fn mounts_annotations_devices_limits_and_commands_are_merged() {
        let mount = |destination: &str| Mount { destination: destination.to_owned(), ..Mount::default() };
        let device = |path: &str| LinuxDevice { path: path.to_owned(), ..LinuxDevice::default() };
        let mut merge = Merge::new(
            Container { mounts: vec![mount("/a"), mount("/b")], args: vec!["sh".into()], ..Container::default() },
            ALL,
        );
        let adjustment = ContainerAdjustment {
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            mounts: vec![mount("-/a"), mount("/c")],
            linux: Some(LinuxContainerAdjustment {
                devices: vec![device("/dev/x")],
                oom_score_adj: Some(OptionalInt { value: 7 }),
                resources: Some(LinuxResources::default()),
                ..LinuxContainerAdjustment::default()
            }),
            rlimits: vec![PosixRlimit { r#type: "RLIMIT_NOFILE".into(), hard: 9, soft: 8 }],
            cdi_devices: vec![CdiDevice { name: "example.com/x=0".into() }],
            args: vec![String::new(), "true".into()],
            ..ContainerAdjustment::default()
        };
        merge.apply("10-first", adjustment).unwrap();
        let Adjusted { container, cdi_devices } = merge.finish();
        assert_eq!(container.mounts, [mount("/b"), mount("/c")]);
        assert_eq!(container.annotations["k"], "v");
        assert_eq!(container.args, ["true"]);
        assert_eq!(container.rlimits.len(), 1);
        let linux = container.linux.unwrap();
        assert_eq!((linux.devices.len(), linux.oom_score_adj.unwrap().value), (1, 7));
        assert_eq!(cdi_devices, ["example.com/x=0"]);
    }

    #[test]
    fn what_the_node_cannot_apply_is_refused_by_name() {
        let linux = LinuxContainerAdjustment {
            sysctl: [("net.core.somaxconn".to_owned(), "1".to_owned())].into(),
            cgroups_path: "/x".into(),
            ..LinuxContainerAdjustment::default()
        };
        let adjustment = ContainerAdjustment { linux: Some(linux), ..ContainerAdjustment::default() };
        let refused = merge(&[]).apply("10-first", adjustment).unwrap_err();
        assert_eq!(refused, "this node cannot apply the adjustment of the cgroup, sysctl");
    }
}
