//! Tests of the RBAC rules for rejections that were recorded from an API server (1.37.1).

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use super::super::denial::{Rejection, classify_rejection};
use super::*;

const RBAC: &str = "resourceclaims.resource.k8s.io \"c1\" is forbidden: User \"system:serviceaccount:default:drv\" cannot patch \
    resource \"resourceclaims/status\" in API group \"resource.k8s.io\" in the namespace \"default\"";
const ASSOCIATED: &str = "Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", \
    verb=\"[associated-node:patch arbitrary-node:patch]\" permission: resourceclaims.resource.k8s.io \"gpu.example.com\" is \
    forbidden: User \"system:serviceaccount:default:drv\" cannot associated-node:patch resource \"resourceclaims/driver\" in API \
    group \"resource.k8s.io\" in the namespace \"default\"";
const ARBITRARY: &str = "Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", \
    verb=\"[arbitrary-node:patch]\" permission: resourceclaims.resource.k8s.io \"gpu.example.com\" is forbidden: User \
    \"e2e-driver\" cannot arbitrary-node:patch resource \"resourceclaims/driver\" in API group \"resource.k8s.io\" in the \
    namespace \"default\"";

fn rejection(code: u16, message: &str, cause: Option<(&str, &str)>) -> Rejection {
    let causes: Vec<Value> = cause
        .into_iter()
        .map(|(field, reason)| json!({"field": field, "reason": reason, "message": message}))
        .collect();
    let status: Status = serde_json::from_value(json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
        "details": {"name": "c1", "group": "resource.k8s.io", "kind": "ResourceClaim", "causes": causes},
    }))
    .unwrap();
    classify_rejection(StatusCode::from_u16(code).unwrap(), &status, DRIVER)
}

fn denied(rejection: Rejection) -> String {
    match rejection {
        Rejection::Denied(permission) => permission.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_permission_for_the_status_subresource_is_named() {
    let reason = denied(rejection(403, RBAC, None));
    let rule = r#": - {apiGroups: ["resource.k8s.io"], resources: ["resourceclaims/status"], verbs: ["patch"]} ("#;
    assert!(reason.contains(rule) && reason.contains(RBAC), "{reason}");
}

#[test]
fn a_missing_permission_for_the_driver_subresource_is_named() {
    let reason = denied(rejection(422, ASSOCIATED, Some(("status.devices", "FieldValueForbidden"))));
    let rule = r#": - {apiGroups: ["resource.k8s.io"], resources: ["resourceclaims/driver"], resourceNames: ["gpu.example.com"], verbs: ["associated-node:patch"]} ("#;
    assert!(reason.contains(rule) && reason.contains(ASSOCIATED), "{reason}");
}

#[test]
fn a_missing_permission_of_a_driver_without_a_node_is_named() {
    let reason = denied(rejection(422, ARBITRARY, Some(("status.devices", "FieldValueForbidden"))));
    let rule = r#": - {apiGroups: ["resource.k8s.io"], resources: ["resourceclaims/driver"], resourceNames: ["gpu.example.com"], verbs: ["arbitrary-node:patch"]}; or, "#;
    assert!(reason.contains(rule) && reason.contains("token of its pod"), "{reason}");
}

/// The rule can be pasted into a `ClusterRole`.
#[test]
fn a_rule_is_valid_yaml() {
    let reason = denied(rejection(422, ASSOCIATED, Some(("status.devices", "FieldValueForbidden"))));
    let rule = &reason[reason.find("- {").unwrap()..=reason.find('}').unwrap()];
    let rules: Value = serde_saphyr::from_str(rule).unwrap();
    let expected = json!([{
        "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "resourceNames": [DRIVER],
        "verbs": ["associated-node:patch"],
    }]);
    assert_eq!(rules, expected);
}

#[test]
fn other_rejections_suggest_no_rule() {
    let replaced = "Invalid value: \"b13d9e13-0000-44e0-a1dc-40a82dd5072c\": field is immutable";
    assert_eq!(rejection(422, replaced, Some(("metadata.uid", "FieldValueInvalid"))), Rejection::Replaced);
    let webhook = rejection(403, "admission webhook \"policy.example.com\" denied the request: no", None);
    assert!(matches!(webhook, Rejection::Invalid { message, .. } if message.contains("policy.example.com")));
    let invalid =
        rejection(422, "must be an allocated device in the claim", Some(("status.devices[0]", "FieldValueInvalid")));
    assert!(matches!(invalid, Rejection::Invalid { message, .. } if message.contains("must be an allocated device")));
}
