//! Load: a hundred pods at once, several times.

use std::time::{Duration, Instant};

use drakkar_node::{ClaimSpec, Container, Pod};
use serde_json::Value;

use crate::support::{Driver, TestEnv, template_path};

const PODS: usize = 100;
/// Starting a hundred containers takes minutes on two cores.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Starts pods with a claim each, waits until all have completed and deletes them; returns how long they took to complete.
async fn wave(env: &TestEnv, driver: &Driver, wave: usize, has_metadata: bool) -> Duration {
    let path = template_path("devices", "gpu", driver);
    let script = if has_metadata { format!("cat {path}") } else { format!("test ! -e {path} && echo no file") };
    let started = Instant::now();
    for number in 0..PODS {
        let main = Container::new("main", ["sh", "-c", &script]).claim("devices");
        let pod = Pod::new(&format!("pod-{wave}-{number}")).template("devices", "one").container(main);
        env.create_pod(pod.restart_policy("Never")).await;
    }
    let path = format!("/api/v1/namespaces/{}/pods", env.namespace);
    // Polling the full list would itself be a considerable load on the host.
    let failed = format!("{path}?fieldSelector=status.phase%3DFailed");
    let not_succeeded = format!("{path}?fieldSelector=status.phase!%3DSucceeded&limit=1");
    env.eventually_within(TIMEOUT, "all pods have completed", async || {
        assert!(env.list(&failed).await.is_empty(), "a pod failed: it did not see its file");
        env.list(&not_succeeded).await.is_empty().then_some(())
    })
    .await;
    let took = started.elapsed();
    let pods = env.list(&path).await;
    assert_eq!(pods.len(), PODS);
    assert!(pods.iter().all(|pod| pod["status"]["phase"] == "Succeeded"));
    for pod in pods.iter().step_by(10) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let log = env.log(name, "main");
        if has_metadata {
            let file: Value = serde_json::from_str(&log).unwrap_or_else(|error| panic!("{name}: {error}: {log}"));
            // By name, since the claim of a completed pod may be deleted already, and the pod's status may name another.
            let claim = file["metadata"]["name"].as_str().unwrap();
            assert!(claim.starts_with(&format!("{name}-devices-")), "{name} has the file of {claim}");
        } else {
            assert_eq!(log, "no file\n");
        }
    }
    env.delete(&path).await;
    env.eventually_within(TIMEOUT, "all pods are gone", async || env.list(&path).await.is_empty().then_some(())).await;
    env.no_leftovers(driver).await;
    took
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_hundred_pods_at_once_three_times() {
    let env = TestEnv::new("load").await;
    let driver = Driver::new("load").devices(PODS).deploy(&env).await;
    env.template("one", ClaimSpec::default().request("gpu", &driver.name, 1)).await;
    for number in 0..3 {
        let took = wave(&env, &driver, number, true).await;
        eprintln!("wave {number}: {PODS} pods with metadata took {took:.1?}");
    }
    let driver = driver.metadata(false);
    driver.apply(&env).await;
    let took = wave(&env, &driver, 3, false).await;
    eprintln!("wave 3: {PODS} pods without metadata took {took:.1?}");
    driver.clean_up(&env).await;
    env.clean_up().await;
}
