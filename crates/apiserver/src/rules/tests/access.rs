//! Authorization, against recorded responses of a kube-apiserver 1.37.1 with the same rules.

use std::collections::BTreeMap;

use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::resource::Resource;
use crate::rules::{
    AccessRequest, Gates, Policy, Rule, Subject, User, authorize, authorize_claim_status, authorize_object,
    authorize_selection, authorize_slice, default_fields,
};

#[derive(Deserialize)]
struct Table {
    users: BTreeMap<String, Named>,
    attempts: Vec<Tried>,
    slices: Vec<Slice>,
    selections: Vec<Selection>,
    statuses: Vec<Status>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Tried {
    user: String,
    verb: String,
    resource: String,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct Slice {
    node: Option<String>,
    verb: String,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct Selection {
    resource: String,
    verb: String,
    node: Option<String>,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    user: String,
    what: String,
    verb: String,
    old: Value,
    new: Value,
    causes: Vec<String>,
}

fn table() -> Table {
    serde_json::from_str(include_str!("access_1_37_1.json")).unwrap()
}

impl Table {
    fn user(&self, name: &str) -> User {
        let Named { name, groups, extra } = &self.users[name];
        User { name: name.clone(), groups: groups.clone(), extra: extra.clone() }
    }
}

fn resource(kind: &str) -> Resource {
    Resource::ALL.into_iter().find(|resource| resource.kind() == kind).unwrap()
}

fn driver() -> User {
    table().user("driver")
}

#[test]
fn every_verb_on_every_resource_is_authorized_as_in_kubernetes() {
    let table = table();
    let policy = Policy::default();
    let mut asked = 0;
    for tried in &table.attempts {
        let attempt = AccessRequest {
            verb: &tried.verb,
            resource: resource(&tried.resource),
            subresource: tried.subresource.as_deref(),
            namespace: tried.namespace.as_deref(),
            name: tried.name.as_deref(),
        };
        // Decisions that depend on the object are tested below.
        let on_object = |message: &String| message.contains("no relationship") || message.contains("Unknown");
        if tried.refused.as_ref().is_some_and(on_object) {
            continue;
        }
        let user = table.user(&tried.user);
        let answer =
            authorize(&user, &attempt, &policy).and_then(|()| authorize_selection(&user, &attempt, None, &policy));
        assert_eq!(answer.err(), tried.refused, "{} {attempt:?}", tried.user);
        asked += 1;
    }
    assert!(asked > 190, "{asked}");
}

#[test]
fn a_node_accesses_only_its_own_slices() {
    let table = table();
    for case in &table.slices {
        let mut slice = json!({"metadata": {"name": "case"}, "spec": {"driver": "gpu.example.com"}});
        match &case.node {
            Some(node) => slice["spec"]["nodeName"] = node.as_str().into(),
            None => slice["spec"]["allNodes"] = true.into(),
        }
        let node = table.user("node");
        assert_eq!(authorize_slice(&node, &case.verb, &slice).err(), case.refused, "{} {slice}", case.verb);
        let answer = authorize_object(&node, Resource::ResourceSlice, None, &case.verb, &slice);
        assert_eq!(answer.err(), case.refused, "{} {slice}", case.verb);
        assert_eq!(authorize_slice(&driver(), &case.verb, &slice), Ok(()), "a driver is not a node");
    }
}

#[test]
fn a_node_lists_only_its_own_objects() {
    let table = table();
    for case in &table.selections {
        let resource = resource(&case.resource);
        let namespace = (resource == Resource::Pod).then_some("default");
        let attempt = AccessRequest { verb: &case.verb, resource, subresource: None, namespace, name: None };
        let node = table.user("node");
        let policy = Policy::default();
        let answer = authorize(&node, &attempt, &policy)
            .and_then(|()| authorize_selection(&node, &attempt, case.node.as_deref(), &policy));
        assert_eq!(answer.err(), case.refused, "{attempt:?} {:?}", case.node);
    }
}

#[test]
fn changing_a_claims_status_needs_permission_for_the_driver_or_to_bind() {
    let table = table();
    for case in &table.statuses {
        let claim = |status: &Value| {
            let mut claim = json!({"metadata": {"name": "case", "namespace": "default"}, "status": status});
            default_fields(Resource::ResourceClaim, &mut claim);
            claim
        };
        let policy = Policy::default();
        let gates = Gates::default();
        let user = table.user(&case.user);
        let new = claim(&case.new);
        let old = claim(&case.old);
        let errors = authorize_claim_status(&user, &case.verb, &new, &old, &policy, &gates);
        let mut causes: Vec<_> = errors.into_iter().map(|error| format!("{}|{}", error.message, error.field)).collect();
        causes.sort();
        assert_eq!(causes, case.causes, "{} {} {}", case.user, case.verb, case.what);
        let gates = gates.with("DRAResourceClaimGranularStatusAuthorization", false).unwrap();
        assert!(authorize_claim_status(&user, &case.verb, &new, &old, &policy, &gates).is_empty());
    }
}

#[rstest]
#[case::another_node(Resource::Node, None, "update", json!({"metadata": {"name": "other"}}),
    Some("nodes \"other\" is forbidden: node \"node-1\" is not allowed to modify node \"other\""))]
#[case::itself(Resource::Node, Some("status"), "patch", json!({"metadata": {"name": "node-1"}}), None)]
#[case::a_pod_elsewhere(Resource::Pod, None, "delete", json!({"metadata": {"name": "p"}, "spec": {"nodeName": "other"}}),
    Some("pods \"p\" is forbidden: node \"node-1\" can only delete pods with spec.nodeName set to itself"))]
