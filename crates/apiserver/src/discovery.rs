//! API discovery: groups, versions and resources, in the two forms that clients ask for. The aggregated form has everything
//! in two responses; the older one has a response for each group and version.

mod resources;

use drakkar_client::DraVersion;
use serde_json::{Value, json};

use super::resource::Resource;
use super::version::Version;
use super::view::parameter;
use resources::Described;
pub(crate) use resources::REVIEWS;

/// The reported Kubernetes version.
pub(crate) const RELEASE: &str = "v1.37.1";

/// The groups with reviews: they have nothing that is stored.
const REVIEW_GROUPS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// The media types of the aggregated form, by their versions.
const AGGREGATED: [(&str, &str); 2] = [
    ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
    ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
];

/// Returns the versions whose objects are stored, as the configuration has them.
pub(crate) fn versions(served: &[DraVersion]) -> Vec<Version> {
    let dra = served.iter().copied().map(Version::Dra);
    [Version::Core, Version::Coordination, Version::Events].into_iter().chain(dra).collect()
}

/// Returns group, version and kind, as OpenAPI and discovery write them.
pub(crate) fn kind_of(version: Version, kind: &str) -> Value {
    json!({ "group": version.group(), "version": version.name(), "kind": kind })
}

/// Returns the media type and the content of the response to a discovery path, or `None` for other paths.
pub(crate) fn answer(
    segments: &[&str],
    accept: &str,
    served: &[DraVersion],
    address: &str,
) -> Option<(&'static str, Value)> {
    let json = |value| Some(("application/json", value));
    let groups = groups(served);
    if let (["api" | "apis"], Some((version, media_type))) = (segments, wants_aggregated(accept)) {
        let is_core = segments == ["api"];
        let wanted = groups.into_iter().filter(|group| group.name.is_empty() == is_core);
        return Some((media_type, aggregated(version, wanted)));
    }
    match *segments {
        ["version"] => json(json!({
            "major": "1", "minor": "37", "gitVersion": RELEASE, "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
            "emulationMajor": "1", "emulationMinor": "37",
        })),
        ["api"] => json(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": address }],
        })),
        ["apis"] => {
            let groups: Vec<Value> =
                groups.iter().filter(|group| !group.name.is_empty()).map(Group::describe).collect();
            json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", name] => {
            let mut group = groups.iter().find(|group| group.name == name)?.describe();
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            json(group)
        }
        ["api", version] => json(groups.iter().find(|group| group.name.is_empty())?.list(version)?),
        ["apis", name, version] => json(groups.iter().find(|group| group.name == name)?.list(version)?),
        _ => None,
    }
}

/// Returns whether a path is in a group that this server has.
pub(crate) fn has_group(segments: &[&str]) -> bool {
    match segments {
        ["api", ..] => true,
        ["apis", name, ..] => REVIEW_GROUPS.contains(name) || Resource::of_group(name).next().is_some(),
        _ => false,
    }
}

/// Returns the version and the media type of the aggregated form, if the client prefers it.
fn wants_aggregated(accept: &str) -> Option<(&'static str, &'static str)> {
    accept.split(',').find_map(|form| {
        let is_aggregated = parameter(form, "as") == Some("APIGroupDiscoveryList")
            && parameter(form, "g") == Some("apidiscovery.k8s.io")
            && form.trim().starts_with("application/json");
        AGGREGATED.into_iter().find(|(version, _)| is_aggregated && parameter(form, "v") == Some(*version))
    })
}

/// A group, with its versions in the order of preference.
struct Group {
    name: &'static str,
    versions: Vec<(&'static str, Vec<Described>)>,
}

fn groups(served: &[DraVersion]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for version in versions(served) {
        let resources = (version.name(), resources::stored(version));
        match groups.iter_mut().find(|group| group.name == version.group()) {
            Some(group) => group.versions.push(resources),
            None => groups.push(Group { name: version.group(), versions: vec![resources] }),
        }
    }
    let reviews = REVIEW_GROUPS.map(|name| Group { name, versions: vec![("v1", resources::reviews(name))] });
    groups.extend(reviews);
    groups.sort_by_key(|group| group.name);
    groups
}

impl Group {
    /// Describes the group without its resources.
    fn describe(&self) -> Value {
        let name = self.name;
        let version =
            |(version, _): &(&str, _)| json!({ "groupVersion": format!("{name}/{version}"), "version": version });
        let versions: Vec<Value> = self.versions.iter().map(version).collect();
        json!({ "name": name, "preferredVersion": versions.first(), "versions": versions })
    }

    /// Lists the resources of a version in the older form.
    fn list(&self, version: &str) -> Option<Value> {
        let (_, resources) = self.versions.iter().find(|(known, _)| *known == version)?;
        let resources: Vec<Value> = resources.iter().flat_map(Described::list).collect();
        let group_version = if self.name.is_empty() { version.to_owned() } else { format!("{}/{version}", self.name) };
        Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
        }))
    }
}

fn aggregated(version: &str, groups: impl Iterator<Item = Group>) -> Value {
    let items: Vec<Value> = groups
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|(version, resources)| {
                    let resources: Vec<Value> =
                        resources.iter().map(|resource| resource.aggregated(group.name, version)).collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            json!({ "metadata": { "name": group.name, "creationTimestamp": null }, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {},
        "items": items,
    })
}
