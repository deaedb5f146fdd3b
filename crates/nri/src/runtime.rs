//! The runtime on the other side: what it says of itself, and which events it knows.

use std::time::Duration;

use drakkar_nri_api::v1alpha1::ConfigureRequest;

use crate::event::Events;

/// What a runtime before NRI 0.7 does not say.
const DEFAULT_REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// What a runtime before NRI 0.7 does not say.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A container runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Runtime {
    /// Its name: `containerd`, `cri-o` or another.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of its NRI, if it says one. Since NRI 0.12; may be a placeholder such as `(devel)`.
    pub nri_version: Option<String>,
    /// The time that it gives a plugin to register.
    pub registration_timeout: Duration,
    /// The time that it gives a plugin to answer. After it the connection is lost, and a pod starts without the plugin.
    pub request_timeout: Duration,
}

impl Runtime {
    pub(crate) fn new(request: &ConfigureRequest) -> Self {
        let timeout = |millis: i64, default: Duration| {
            u64::try_from(millis).ok().filter(|millis| *millis > 0).map_or(default, Duration::from_millis)
        };
        Self {
            name: request.runtime_name.clone(),
            version: request.runtime_version.clone(),
            nri_version: Some(request.nri_version.clone()).filter(|version| !version.is_empty()),
            registration_timeout: timeout(request.registration_timeout, DEFAULT_REGISTRATION_TIMEOUT),
            request_timeout: timeout(request.request_timeout, DEFAULT_REQUEST_TIMEOUT),
        }
    }

    /// Returns the events that the runtime knows. It hangs up on a plugin that subscribes to another.
    ///
    /// The first eleven, unless its NRI version or its own version says that it is newer.
    pub fn known_events(&self) -> Events {
        if let Some(version) = &self.nri_version {
            // Only NRI 0.12 and later have the field at all, so a placeholder is not older.
            let is_older = major_minor(version).is_some_and(|version| version < (0, 10));
            return if is_older { Events::ORIGINAL } else { Events::ALL };
        }
        match (self.name.as_str(), major_minor(&self.version)) {
            ("containerd", Some(version)) if version >= (2, 2) => Events::ALL,
            ("cri-o" | "crio", Some(version)) if version >= (1, 34) => Events::ALL,
            // A snapshot of NRI before 0.10, without the validators.
            ("cri-o" | "crio", Some((1, 33))) => Events::from_mask(0x1fff),
            _ => Events::ORIGINAL,
        }
    }
}

/// The first two numbers of a version.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim().trim_start_matches('v').split(['.', '-', '+', '~']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, version: &str, nri_version: &str) -> u16 {
        let request = ConfigureRequest {
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            nri_version: nri_version.to_owned(),
            ..ConfigureRequest::default()
        };
        Runtime::new(&request).known_events().mask()
    }

    #[test]
    fn only_newer_runtimes_are_sent_newer_events() {
        for (name, version, nri, mask) in [
            ("containerd", "v1.7.26", "", 0x07ff),
            ("containerd", "2.1.4", "", 0x07ff),
            ("containerd", "v2.2.0", "", 0x3fff),
            ("containerd", "2.10.0-rc.1", "", 0x3fff),
            ("containerd", "v2.3.4", "0.12.0", 0x3fff),
            ("cri-o", "1.32.0", "", 0x07ff),
            ("cri-o", "1.33.1", "", 0x1fff),
            ("cri-o", "1.34.0", "", 0x3fff),
            ("other", "9.9.9", "", 0x07ff),
            ("other", "", "(devel)", 0x3fff),
            ("other", "1", "v0.9.0", 0x07ff),
            ("containerd", "unknown", "", 0x07ff),
        ] {
            assert_eq!(known(name, version, nri), mask, "{name} {version} {nri}");
        }
    }

    #[test]
    fn timeouts_that_are_missing_are_the_defaults() {
        let runtime = Runtime::new(&ConfigureRequest::default());
        assert_eq!(runtime.request_timeout, Duration::from_secs(2));
        assert_eq!(runtime.registration_timeout, Duration::from_secs(5));
        let request =
            ConfigureRequest { request_timeout: 250, registration_timeout: -1, ..ConfigureRequest::default() };
        let runtime = Runtime::new(&request);
        assert_eq!(runtime.request_timeout, Duration::from_millis(250));
        assert_eq!(runtime.registration_timeout, Duration::from_secs(5));
    }
}
