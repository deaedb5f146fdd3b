//! Reviews: who a user is, and what it may do.

use http::Method;
use serde_json::{Value, json};

use super::support::{Client, server};
use crate::Identity;

const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn may(client: &Client, verb: &str, group: &str, resource: &str, namespace: &str) -> bool {
    let wanted = json!({ "verb": verb, "group": group, "resource": resource, "namespace": namespace });
    let review = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": { "resourceAttributes": wanted },
    });
    let (code, answer) = client.post(ACCESS, &review).await;
    assert_eq!((code, &answer["kind"]), (201, &json!("SelfSubjectAccessReview")), "{answer}");
    answer["status"]["allowed"].as_bool().unwrap()
}

#[tokio::test]
async fn a_user_asks_what_it_may_do() {
    let api = server().await;
    assert!(may(&api, "delete", "", "pods", "default").await);
    assert!(may(&api, "create", "apps", "deployments", "default").await);
    let driver = api.of(&Identity::ServiceAccount { namespace: "default".to_owned(), name: "driver".to_owned() });
    assert!(may(&driver, "create", "resource.k8s.io", "resourceslices", "").await);
    assert!(!may(&driver, "create", "resource.k8s.io", "resourceclaims", "default").await);
    assert!(!may(&driver, "create", "apps", "deployments", "default").await);
    let node = api.of(&Identity::Node("a".to_owned()));
    assert!(may(&node, "list", "", "pods", "").await);
    assert!(!may(&node, "create", "", "namespaces", "").await);
    let (code, refused) = api.post(ACCESS, &json!({ "spec": {} })).await;
    assert_eq!((code, refused["reason"].as_str()), (400, Some("BadRequest")));
}

#[tokio::test]
async fn a_user_lists_what_it_may_do() {
    let api = server().await;
    let (_, answer) = api.post(RULES, &json!({ "spec": { "namespace": "default" } })).await;
    assert_eq!(answer["status"]["resourceRules"][0]["resources"], json!(["*"]));
    assert_eq!(answer["status"]["incomplete"], false);
    let node = api.of(&Identity::Node("a".to_owned()));
    let (_, answer) = node.post(RULES, &json!({ "spec": { "namespace": "default" } })).await;
    assert_eq!((&answer["status"]["resourceRules"], &answer["status"]["incomplete"]), (&json!([]), &json!(true)));
}

#[tokio::test]
async fn a_user_asks_who_it_is() {
    let api = server().await;
    let review = json!({ "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1" });
    let (code, answer) = api.of(&Identity::Node("a".to_owned())).post(WHO, &review).await;
    let user = &answer["status"]["userInfo"];
    assert_eq!((code, &user["username"]), (201, &json!("system:node:a")));
    assert_eq!(user["groups"], json!(["system:nodes", "system:authenticated"]));
    assert_eq!(api.json(Method::GET, WHO, &Value::Null).await.0, 405);
    assert_eq!(api.post(WHO, &json!({ "kind": "Pod" })).await.0, 400);
}