#[case::its_pod(Resource::Pod, Some("status"), "patch", json!({"metadata": {"name": "p"}, "spec": {"nodeName": "node-1"}}), None)]
#[case::status_elsewhere(Resource::Pod, Some("status"), "patch", json!({"metadata": {"name": "p"}, "spec": {}}),
    Some("pods \"p\" is forbidden: node \"node-1\" can only update pod status for pods with spec.nodeName set to itself"))]
#[case::a_pod_of_its_own_making(Resource::Pod, None, "create", json!({"metadata": {"name": "p"}, "spec": {"nodeName": "node-1"}}),
    Some("pods \"p\" is forbidden: pod does not have \"kubernetes.io/config.mirror\" annotation, node \"node-1\" can only create mirror pods"))]
fn a_node_accesses_only_its_own_objects(
    #[case] resource: Resource,
    #[case] subresource: Option<&str>,
    #[case] verb: &str,
    #[case] object: Value,
    #[case] refused: Option<&str>,
) {
    let node = table().user("node");
    assert_eq!(authorize_object(&node, resource, subresource, verb, &object).err().as_deref(), refused);
    assert_eq!(authorize_object(&driver(), resource, subresource, verb, &object), Ok(()));
}

#[test]
fn rules_can_be_added_and_removed() {
    let list = AccessRequest {
        verb: "list",
        resource: Resource::ResourceClaim,
        subresource: None,
        namespace: Some("default"),
        name: None,
    };
    let account = Subject::ServiceAccount { namespace: "default".to_owned(), name: "driver".to_owned() };
    let rule = || Rule::new(["resourceclaims"], ["list"]);
    let allowed = |policy: Policy| authorize(&driver(), &list, &policy).is_ok();
    assert!(!allowed(Policy::default()));
    assert!(allowed(Policy::default().allow(account.clone(), rule())));
    assert!(allowed(Policy::empty().allow(Subject::User("system:serviceaccount:default:driver".to_owned()), rule())));
    assert!(allowed(Policy::default().allow(account.clone(), rule().in_namespace("default"))));
    assert!(!allowed(Policy::default().allow(account.clone(), rule().in_namespace("other"))));
    assert!(!allowed(Policy::default().allow(account.clone(), rule().named(["a"]))), "a list has no name");
    assert!(!allowed(Policy::default().allow(account.clone(), rule()).without(&account)));
}

#[test]
fn a_rule_with_a_name_limits_device_status_to_that_driver() {
    let group = Subject::Group("system:serviceaccounts".to_owned());
    let named = Rule::new(["resourceclaims/driver"], ["associated-node:patch"]).named(["net.example.com"]);
    let policy = Policy::empty().allow(group, named);
    let status = |driver: &str| {
        let device = json!({"driver": driver, "pool": "p", "device": "d"});
        json!({"metadata": {"namespace": "default"}, "status": {"devices": [device], "allocation": {
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}}}})
    };
    let refused = |driver_name: &str| {
        let old = json!({"status": {"allocation": status("")["status"]["allocation"].clone()}});
        let new = status(driver_name);
        !authorize_claim_status(&driver(), "patch", &new, &old, &policy, &Gates::default()).is_empty()
    };
    assert!(!refused("net.example.com"));
    assert!(refused("gpu.example.com"));
}
