//! What the framework and every kubelet from 1.32 on are to each other; `cargo xtask e2e older` runs these with old ones.

use drakkar_node::ClaimSpec;

use crate::support::{Driver, Lab, both_paths, devices};

/// The version of the DRA service that the node's kubelet calls, of the two that the framework serves; and the other.
async fn versions(lab: &Lab) -> (&'static str, &'static str) {
    let node = lab.get(&format!("/api/v1/nodes/{}", lab.cluster.node())).await.unwrap();
    let kubelet = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap();
    let minor = kubelet.strip_prefix("v1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor.unwrap_or_else(|| panic!("a kubelet {kubelet}")) >= 34 { ("v1", "v1beta1") } else { ("v1beta1", "v1") }
}

/// A driver's metrics, as a Prometheus reads them.
async fn metrics(lab: &Lab, driver: &Driver) -> String {
    let page = format!("/api/v1/namespaces/{}/pods/{}:9464/proxy/metrics", driver.namespace, driver.pod(lab).await);
    lab.kubectl(&["get", "--raw", &page], "").unwrap()
}

/// How many calls the driver has answered.
fn calls(metrics: &str, method: &str, version: &str) -> u64 {
    let series = format!("drakkar_plugin_grpc_calls_total{{method=\"{method}\",version=\"{version}\",code=\"ok\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("no {series}in {metrics}")).parse().unwrap()
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_newest_version_that_both_know_is_called() {
    let lab = Lab::new("version").await;
    let driver = Driver::new("version").deploy(&lab).await;
    let (called, other) = versions(&lab).await;
    let registered = metrics(&lab, &driver).await;
    assert!(registered.lines().any(|line| line == "drakkar_plugin_registered 1"), "{registered}");
    assert!(calls(&registered, "notify", "v1") > 0, "{registered}");
    assert_eq!(calls(&registered, "prepare", called), 0);

    lab.claim("train", ClaimSpec::default().request("gpu", &driver.name, 2)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;
    let allocated = lab.allocated("train", &driver).await;
    for path in both_paths("train", "gpu", &driver) {
        assert_eq!(devices(&lab.read(&pod, "main", &path)), allocated, "{path}");
    }
    lab.delete_pod(&pod).await;
    lab.nothing_left(&driver).await;

    // The files go a little before the call is answered.
    let after = lab
        .eventually("a call to unprepare", async || {
            let metrics = metrics(&lab, &driver).await;
            (calls(&metrics, "unprepare", called) > 0).then_some(metrics)
        })
        .await;
    assert!(calls(&after, "prepare", called) > 0, "{after}");
    for method in ["prepare", "unprepare"] {
        assert_eq!(calls(&after, method, other), 0, "{after}");
    }
    lab.delete_claim("train").await;
    driver.end(&lab).await;
    lab.end().await;
}

/// The driver's manifest, changed so that an instance starts when the one before has ended. Kubelets before 1.33 need that.
fn one_at_a_time(driver: &Driver) -> String {
    let mut manifest = driver.manifest();
    for (part, instead) in [
        ("maxSurge: 1", "maxSurge: 0"),
        ("maxUnavailable: 0", "maxUnavailable: 1"),
        // Without it an instance has the same sockets as the one before.
        (
            "            - name: POD_UID\n              valueFrom:\n                fieldRef:\n                  fieldPath: metadata.uid\n",
            "",
        ),
    ] {
        assert_eq!(manifest.matches(part).count(), 1, "{part}");
        manifest = manifest.replace(part, instead);
    }
    manifest
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_driver_is_replaced_by_one_that_starts_when_it_has_ended() {
    let lab = Lab::new("handover").await;
    let driver = Driver::new("handover");
    driver.apply_manifest(&lab, &one_at_a_time(&driver)).await;
    lab.claim("before", ClaimSpec::default().request("gpu", &driver.name, 1)).await;
    let before = lab.run(lab.sleeper("before", "before")).await;

    driver.replace_pod(&lab).await;

    lab.claim("after", ClaimSpec::default().request("gpu", &driver.name, 1)).await;
    let after = lab.run(lab.sleeper("after", "after")).await;
    for (pod, claim) in [(&before, "before"), (&after, "after")] {
        for path in both_paths(claim, "gpu", &driver) {
            assert_eq!(devices(&lab.read(pod, "main", &path)), lab.allocated(claim, &driver).await, "{path}");
        }
    }
    for pod in [&before, &after] {
        lab.delete_pod(pod).await;
    }
    driver.end(&lab).await;
    lab.end().await;
}
