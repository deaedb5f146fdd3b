//! What the cluster is told by a driver: slices, device status, health; as a real API server stores, checks and allows it.

use drakkar_node::{ClaimSpec, resource_slice};
use http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{Driver, Lab};

fn one(driver: &Driver) -> ClaimSpec {
    ClaimSpec::default().request("gpu", &driver.name, 1)
}

/// The entries of a claim's `status.devices`, once there are some.
async fn entries(lab: &Lab, claim: &str) -> Vec<Value> {
    lab.eventually("the device's status", async || {
        let claim = lab.get(&lab.claims(&format!("/{claim}"))).await?;
        claim["status"]["devices"].as_array().filter(|entries| !entries.is_empty()).cloned()
    })
    .await
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_device_is_reported_under_real_authorization() {
    let lab = Lab::new("status").await;
    let driver = Driver::new("status").argument("--status").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;

    let entries = entries(&lab, "train").await;
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!(entry["driver"], driver.name.as_str());
    assert_eq!(json!([entry["device"]]), json!(lab.allocated("train", &driver).await));
    let condition = &entry["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Ready"), &json!("True"), &json!("Prepared"))
    );
    assert!(entry["networkData"]["ips"][0].as_str().unwrap().starts_with("10.9."));

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn metadata_that_comes_later_is_in_the_file_and_in_the_status() {
    let lab = Lab::new("both").await;
    let driver = Driver::new("both").argument("--metadata=gated").argument("--status").deploy(&lab).await;
    lab.claim("net", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "net")).await;
    let file = lab.read(&pod, "main", &crate::support::kep_path("net", "gpu", &driver));
    let entries = entries(&lab, "net").await;
    let told = &file["requests"][0]["devices"][0];
    assert_eq!(entries[0]["networkData"], told["networkData"]);
    assert_eq!(entries[0]["data"]["attributes"], told["attributes"]);
    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

/// Without the permission pods run all the same, and the log has the rule that is missing.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_missing_permission_is_named_in_the_log() {
    let lab = Lab::new("denied").await;
    let driver = Driver::new("denied").argument("--status").deploy(&lab).await;
    let manifest = driver.manifest();
    let (before, rest) =
        manifest.split_once("  - apiGroups: [resource.k8s.io]\n    resources: [resourceclaims/driver]").unwrap();
    let (_, after) = rest.split_once("---").unwrap();
    lab.kubectl(&["apply", "-f", "-"], &format!("{before}---{after}")).unwrap();
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;

    let log = lab
        .eventually("the log tells", async || {
            let log = driver.log(&lab).await;
            log.contains("resourceclaims/driver").then_some(log)
        })
        .await;
    assert!(log.contains("associated-node:patch") && log.contains(&driver.name), "{log}");
    let claim = lab.get(&lab.claims("/train")).await.unwrap();
    assert_eq!(claim["status"]["devices"], Value::Null);

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn five_hundred_devices_are_published_wiped_and_repaired() {
    let lab = Lab::new("wipe").await;
    let driver = Driver::new("wipe").devices(500).deploy(&lab).await;
    let devices = |slices: &[Value]| {
        let names = slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
        let mut names: Vec<String> = names.map(|device| device["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let before = lab.slices(&driver).await;
    assert_eq!((before.len(), devices(&before).len()), (4, 500));
    let generation = |slices: &[Value]| {
        let generations = slices.iter().map(|slice| slice["spec"]["pool"]["generation"].as_i64().unwrap());
        generations.max().unwrap()
    };

    let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{}", driver.name);
    lab.call(Method::DELETE, &path, None).await.unwrap();
    let wiped = std::time::Instant::now();
    let after = lab
        .eventually("all are back", async || {
            let slices = lab.slices(&driver).await;
            (devices(&slices) == devices(&before)).then_some(slices)
        })
        .await;
    eprintln!("500 devices were back {:?} after they were wiped", wiped.elapsed());
    assert_eq!(after.len(), 4);
    assert!(generation(&after) >= generation(&before));
    let uids = |slices: &[Value]| slices.iter().map(|slice| slice["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert!(uids(&after).iter().all(|uid| !uids(&before).contains(uid)), "they are others");

    driver.end(&lab).await;
    lab.end().await;
}

/// The policy of the manifest, with the driver's own token: own node yes, other nodes no.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_may_write_slices_of_its_own_node_alone() {
    let lab = Lab::new("policy").await;
    let driver = Driver::new("policy").deploy(&lab).await;
    let pod = driver.pods(&lab).await.remove(0);
    let bound =
        json!({"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                         "spec": {"audiences": [], "expirationSeconds": 600, "boundObjectRef": bound}});
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/driver/token", driver.namespace);
    let token = lab.call(Method::POST, &path, Some(&request)).await.unwrap();
    let client = lab.client_with_token(token["status"]["token"].as_str().unwrap()).await;

    let node = pod["spec"]["nodeName"].as_str().unwrap();
    let create = async |node: &str, name: &str| {
        let mut slice = resource_slice(&driver.name, node, &["foreign-0"]);
        slice["metadata"] = json!({"name": name});
        slice["spec"]["pool"]["name"] = format!("other-{node}").into();
        let request = Request::post("/apis/resource.k8s.io/v1/resourceslices?dryRun=All");
        let request = request.header("content-type", "application/json").body(slice.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await
    };
    create(node, "policy-own").await.expect("the own node");
    let refused = create("elsewhere", "policy-other").await.expect_err("another node").to_string();
    assert!(refused.contains("may write the slices of that node only"), "{refused}");

    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn health_is_in_the_status_of_the_pod() {
    let lab = Lab::new("health").await;
    let driver = Driver::new("health").argument("--health").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;
    let health = async || {
        let pod = lab.pod(&pod).await.unwrap();
        pod.pointer("/status/containerStatuses/0/allocatedResourcesStatus/0/resources/0/health").cloned()
    };
    lab.eventually("the device is healthy", async || (health().await? == "Healthy").then_some(())).await;
    driver.tell(&lab, "unhealthy", &lab.allocated("train", &driver).await[0]);
    lab.eventually("the device is not healthy", async || (health().await? == "Unhealthy").then_some(())).await;
    driver.tell(&lab, "unhealthy", "");
    lab.eventually("the device is healthy again", async || (health().await? == "Healthy").then_some(())).await;
    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}
