//! The admission policies of the KubeVirt hook on a real API server: they change launcher pods as the webhook does.
//!
//! No pod is created: the API server is asked what it would make of it.

use drakkar_kubevirt::hook::mutate_launcher_pod;
use http::Method;
use serde_json::{Value, json};

use crate::support::TestEnv;

const SIDECAR: &str = include_str!("../../../crates/kubevirt/manifests/hook-sidecar.yaml");
const PLUGIN: &str = include_str!("../../../crates/kubevirt/manifests/hook-plugin.yaml");

/// A launcher pod, as far as the policies look at it.
fn launcher(annotations: &Value, claims: &Value, hook: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "virt-launcher-vm",
            "labels": {"kubevirt.io": "virt-launcher"},
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": "Never",
            "resourceClaims": [
                {"name": "train", "resourceClaimTemplateName": "t"},
                {"name": "disks", "resourceClaimName": "d"},
            ],
            "containers": [
                {"name": "compute", "image": "launcher", "resources": {"claims": claims, "requests": {"memory": "1Gi"}}},
                {"name": "volumeroot", "image": "disk", "resources": {}},
                hook,
                {"name": "hook-sidecar-1", "image": "theirs", "args": ["--version", "v1alpha3"], "resources": {}},
            ],
        },
    })
}

/// The same with the volume that it has when KubeVirt's plugins are on. Without it the plugin policy, which another test
/// installs at the same time, leaves a pod alone.
fn launcher_for_plugins(annotations: &Value, claims: &Value, hook: &Value) -> Value {
    let mut pod = launcher(annotations, claims, hook);
    pod["spec"]["volumes"] = json!([{"name": "kubevirt-plugin-sockets", "emptyDir": {}}]);
    pod
}

/// What the API server would store.
async fn stored(env: &TestEnv, pod: &Value) -> kube::Result<Value> {
    let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", env.namespace);
    env.call(Method::POST, &path, Some(pod)).await
}

/// The claims of each container.
fn claims(pod: &Value) -> Vec<Value> {
    let containers = pod["spec"]["containers"].as_array().unwrap();
    containers.iter().map(|container| container["resources"]["claims"].clone()).collect()
}

/// The claims of each container after the webhook's patch.
fn patched_claims(pod: &Value) -> Vec<Value> {
    let mut patched = pod.clone();
    for operation in mutate_launcher_pod(pod).unwrap() {
        let (parent, key) = operation.path.rsplit_once('/').unwrap();
        patched.pointer_mut(parent).unwrap()[key] = operation.value;
    }
    // The API server drops empty lists.
    claims(&patched).into_iter().map(|claims| if claims == json!([]) { Value::Null } else { claims }).collect()
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_sidecar_policy_changes_launcher_pods_as_the_webhook_does() {
    let env = TestEnv::new("hook-sidecar").await;
    env.kubectl(&["apply", "-f", "-"], SIDECAR).unwrap();
    let by_arguments = json!({"name": "hook-sidecar-0", "image": "d", "args": ["kubevirt", "hook"], "resources": {}});
    let by_command = json!({"name": "hook-sidecar-0", "image": "d", "command": ["/drakkar", "kubevirt", "hook"]});
    let no_hook = json!({"name": "hook-sidecar-0", "image": "d", "resources": {}});
    let two = json!([{"name": "train", "request": "first"}, {"name": "train", "request": "second"}]);
    let whole = json!([{"name": "train"}]);
    let gpus = json!({"drakkar.dev/gpus": "gpus=train/gpus, x = train/first", "other": "y"});
    let both = json!({"drakkar.dev/gpus": "g=train/gpus,", "drakkar.dev/host-devices": "nvme=disks/data"});
    let active = launcher(&gpus, &two, &by_arguments);
    env.eventually("the policy is active", async || {
        (claims(&stored(&env, &active).await.unwrap()) != claims(&active)).then_some(())
    })
    .await;
    for hook in [&by_arguments, &by_command, &no_hook] {
        for rendered in [&two, &json!([]), &whole] {
            for annotations in [&gpus, &both, &json!({})] {
                if rendered == &whole && annotations != &json!({}) {
                    continue; // Kubernetes refuses a claim together with one of its requests.
                }
                let pod = launcher(annotations, rendered, hook);
                assert_eq!(claims(&stored(&env, &pod).await.unwrap()), patched_claims(&pod), "{pod}");
            }
        }
    }
    let mut no_launcher = launcher(&gpus, &two, &by_arguments);
    no_launcher["metadata"]["labels"] = json!({});
    assert_eq!(claims(&stored(&env, &no_launcher).await.unwrap()), patched_claims(&no_launcher));
    for wrong in ["g", "g=train", "g=missing/gpu"] {
        let pod = launcher(&json!({"drakkar.dev/gpus": wrong}), &two, &by_arguments);
        assert!(stored(&env, &pod).await.is_err(), "{wrong}");
        assert!(mutate_launcher_pod(&pod).is_err(), "{wrong}");
    }
    env.kubectl(&["delete", "-f", "-"], SIDECAR).unwrap();
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_plugin_policy_adds_the_hook_with_the_claims_of_the_launcher() {
    let env = TestEnv::new("hook-plugin").await;
    // The cluster has no KubeVirt: the first object, the plugin itself, is of a kind that it does not know.
    let (_plugin, policies) = PLUGIN.split_once("\n---\n").unwrap();
    env.kubectl(&["apply", "-f", "-"], policies).unwrap();
    let other = json!({"name": "other", "image": "d", "resources": {}});
    let rendered = json!([{"name": "train", "request": "first"}]);
    let pod = launcher_for_plugins(&json!({"drakkar.dev/gpus": "g=train/gpus"}), &rendered, &other);
    let changed = env
        .eventually("the policy is active", async || {
            let changed = stored(&env, &pod).await.unwrap();
            changed["spec"]["initContainers"].is_array().then_some(changed)
        })
        .await;
    let expected = json!([{"name": "train", "request": "first"}, {"name": "train", "request": "gpus"}]);
    assert_eq!(claims(&changed), [expected.clone(), Value::Null, Value::Null, Value::Null]);
    let [hook] = &changed["spec"]["initContainers"].as_array().unwrap()[..] else { panic!("{changed}") };
    assert_eq!((&hook["name"], &hook["restartPolicy"]), (&json!("drakkar-hook"), &json!("Always")));
    assert_eq!(hook["resources"]["claims"], expected);
    assert_eq!(hook["volumeMounts"][0]["subPath"], "drakkar");
    // Placement alone: the hook places the devices of KubeVirt's own, and needs their files.
    for rendered in [&rendered, &json!([])] {
        let placed = launcher_for_plugins(&json!({"drakkar.dev/numa-placement": "preferred"}), rendered, &other);
        let changed = stored(&env, &placed).await.unwrap();
        let hook = &changed["spec"]["initContainers"][0];
        assert_eq!(hook["name"], "drakkar-hook", "{changed}");
        assert_eq!(hook["resources"]["claims"].as_array().map_or(0, Vec::len), rendered.as_array().unwrap().len());
        assert_eq!(claims(&changed)[0], hook["resources"]["claims"]);
    }
    let other = launcher_for_plugins(&json!({}), &rendered, &other);
    let unchanged = stored(&env, &other).await.unwrap();
    assert_eq!((claims(&unchanged), &unchanged["spec"]["initContainers"]), (claims(&other), &Value::Null));
    env.kubectl(&["delete", "-f", "-"], policies).unwrap();
    env.clean_up().await;
}
