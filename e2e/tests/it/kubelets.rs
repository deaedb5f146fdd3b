//! Compatibility of the framework with kubelets from 1.32 on; `cargo xtask e2e older` runs these tests with older kubelets.

use drakkar_node::ClaimSpec;

use crate::support::{Driver, TestEnv, both_paths, devices};

/// Returns the version of the DRA service that the node's kubelet calls, and the other one that the framework serves.
async fn versions(env: &TestEnv) -> (&'static str, &'static str) {
    let node = env.get(&format!("/api/v1/nodes/{}", env.cluster.node())).await.unwrap();
    let kubelet = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap();
    let minor = kubelet.strip_prefix("v1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor.unwrap_or_else(|| panic!("unexpected kubelet version {kubelet}")) >= 34 {
        ("v1", "v1beta1")
    } else {
        ("v1beta1", "v1")
    }
}

/// A driver's metrics in the Prometheus text format.
async fn metrics(env: &TestEnv, driver: &Driver) -> String {
    let page = format!("/api/v1/namespaces/{}/pods/{}:9464/proxy/metrics", driver.namespace, driver.pod(env).await);
    env.kubectl(&["get", "--raw", &page], "").unwrap()
}

/// The number of successful calls of a method that the driver has counted.
fn calls(metrics: &str, method: &str, version: &str) -> u64 {
    let series = format!("drakkar_plugin_grpc_calls_total{{method=\"{method}\",version=\"{version}\",code=\"ok\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("no {series}in {metrics}")).parse().unwrap()
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_newest_common_version_is_called() {
    let env = TestEnv::new("version").await;
    let driver = Driver::new("version").deploy(&env).await;
    let (called, other) = versions(&env).await;
    let registered = metrics(&env, &driver).await;
    assert!(registered.lines().any(|line| line == "drakkar_plugin_registered 1"), "{registered}");
    assert!(calls(&registered, "notify", "v1") > 0, "{registered}");
    assert_eq!(calls(&registered, "prepare", called), 0);

    env.claim("train", ClaimSpec::default().request("gpu", &driver.name, 2)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;
    let allocated = env.allocated("train", &driver).await;
    for path in both_paths("train", "gpu", &driver) {
        assert_eq!(devices(&env.read(&pod, "main", &path)), allocated, "{path}");
    }
    env.delete_pod(&pod).await;
    env.no_leftovers(&driver).await;

    // The files are removed shortly before the call is counted.
    let after = env
        .eventually("a call to unprepare", async || {
            let metrics = metrics(&env, &driver).await;
            (calls(&metrics, "unprepare", called) > 0).then_some(metrics)
        })
        .await;
    assert!(calls(&after, "prepare", called) > 0, "{after}");
    for method in ["prepare", "unprepare"] {
        assert_eq!(calls(&after, method, other), 0, "{after}");
    }
    env.delete_claim("train").await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

/// The driver's manifest, changed so that an instance starts only after the previous one has stopped. Kubelets before 1.33
/// need that.
fn one_at_a_time(driver: &Driver) -> String {
    let mut manifest = driver.manifest();
    for (part, replacement) in [
        ("maxSurge: 1", "maxSurge: 0"),
        ("maxUnavailable: 0", "maxUnavailable: 1"),
        // Without the pod's UID all instances use the same socket paths.
        (
            "            - name: POD_UID\n              valueFrom:\n                fieldRef:\n                  fieldPath: metadata.uid\n",
            "",
        ),
    ] {
        assert_eq!(manifest.matches(part).count(), 1, "{part}");
        manifest = manifest.replace(part, replacement);
    }
    manifest
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_driver_is_replaced_by_one_that_starts_after_it_has_stopped() {
    let env = TestEnv::new("handover").await;
    let driver = Driver::new("handover");
    driver.apply_manifest(&env, &one_at_a_time(&driver)).await;
    env.claim("before", ClaimSpec::default().request("gpu", &driver.name, 1)).await;
    let before = env.run(env.sleeper("before", "before")).await;

    driver.replace_pod(&env).await;

    env.claim("after", ClaimSpec::default().request("gpu", &driver.name, 1)).await;
    let after = env.run(env.sleeper("after", "after")).await;
    for (pod, claim) in [(&before, "before"), (&after, "after")] {
        for path in both_paths(claim, "gpu", &driver) {
            assert_eq!(devices(&env.read(pod, "main", &path)), env.allocated(claim, &driver).await, "{path}");
        }
    }
    for pod in [&before, &after] {
        env.delete_pod(pod).await;
    }
    driver.clean_up(&env).await;
    env.clean_up().await;
}
