//! The Kubernetes release that a kubelet emulates: the services of a plugin that it knows, and which it prefers.

use std::fmt;

use super::health::HealthVersion;
use super::service::DraService;

/// A release of Kubernetes, as far as a plugin can tell the difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Release {
    /// 1.37: both versions of the DRA service, in the plugin's order; health in v1, else v1alpha1, if advertised.
    #[default]
    V1_37,
    /// 1.34 to 1.36, with the health gate on: a v1alpha1 health stream to every plugin, advertised or not, retried even if it
    /// is not implemented.
    V1_36,
    /// 1.32 and 1.33: v1beta1 of the DRA service and no health. Calls to the DRA socket have its percent-encoded path as
    /// `:authority`, as calls to the registration socket have in all releases. Servers in Go accept it; servers built on the
    /// `h2` crate, such as tonic's, refuse it unless the name of the socket has an `@`.
    V1_33,
}

/// The kubelet knows none of the plugin's services.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoService {
    supported: Vec<String>,
    release: Release,
}

impl fmt::Display for NoService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = self.release.known().iter().map(|version| version.advertised()).collect();
        write!(
            f,
            "the plugin supports none of the DRA services that this kubelet knows ({}): it advertises [{}]",
            known.join(", "),
            self.supported.join(", ")
        )
    }
}

impl Release {
    /// Returns the version that a kubelet of this release reports.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V1_37 => "v1.37.1",
            Self::V1_36 => "v1.36.0",
            Self::V1_33 => "v1.33.0",
        }
    }

    fn known(self) -> &'static [DraService] {
        match self {
            Self::V1_37 | Self::V1_36 => &[DraService::V1, DraService::V1beta1],
            Self::V1_33 => &[DraService::V1beta1],
        }
    }

    /// Returns the first service of the plugin's list that this kubelet knows.
    pub(super) fn dra_service(self, supported: &[String]) -> Result<DraService, NoService> {
        let known = |name: &String| self.known().iter().find(|version| version.advertised() == name).copied();
        let first = supported.iter().find_map(known);
        first.ok_or_else(|| NoService { supported: supported.to_vec(), release: self })
    }

    /// Returns the first service of the kubelet's list that the plugin has.
    pub(super) fn health_service(self, supported: &[String]) -> Option<HealthVersion> {
        match self {
            Self::V1_37 => [HealthVersion::V1, HealthVersion::V1alpha1]
                .into_iter()
                .find(|version| supported.iter().any(|name| name == version.advertised())),
            Self::V1_36 => Some(HealthVersion::V1alpha1),
            Self::V1_33 => None,
        }
    }

    /// Reports whether calls to a plugin have the path of its socket as `:authority` instead of `localhost`.
    pub(super) fn sends_socket_as_authority(self) -> bool {
        self == Self::V1_33
    }

    /// Reports whether a plugin that does not implement health is not asked again until it registers again.
    pub(super) fn stops_health_if_unimplemented(self) -> bool {
        self == Self::V1_37
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_dra_service_is_the_first_known_one_of_the_plugins_list() {
        let chosen = |names: &[&str]| Release::V1_37.dra_service(&list(names)).ok();
        assert_eq!(chosen(&["v1.DRAPlugin", "v1beta1.DRAPlugin"]), Some(DraService::V1));
        assert_eq!(chosen(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]), Some(DraService::V1beta1));
        assert_eq!(chosen(&["v9.DRAPlugin", "v1.DRAResourceHealth", "v1.DRAPlugin"]), Some(DraService::V1));
    }

    #[test]
    fn a_list_without_a_known_dra_service_is_refused() {
        assert!(Release::V1_37.dra_service(&[]).is_err());
        let error = Release::V1_37.dra_service(&list(&["1.0.0"])).unwrap_err().to_string();
        assert!(error.contains("v1.DRAPlugin, v1beta1.DRAPlugin") && error.ends_with("[1.0.0]"), "{error}");
    }

    #[test]
    fn the_health_service_is_chosen_in_the_kubelets_order() {
        let chosen = |names: &[&str]| Release::V1_37.health_service(&list(names));
        assert_eq!(chosen(&["v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"]), Some(HealthVersion::V1));
        assert_eq!(chosen(&["v1alpha1.DRAResourceHealth"]), Some(HealthVersion::V1alpha1));
        assert_eq!(chosen(&["v1.DRAPlugin"]), None);
    }

    #[test]
    fn older_kubelets_know_fewer_services() {
        let all = list(&["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth"]);
        assert_eq!(Release::V1_33.dra_service(&all), Ok(DraService::V1beta1));
        assert!(Release::V1_33.dra_service(&list(&["v1.DRAPlugin"])).is_err());
        assert_eq!(Release::V1_36.health_service(&list(&["v1.DRAPlugin"])), Some(HealthVersion::V1alpha1));
        assert_eq!(Release::V1_33.health_service(&all), None);
    }
}
