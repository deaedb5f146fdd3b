//! Parameters from several places, of which the later override the earlier.

use std::collections::BTreeMap;

use super::{ClaimConfig, FieldError};

/// Parameters and where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Where they are: the path of their fields begins with it.
    pub path: String,
    /// What they say.
    pub config: ClaimConfig,
}

/// The parameters that apply to a device, and where each of them is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merged {
    /// What they say.
    pub config: ClaimConfig,
    /// For each field that is set, the path of its layer.
    origins: BTreeMap<&'static str, String>,
}

impl Merged {
    /// Adds parameters that override those before.
    pub fn add(&mut self, layer: Layer) {
        let Layer { path, config } = layer;
        if config.addresses.is_some() || config.address_ranges.is_some() {
            self.config.addresses = None;
            self.config.address_ranges = None;
        }
        if config.has_child() {
            self.config.macvlan = None;
            self.config.ipvlan = None;
            self.config.vlan = None;
        }
        macro_rules! take {
            ($($field:ident: $name:literal),+ $(,)?) => {
                // Destructured, so that no field is forgotten.
                let ClaimConfig { $($field),+ } = config;
                $(
                    if $field.is_some() {
                        self.config.$field = $field;
                        self.origins.insert($name, path.clone());
                    }
                )+
            };
        }
        take! {
            interface_name: "interfaceName", mtu: "mtu", mac_address: "macAddress", addresses: "addresses",
            address_ranges: "addressRanges", duplicate_detection: "duplicateDetection", routes: "routes", rules: "rules", sysctls: "sysctls", macvlan: "macvlan",
            ipvlan: "ipvlan", vlan: "vlan", rdma_exclusive: "rdmaExclusive", driver: "driver",
        }
    }

    /// Checks what several fields say together. Returns all errors, each with the path where its field was set.
    pub fn validate(&self) -> Vec<FieldError> {
        let errors = self.config.validate();
        let located = errors.into_iter().map(|error| FieldError { path: self.locate(&error.path), ..error });
        located.collect()
    }

    fn locate(&self, path: &str) -> String {
        let field = path.split(['.', '[']).next().unwrap_or_default();
        match self.origins.get(field) {
            Some(origin) if !origin.is_empty() => format!("{origin}.{path}"),
            _ => path.to_owned(),
        }
    }
}
