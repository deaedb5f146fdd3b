//! What a driver may do.

use drakkar_node::api::{Policy, Rule, Subject};
use serde_json::{Value, json};

use super::{ACCOUNT, Names};

/// A driver's rights.
pub struct Rights(Vec<Right>);

/// The right to do something with a resource.
#[derive(Clone, Copy)]
pub struct Right {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    /// Whether it is only for what is named as the driver.
    is_named: bool,
}

const DRA: &str = "resource.k8s.io";

/// All that a driver on a node needs.
const LEAST: [Right; 5] = [
    Right { group: "", resource: "nodes", verbs: &["get"], is_named: false },
    Right { group: DRA, resource: "resourceclaims", verbs: &["get"], is_named: false },
    Right { group: DRA, resource: "resourceclaims/status", verbs: &["patch"], is_named: false },
    Right { group: DRA, resource: "resourceclaims/driver", verbs: &["associated-node:patch"], is_named: true },
    Right {
        group: DRA,
        resource: "resourceslices",
        verbs: &["list", "watch", "create", "update", "delete"],
        is_named: false,
    },
];

impl Right {
    pub fn name<'a>(&self, names: &'a Names) -> Option<&'a str> {
        self.is_named.then_some(names.driver.as_str())
    }
}

impl Rights {
    pub fn least() -> Self {
        Self(LEAST.to_vec())
    }

    pub fn without(mut self, resource: Option<&str>) -> Self {
        self.0.retain(|right| Some(right.resource) != resource);
        self
    }

    /// Every right of [`Self::least`], and whether it is among these.
    pub fn each(&self) -> impl Iterator<Item = (Right, bool)> {
        LEAST.into_iter().map(|right| (right, self.0.iter().any(|given| given.resource == right.resource)))
    }

    /// As rules of a `ClusterRole`.
    pub fn rules(&self, names: &Names) -> Value {
        let rule = |right: &Right| {
            let mut rule = json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": right.verbs});
            if let Some(name) = right.name(names) {
                rule["resourceNames"] = json!([name]);
            }
            rule
        };
        self.0.iter().map(rule).collect()
    }

    /// As an embedded server has it.
    pub fn policy(&self, names: &Names) -> Policy {
        let account = Subject::ServiceAccount { namespace: names.namespace.clone(), name: ACCOUNT.into() };
        let others = Policy::default().without(&Subject::Group("system:serviceaccounts".into()));
        self.0.iter().fold(others, |policy, right| {
            let rule = Rule::new([right.resource], right.verbs.iter().copied()).named(right.name(names));
            policy.allow(account.clone(), rule)
        })
    }
}
