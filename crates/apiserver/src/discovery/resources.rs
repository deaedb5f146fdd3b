//! The resources of a version, as discovery describes them.

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::version::Version;

const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The resources that are only created, to ask something about the user: group, plural name and kind.
pub(crate) const REVIEWS: [(&str, &str, &str); 3] = [
    ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    ("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    ("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
];

/// A resource and its subresources.
pub(super) struct Described {
    name: &'static str,
    singular: String,
    kind: &'static str,
    namespaced: bool,
    verbs: &'static [&'static str],
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    /// Name, kind and verbs.
    subresources: Vec<(&'static str, &'static str, &'static [&'static str])>,
}

/// Describes the resources of a version that are stored.
pub(super) fn stored(version: Version) -> Vec<Described> {
    Resource::of_group(version.group())
        .map(|resource| Described {
            name: resource.plural(),
            singular: resource.singular().to_owned(),
            kind: resource.kind(),
            namespaced: resource.namespaced(),
            verbs: ALL_VERBS,
            short_names: resource.short_names(),
            categories: resource.categories(),
            subresources: subresources(resource),
        })
        .collect()
}

/// Describes the reviews of a group.
pub(super) fn reviews(group: &str) -> Vec<Described> {
    let of_group = REVIEWS.into_iter().filter(|(of, ..)| *of == group);
    of_group
        .map(|(_, name, kind)| Described {
            name,
            singular: kind.to_lowercase(),
            kind,
            namespaced: false,
            verbs: &["create"],
            short_names: &[],
            categories: &[],
            subresources: Vec::new(),
        })
        .collect()
}

fn subresources(resource: Resource) -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    let mut found: Vec<(_, _, &'static [&'static str])> = Vec::new();
    if resource == Resource::Pod {
        found.push(("binding", "Binding", &["create"]));
        found.push(("exec", "PodExecOptions", &["create", "get"]));
        found.push(("log", "Pod", &["get"]));
    }
    if resource.has_status() {
        found.push(("status", resource.kind(), &["get", "patch", "update"]));
    }
    found
}

impl Described {
    /// Describes the resource and its subresources in the older form.
    pub(super) fn list(&self) -> Vec<Value> {
        let mut own = json!({
            "name": self.name, "singularName": self.singular, "namespaced": self.namespaced, "kind": self.kind,
            "verbs": self.verbs,
        });
        self.add_names(&mut own);
        let below = self.subresources.iter().map(|(name, kind, verbs)| {
            json!({
                "name": format!("{}/{name}", self.name), "singularName": "", "namespaced": self.namespaced, "kind": kind,
                "verbs": verbs,
            })
        });
        std::iter::once(own).chain(below).collect()
    }

    /// Describes the resource in the aggregated form.
    pub(super) fn aggregated(&self, group: &str, version: &str) -> Value {
        let kind = |kind: &str| json!({ "group": group, "version": version, "kind": kind });
        let subresources: Vec<Value> = self
            .subresources
            .iter()
            .map(|(name, of, verbs)| json!({ "subresource": name, "responseKind": kind(of), "verbs": verbs }))
            .collect();
        let mut own = json!({
            "resource": self.name,
            "responseKind": kind(self.kind),
            "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": self.singular,
            "verbs": self.verbs,
        });
        if !subresources.is_empty() {
            own["subresources"] = subresources.into();
        }
        self.add_names(&mut own);
        own
    }

    fn add_names(&self, described: &mut Value) {
        if !self.short_names.is_empty() {
            described["shortNames"] = json!(self.short_names);
        }
        if !self.categories.is_empty() {
            described["categories"] = json!(self.categories);
        }
    }
}
