//! Many pods at once, three times over.

use std::time::{Duration, Instant};

use drakkar_node::{ClaimSpec, Container, Pod};
use serde_json::Value;

use crate::support::{Driver, Lab, template_path};

const PODS: usize = 100;
/// A hundred containers take their time on two cores.
const PATIENCE: Duration = Duration::from_secs(240);

/// Starts pods with a claim each, waits until all ran to their end, gives how long that took; then deletes them all.
async fn wave(lab: &Lab, driver: &Driver, wave: usize, is_told: bool) -> Duration {
    let path = template_path("devices", "gpu", driver);
    let script = if is_told { format!("cat {path}") } else { format!("test ! -e {path} && echo no file") };
    let started = Instant::now();
    for number in 0..PODS {
        let main = Container::new("main", ["sh", "-c", &script]).claim("devices");
        let pod = Pod::new(&format!("pod-{wave}-{number}")).template("devices", "one").container(main);
        lab.create_pod(pod.restart_policy("Never")).await;
    }
    let path = format!("/api/v1/namespaces/{}/pods", lab.namespace);
    // Asking for all of them all the time would be a good part of what keeps the machine busy.
    let (failed, others) = (
        format!("{path}?fieldSelector=status.phase%3DFailed"),
        format!("{path}?fieldSelector=status.phase!%3DSucceeded&limit=1"),
    );
    lab.within(PATIENCE, "all pods have run", async || {
        assert!(lab.list(&failed).await.is_empty(), "a pod failed: it did not see its file");
        lab.list(&others).await.is_empty().then_some(())
    })
    .await;
    let took = started.elapsed();
    let pods = lab.list(&path).await;
    assert_eq!(pods.len(), PODS);
    assert!(pods.iter().all(|pod| pod["status"]["phase"] == "Succeeded"));
    for pod in pods.iter().step_by(10) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let log = lab.log(name, "main");
        match is_told {
            true => {
                let file: Value = serde_json::from_str(&log).unwrap_or_else(|error| panic!("{name}: {error}: {log}"));
                // The claim itself may be gone already, and the pod's status name another: it is done.
                let claim = file["metadata"]["name"].as_str().unwrap();
                assert!(claim.starts_with(&format!("{name}-devices-")), "{name} has the file of {claim}");
            }
            false => assert_eq!(log, "no file\n"),
        }
    }
    lab.delete(&path).await;
    lab.within(PATIENCE, "all pods are gone", async || lab.list(&path).await.is_empty().then_some(())).await;
    lab.nothing_left(driver).await;
    took
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_hundred_pods_at_once_three_times() {
    let lab = Lab::new("load").await;
    let told = Driver::new("load").devices(PODS).deploy(&lab).await;
    lab.template("one", ClaimSpec::default().request("gpu", &told.name, 1)).await;
    for number in 0..3 {
        let took = wave(&lab, &told, number, true).await;
        eprintln!("wave {number}: {PODS} pods with metadata took {took:.1?}");
    }
    let told = told.metadata(false);
    told.apply(&lab).await;
    let took = wave(&lab, &told, 3, false).await;
    eprintln!("wave 3: {PODS} pods without metadata took {took:.1?}");
    told.end(&lab).await;
    lab.end().await;
}
