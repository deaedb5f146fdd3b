//! The permissions of a driver.

use drakkar_node::api::{Policy, Rule, Subject};
use serde_json::{Value, json};

use super::{ACCOUNT, Names};

/// The permissions of a driver.
pub struct Permissions(Vec<Permission>);

/// The permission to use verbs on a resource.
#[derive(Clone, Copy)]
pub struct Permission {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    /// Whether it is limited to the object with the driver's name.
    is_named: bool,
}

const DRA: &str = "resource.k8s.io";

/// The permissions that a driver on a node needs.
const REQUIRED: [Permission; 5] = [
    Permission { group: "", resource: "nodes", verbs: &["get"], is_named: false },
    Permission { group: DRA, resource: "resourceclaims", verbs: &["get"], is_named: false },
    Permission { group: DRA, resource: "resourceclaims/status", verbs: &["patch"], is_named: false },
    Permission { group: DRA, resource: "resourceclaims/driver", verbs: &["associated-node:patch"], is_named: true },
    Permission {
        group: DRA,
        resource: "resourceslices",
        verbs: &["list", "watch", "create", "update", "delete"],
        is_named: false,
    },
];

impl Permission {
    /// Returns the only object that the permission is for, if it is limited to one.
    pub fn name<'a>(&self, names: &'a Names) -> Option<&'a str> {
        self.is_named.then_some(names.driver.as_str())
    }
}

impl Permissions {
    /// Returns all permissions that a driver on a node needs.
    pub fn required() -> Self {
        Self(REQUIRED.to_vec())
    }

    /// Removes the permissions for a resource.
    pub fn without(mut self, resource: Option<&str>) -> Self {
        self.0.retain(|permission| Some(permission.resource) != resource);
        self
    }

    /// Returns each permission of [`Self::required`], and whether it is granted.
    pub fn each(&self) -> impl Iterator<Item = (Permission, bool)> {
        let is_granted = |required: &Permission| self.0.iter().any(|granted| granted.resource == required.resource);
        REQUIRED.into_iter().map(move |required| (required, is_granted(&required)))
    }

    /// Returns the rules of a `ClusterRole`.
    pub fn rules(&self, names: &Names) -> Value {
        let rule = |permission: &Permission| {
            let Permission { group, resource, verbs, .. } = permission;
            let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
            if let Some(name) = permission.name(names) {
                rule["resourceNames"] = json!([name]);
            }
            rule
        };
        self.0.iter().map(rule).collect()
    }

    /// Returns the policy of an embedded server.
    pub fn policy(&self, names: &Names) -> Policy {
        let account = Subject::ServiceAccount { namespace: names.namespace.clone(), name: ACCOUNT.into() };
        let others = Policy::default().without(&Subject::Group("system:serviceaccounts".into()));
        self.0.iter().fold(others, |policy, permission| {
            let rule = Rule::new([permission.resource], permission.verbs.iter().copied()).named(permission.name(names));
            policy.allow(account.clone(), rule)
        })
    }
}
