//! What a driver reports to the cluster: slices, device status and health, with a real API server's validation and
//! authorization.

use drakkar_node::{ClaimSpec, resource_slice};
use http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{Driver, TestEnv};

fn one(driver: &Driver) -> ClaimSpec {
    ClaimSpec::default().request("gpu", &driver.name, 1)
}

/// Waits for entries in a claim's `status.devices`.
async fn entries(env: &TestEnv, claim: &str) -> Vec<Value> {
    env.eventually("the device's status", async || {
        let claim = env.get(&env.claims(&format!("/{claim}"))).await?;
        claim["status"]["devices"].as_array().filter(|entries| !entries.is_empty()).cloned()
    })
    .await
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_device_is_reported_under_real_authorization() {
    let env = TestEnv::new("status").await;
    let driver = Driver::new("status").argument("--status").deploy(&env).await;
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;

    let entries = entries(&env, "train").await;
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!(entry["driver"], driver.name.as_str());
    assert_eq!(json!([entry["device"]]), json!(env.allocated("train", &driver).await));
    let condition = &entry["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Ready"), &json!("True"), &json!("Prepared"))
    );
    assert!(entry["networkData"]["ips"][0].as_str().unwrap().starts_with("10.9."));

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn deferred_metadata_is_in_the_file_and_in_the_status() {
    let env = TestEnv::new("both").await;
    let driver = Driver::new("both").argument("--metadata=gated").argument("--status").deploy(&env).await;
    env.claim("net", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "net")).await;
    let file = env.read(&pod, "main", &crate::support::kep_path("net", "gpu", &driver));
    let entries = entries(&env, "net").await;
    let device = &file["requests"][0]["devices"][0];
    assert_eq!(entries[0]["networkData"], device["networkData"]);
    assert_eq!(entries[0]["data"]["attributes"], device["attributes"]);
    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

/// Without the permission pods still run, and the log names the missing rule.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_missing_permission_is_named_in_the_log() {
    let env = TestEnv::new("denied").await;
    let driver = Driver::new("denied").argument("--status").deploy(&env).await;
    let manifest = driver.manifest();
    let (before, rest) =
        manifest.split_once("  - apiGroups: [resource.k8s.io]\n    resources: [resourceclaims/driver]").unwrap();
    let (_, after) = rest.split_once("---").unwrap();
    env.kubectl(&["apply", "-f", "-"], &format!("{before}---{after}")).unwrap();
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;

    let log = env
        .eventually("the log names the rule", async || {
            let log = driver.log(&env).await;
            log.contains("resourceclaims/driver").then_some(log)
        })
        .await;
    assert!(log.contains("associated-node:patch") && log.contains(&driver.name), "{log}");
    let claim = env.get(&env.claims("/train")).await.unwrap();
    assert_eq!(claim["status"]["devices"], Value::Null);

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn five_hundred_devices_are_published_wiped_and_repaired() {
    let env = TestEnv::new("wipe").await;
    let driver = Driver::new("wipe").devices(500).deploy(&env).await;
    let devices = |slices: &[Value]| {
        let names = slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
        let mut names: Vec<String> = names.map(|device| device["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let before = env.slices(&driver).await;
    assert_eq!((before.len(), devices(&before).len()), (4, 500));
    let generation = |slices: &[Value]| {
        let generations = slices.iter().map(|slice| slice["spec"]["pool"]["generation"].as_i64().unwrap());
        generations.max().unwrap()
    };

    let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{}", driver.name);
    env.call(Method::DELETE, &path, None).await.unwrap();
    let wiped = std::time::Instant::now();
    let after = env
        .eventually("all devices are published again", async || {
            let slices = env.slices(&driver).await;
            (devices(&slices) == devices(&before)).then_some(slices)
        })
        .await;
    eprintln!("500 devices were published again {:?} after they were deleted", wiped.elapsed());
    assert_eq!(after.len(), 4);
    assert!(generation(&after) >= generation(&before));
    let uids = |slices: &[Value]| slices.iter().map(|slice| slice["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert!(uids(&after).iter().all(|uid| !uids(&before).contains(uid)), "all slices are new objects");

    driver.clean_up(&env).await;
    env.clean_up().await;
}

/// The manifest's admission policy, tried with the driver's own token: it allows slices of the driver's node only.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_may_write_slices_of_its_own_node_only() {
    let env = TestEnv::new("policy").await;
    let driver = Driver::new("policy").deploy(&env).await;
    let pod = driver.pods(&env).await.remove(0);
    let bound =
        json!({"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                         "spec": {"audiences": [], "expirationSeconds": 600, "boundObjectRef": bound}});
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/driver/token", driver.namespace);
    let token = env.call(Method::POST, &path, Some(&request)).await.unwrap();
    let client = env.client_with_token(token["status"]["token"].as_str().unwrap()).await;

    let node = pod["spec"]["nodeName"].as_str().unwrap();
    let create = async |node: &str, name: &str| {
        let mut slice = resource_slice(&driver.name, node, &["foreign-0"]);
        slice["metadata"] = json!({"name": name});
        slice["spec"]["pool"]["name"] = format!("other-{node}").into();
        let request = Request::post("/apis/resource.k8s.io/v1/resourceslices?dryRun=All");
        let request = request.header("content-type", "application/json").body(slice.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await
    };
    create(node, "policy-own").await.expect("a slice of the own node");
    let refused = create("elsewhere", "policy-other").await.expect_err("a slice of another node").to_string();
    assert!(refused.contains("may write the slices of that node only"), "{refused}");

    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn health_is_in_the_status_of_the_pod() {
    let env = TestEnv::new("health").await;
    let driver = Driver::new("health").argument("--health").deploy(&env).await;
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;
    let health = async || {
        let pod = env.pod(&pod).await.unwrap();
        pod.pointer("/status/containerStatuses/0/allocatedResourcesStatus/0/resources/0/health").cloned()
    };
    env.eventually("the device is healthy", async || (health().await? == "Healthy").then_some(())).await;
    driver.write_control_file(&env, "unhealthy", &env.allocated("train", &driver).await[0]);
    env.eventually("the device is not healthy", async || (health().await? == "Unhealthy").then_some(())).await;
    driver.write_control_file(&env, "unhealthy", "");
    env.eventually("the device is healthy again", async || (health().await? == "Healthy").then_some(())).await;
    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}
