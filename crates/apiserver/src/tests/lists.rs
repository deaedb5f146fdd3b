//! Lists: selectors, pages, versions.

use rstest::rstest;
use serde_json::{Value, json};

use super::support::{SLICES, names, server, slice};

#[rstest]
#[case::all("", "a b c")]
#[case::equal("labelSelector=color%3Dred", "a")]
#[case::equal_twice("labelSelector=color%3D%3Dred", "a")]
#[case::not_equal("labelSelector=color!%3Dred", "b c")]
#[case::within("labelSelector=color%20in%20(red,blue)", "a b")]
#[case::without("labelSelector=color%20notin%20(red)", "b c")]
#[case::there("labelSelector=color", "a b")]
#[case::not_there("labelSelector=!color", "c")]
#[case::both("labelSelector=color,color!%3Dred", "b")]
#[case::name("fieldSelector=metadata.name%3Db", "b")]
#[case::node("fieldSelector=spec.nodeName%3Dnode-a", "a")]
#[case::not_node("fieldSelector=spec.nodeName!%3Dnode-a", "b c")]
#[case::driver_and_pool("fieldSelector=spec.driver%3Dd.example.com,spec.pool.name%3Dnode-b", "b")]
#[case::fields_and_labels("fieldSelector=spec.driver%3Dd.example.com&labelSelector=!color", "c")]
#[tokio::test]
async fn selectors(#[case] query: &str, #[case] expected: &str) {
    let api = server().await;
    for (name, color) in [("a", Some("red")), ("b", Some("blue")), ("c", None)] {
        let mut object = slice(name);
        if let Some(color) = color {
            object["metadata"]["labels"] = json!({ "color": color });
        }
        assert_eq!(api.post(SLICES, &object).await.0, 201);
    }
    let (code, list) = api.get(&format!("{SLICES}?{query}")).await;
    assert_eq!((code, names(&list).join(" ").as_str()), (200, expected));
}

#[rstest]
#[case::unknown_field(
    "fieldSelector=spec.allNodes%3Dtrue",
    "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.allNodes"
)]
#[case::no_operator(
    "fieldSelector=metadata.name",
    "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
)]
#[case::open_parenthesis("labelSelector=a%20in%20(b", "unable to parse requirement")]
#[case::no_key("labelSelector=%3Db", "unable to parse requirement")]
#[case::version("resourceVersion=x", "invalid resource version")]
#[tokio::test]
async fn invalid_queries_are_refused(#[case] query: &str, #[case] message: &str) {
    let api = server().await;
    let (code, answer) = api.get(&format!("{SLICES}?{query}")).await;
    assert_eq!((code, answer["reason"].as_str()), (400, Some("BadRequest")));
    assert!(answer["message"].as_str().unwrap().contains(message), "{answer}");
}

#[tokio::test]
async fn all_pages_have_the_version_of_the_first() {
    let api = server().await;
    for name in ["a", "b", "c"] {
        api.post(SLICES, &slice(name)).await;
    }
    let (_, first) = api.get(&format!("{SLICES}?limit=2")).await;
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["a".to_owned(), "b".to_owned()], &json!(1))
    );
    api.post(SLICES, &slice("d")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = api.get(&format!("{SLICES}?limit=2&continue={token}")).await;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(second["metadata"].get("continue"), None);
}

#[tokio::test]
async fn a_list_of_an_exact_version_shows_the_past() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let (_, then) = api.get(SLICES).await;
    api.merge(&format!("{SLICES}/a"), &json!({ "metadata": { "labels": { "x": "y" } } })).await;
    api.post(SLICES, &slice("b")).await;
    api.delete(&format!("{SLICES}/a"), &Value::Null).await;
    let version = then["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{SLICES}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(api.get(&exact).await, (200, then.clone()));
    let (_, newer) = api.get(&format!("{SLICES}?resourceVersion={version}&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(names(&newer), ["b"]);
    assert_eq!(names(&api.get(&format!("{SLICES}?resourceVersion=0")).await.1), ["b"]);
}

#[tokio::test]
async fn items_of_a_list_have_no_api_version_and_kind() {
    let api = server().await;
    api.post(SLICES, &slice("a")).await;
    let (_, list) = api.get(SLICES).await;
    assert_eq!((&list["kind"], list["items"][0].get("kind")), (&json!("ResourceSliceList"), None));
}
