//! `node claims`, `node devices` and `inspect`.

use drakkar_node::Isolation;
use drakkar_node::api::Config;
use serde_json::Value;

use crate::doctor::node::{DRIVER, HealthyNode, command, run};

async fn drakkar(node: &HealthyNode, words: &[&str], more: &[&str]) -> (i32, String) {
    let mut command = command();
    command.args(node.options(words)).args(more);
    run(command).await
}

async fn json(node: &HealthyNode, words: &[&str], more: &[&str]) -> (i32, Value) {
    let (code, text) = drakkar(node, words, &[more, &["-o", "json"]].concat()).await;
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// The words of a table's rows.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn prepared_claims_and_their_devices_are_listed() {
    let node = HealthyNode::start().await;
    let uid = node.node.claim_ref("train").await.unwrap().uid.to_string();
    let (code, table) = drakkar(&node, &["node", "claims"], &[]).await;
    assert_eq!(code, 0, "{table}");
    let rows_of = rows(&table);
    assert_eq!(rows_of[0], ["CLAIM", "UID", "DRIVER", "DEVICES", "PODS", "GEN", "AGE"]);
    assert_eq!(rows_of[1][..6], ["default/train", &uid[..13], DRIVER, "gpu-0", "1", "1"]);
    assert_eq!(rows_of.len(), 2);
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    let (_, table) = drakkar(&node, &["node", "devices"], &[]).await;
    assert_eq!(rows(&table)[0], ["DEVICE", "POOL", "DRIVER", "CLAIM", "REQUEST", "AGE"]);
    assert_eq!(rows(&table)[1][..5], ["gpu-0", "node-1", DRIVER, "default/train", "gpu"]);

    let (_, claims) = json(&node, &["node", "claims"], &[]).await;
    let claim = &claims[0];
    assert_eq!(claim["claim"]["uid"], uid.as_str());
    assert_eq!(claim["pods"].as_array().unwrap().len(), 1);
    assert_eq!(claim["requests"][0]["state"], "valid");
    assert_eq!(claim["requests"][0]["file"], node.metadata().to_str().unwrap());
    assert!(claim["since"].as_str().unwrap().ends_with('Z'), "{claim}");
    let (_, devices) = json(&node, &["node", "devices"], &[]).await;
    assert_eq!(devices[0]["requests"][0], "gpu");
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_after_what_can() {
    let node = HealthyNode::start().await;
    std::fs::create_dir(node.plugin().join("dra-device-metadata/default_torn")).unwrap();
    let mut command = command();
    let output = command.args(node.options(&["node", "claims"])).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("default/train"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("default_torn: no readable state record"), "{errors}");
    assert!(errors.contains("hint: `drakkar doctor` says more"), "{errors}");
}

#[tokio::test]
async fn a_host_without_a_kubelet_is_not_found() {
    let (code, errors) = run({
        let mut command = command();
        command.args(["node", "claims", "--kubelet-dir", "/nonexistent/kubelet"]);
        command
    })
    .await;
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains("/nonexistent/kubelet/plugins: No such file"), "{errors}");
}

/// Returns place and status of each step.
fn steps(inspection: &Value) -> Vec<(String, String)> {
    let text = |step: &Value, name: &str| step[name].as_str().unwrap().to_owned();
    let steps = inspection["steps"].as_array().unwrap();
    steps.iter().map(|step| (text(step, "place"), text(step, "status"))).collect()
}

#[tokio::test]
async fn a_claim_is_followed_from_its_allocation_to_the_container() {
    let api = Config { tls: true, ..Config::default() };
    let node = HealthyNode::start_with(api, Isolation::Auto).await;
    let is_visible = *node.node.runner().isolation() == Isolation::Root;
    if is_visible {
        node.node.pod("default", "trainer").await.unwrap().running().await.unwrap();
    }
    let kubeconfig = node.kubeconfig().to_str().unwrap().to_owned();
    let uid = node.node.claim_ref("train").await.unwrap().uid.to_string();
    for claim in ["default/train", &uid] {
        let (code, inspection) = json(&node, &["inspect", claim], &["--kubeconfig", &kubeconfig]).await;
        assert_eq!((code, inspection["complete"].as_bool()), (0, Some(true)), "{inspection:#}");
        let steps = steps(&inspection);
        let of = |place: &str| steps.iter().filter(|step| step.0 == place).map(|step| &*step.1).collect::<Vec<_>>();
        assert_eq!(of("API server"), ["ok", "ok", "skipped"], "the driver reports no status: {inspection:#}");
        assert_eq!(of("Kubelet"), ["ok"], "{inspection:#}");
        assert_eq!(of("Driver gpu.example.com"), ["ok", "ok", "ok"], "record, file, spec: {inspection:#}");
        if is_visible {
            // One container, both layouts.
            assert_eq!(of("Containers"), ["ok", "ok"], "{inspection:#}");
        }
    }
    let (_, text) = drakkar(&node, &["inspect", "default/train"], &["--kubeconfig", &kubeconfig]).await;
    assert!(text.starts_with(&format!("Claim default/train (uid {uid})\nAPI server\n  ✓ allocated: gpu → ")), "{text}");
}

#[tokio::test]
async fn an_inspection_names_the_first_break_and_goes_on() {
    let node = HealthyNode::start().await;
    std::fs::remove_file(node.metadata()).unwrap();
    let (code, inspection) = json(&node, &["inspect", "default/train"], &["--no-api"]).await;
    assert_eq!((code, inspection["complete"].as_bool()), (1, Some(false)), "{inspection:#}");
    let broken = inspection["steps"].as_array().unwrap().iter().find(|step| step["status"] == "missing").unwrap();
    assert_eq!(broken["message"], "request gpu: no metadata file");
    assert!(broken["remedy"].as_str().unwrap().contains("delete the pod of gpu.example.com"), "{broken}");

    let (code, errors) = drakkar(&node, &["inspect", "default/other"], &["--no-api"]).await;
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains("claim default/other: not found on this node"), "{errors}");
    for wrong in ["train", "Default/train", "default/../x"] {
        let (code, errors) = drakkar(&node, &["inspect", wrong], &["--no-api"]).await;
        assert_eq!(code, 2, "{wrong}: {errors}");
    }
}

#[tokio::test]
async fn a_claim_that_another_has_replaced_differs() {
    let node = HealthyNode::start().await;
    let old = node.node.claim_ref("train").await.unwrap().uid.to_string();
    crate::doctor::claims::delete_claim(&node).await;
    let spec = drakkar_node::ClaimSpec::default().request("gpu", DRIVER, 1).claim("train");
    node.node.create(spec).await.unwrap();
    let kubeconfig = node.kubeconfig().to_str().unwrap().to_owned();
    let (code, inspection) = json(&node, &["inspect", &old], &["--kubeconfig", &kubeconfig]).await;
    assert_eq!(code, 1, "{inspection:#}");
    assert_eq!(steps(&inspection)[0], ("API server".to_owned(), "differs".to_owned()), "{inspection:#}");
}
