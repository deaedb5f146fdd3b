//! Tests from the creation of pods to the end of their claims.

use serde_json::json;

use super::{Cluster, DRIVER, Identity, NODE, devices, eventually, finalizers, reserved};

#[tokio::test]
async fn a_pod_without_claims_is_bound() {
    let cluster = Cluster::start().await;
    cluster.pod("plain", &json!(null)).await;
    let pod = cluster.bound("plain").await;
    let conditions = pod.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|condition| condition.type_ == "PodScheduled" && condition.status == "True"));
}

#[tokio::test]
async fn a_claim_is_generated_from_a_template_and_deleted_with_its_pod() {
    let cluster = Cluster::start().await;
    cluster.gpus(2).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    let created = cluster.templated("train").await;
    let pod = cluster.bound("train").await;

    let statuses = pod.status.unwrap().resource_claim_statuses.unwrap();
    assert_eq!(statuses[0].name, "my-gpu");
    let name = statuses[0].resource_claim_name.clone().unwrap();
    assert!(name.starts_with("train-my-gpu-"), "{name}");
    let claim = cluster.claims().get(&name).await.unwrap();
    let metadata = &claim.metadata;
    assert_eq!(metadata.annotations.as_ref().unwrap()["resource.kubernetes.io/pod-claim-name"], "my-gpu");
    assert_eq!(metadata.labels.as_ref().unwrap()["made"], "here");
    let owner = &metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.controller), ("Pod", "train", Some(true)));
    assert_eq!(Some(&owner.uid), created.metadata.uid.as_ref());
    assert_eq!(finalizers(&claim), ["resource.kubernetes.io/delete-protection"]);
    assert_eq!((devices(&claim), reserved(&claim)), (vec!["gpu-0".to_owned()], vec!["train".to_owned()]));
    let status = claim.status.unwrap();
    assert_eq!(Some(&status.reserved_for.unwrap()[0].uid), created.metadata.uid.as_ref());
    let allocation = status.allocation.unwrap();
    assert!(allocation.allocation_timestamp.is_some());
    let result = &allocation.devices.unwrap().results.unwrap()[0];
    assert_eq!((result.driver.as_str(), result.pool.as_str(), result.request.as_str()), (DRIVER, "pool-0", "gpu"));
    let term = &allocation.node_selector.unwrap().node_selector_terms[0];
    assert_eq!(term.match_fields.as_ref().unwrap()[0].values.as_ref().unwrap()[0], NODE);

    cluster.delete_pod("train").await;
    cluster.no_claims().await;
}

#[tokio::test]
async fn pods_wait_for_devices_until_they_are_freed() {
    let cluster = Cluster::start().await;
    cluster.gpus(1).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    cluster.templated("first").await;
    cluster.bound("first").await;
    cluster.templated("second").await;
    let message = cluster.unschedulable("second", "in use").await;
    assert_eq!(
        message,
        "0/1 nodes are available: cannot allocate all claims: claim: request gpu asks for 1 of class gpu, and of 1 device considered: 1 in use"
    );
    // A pod that is done frees its devices, and its generated claim is deleted.
    cluster.phase("first", "Succeeded").await;
    cluster.bound("second").await;
    eventually("one claim", async || (cluster.claim_list().await.len() == 1).then_some(())).await;
}

#[tokio::test]
async fn pods_wait_for_slices_classes_templates_and_claims() {
    let cluster = Cluster::start().await;
    cluster.templated("train").await;
    cluster.unschedulable("train", "resourceclaimtemplate gpu does not exist").await;
    cluster.template("gpu", &json!({"deviceClassName": "large"})).await;
    cluster.unschedulable("train", "device class large does not exist").await;
    let class = json!({"metadata": {"name": "large"}, "spec": {}});
    cluster.create::<super::DeviceClass>("resource.k8s.io/v1", "DeviceClass", &class).await;
    cluster.unschedulable("train", "no resource slice has a device for this node").await;
    cluster.gpus(1).await;
    cluster.bound("train").await;

    cluster.pod("named", &json!([{"name": "my-gpu", "resourceClaimName": "shared"}])).await;
    cluster.unschedulable("named", "resourceclaim shared does not exist").await;
    cluster.claim("shared").await;
    cluster.unschedulable("named", "1 in use").await;
    cluster.slice("more", 1, &json!([{"name": "extra"}])).await;
    cluster.bound("named").await;
}

#[tokio::test]
async fn pods_share_a_claim_and_the_last_one_frees_it() {
    let cluster = Cluster::start().await;
    cluster.gpus(1).await;
    cluster.claim("shared").await;
    let names = ["a", "b", "c"];
    for name in names {
        cluster.pod(name, &json!([{"name": "my-gpu", "resourceClaimName": "shared"}])).await;
    }
    for name in names {
        cluster.bound(name).await;
    }
    let claim = cluster.claims().get("shared").await.unwrap();
    let mut pods = reserved(&claim);
    pods.sort();
    assert_eq!((devices(&claim), pods), (vec!["gpu-0".to_owned()], names.map(str::to_owned).to_vec()));

    cluster.phase("a", "Failed").await;
    cluster.delete_pod("b").await;
    let claim = cluster.claim_when("shared", "is for c", |claim| reserved(claim) == ["c"]).await;
    assert_eq!(devices(&claim), ["gpu-0"]);
    cluster.phase("c", "Succeeded").await;
    let free = |claim: &super::ResourceClaim| reserved(claim).is_empty() && finalizers(claim).is_empty();
    let claim = cluster.claim_when("shared", "is free", free).await;
    assert!(devices(&claim).is_empty());
    // A claim that was not generated is not deleted.
    cluster.pod("d", &json!([{"name": "my-gpu", "resourceClaimName": "shared"}])).await;
    cluster.bound("d").await;
}

#[tokio::test]
async fn a_claim_in_use_is_deleted_when_its_pod_is_done() {
    let cluster = Cluster::start().await;
    cluster.gpus(1).await;
    cluster.claim("shared").await;
    let claims = json!([{"name": "my-gpu", "resourceClaimName": "shared"}]);
    cluster.pod("a", &claims).await;
    cluster.bound("a").await;
    cluster.claims().delete("shared", &kube::api::DeleteParams::default()).await.unwrap();
    let claim = cluster.claims().get("shared").await.unwrap();
    assert!(claim.metadata.deletion_timestamp.is_some() && devices(&claim) == ["gpu-0"]);
    cluster.pod("b", &claims).await;
    cluster.unschedulable("b", "resourceclaim shared is being deleted").await;
    cluster.delete_pod("a").await;
    cluster.no_claims().await;
}

#[tokio::test]
async fn a_pod_created_with_a_node_name_gets_claims_generated_and_reserved_but_not_allocated() {
    let cluster = Cluster::start().await;
    cluster.gpus(2).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    cluster.claim("shared").await;
    cluster.pod("first", &json!([{"name": "my-gpu", "resourceClaimName": "shared"}])).await;
    cluster.bound("first").await;
    let claims = json!([
        {"name": "own", "resourceClaimTemplateName": "gpu"}, {"name": "shared", "resourceClaimName": "shared"},
    ]);
    cluster.pod_with("bound", &claims, &json!({"nodeName": NODE})).await;
    cluster.claim_when("shared", "is for both", |claim| reserved(claim) == ["first", "bound"]).await;
    let own = eventually("a claim of its own", async || {
        cluster
            .claim_list()
            .await
            .into_iter()
            .find(|claim| claim.metadata.generate_name.as_deref() == Some("bound-own-"))
    })
    .await;
    assert!(devices(&own).is_empty() && reserved(&own).is_empty());
}

#[tokio::test]
async fn pods_of_other_schedulers_and_with_gates_are_ignored() {
    let cluster = Cluster::start().await;
    cluster.pod_with("other", &json!(null), &json!({"schedulerName": "mine"})).await;
    cluster.pod_with("gated", &json!(null), &json!({"schedulingGates": [{"name": "example.com/later"}]})).await;
    cluster.pod_with("elsewhere", &json!(null), &json!({"nodeSelector": {"zone": "far"}})).await;
    cluster.pod("ours", &json!(null)).await;
    cluster.bound("ours").await;
    cluster.unschedulable("elsewhere", "node selector does not match the labels of node worker").await;
    for name in ["other", "gated"] {
        let pod = cluster.pods().get(name).await.unwrap();
        assert!(pod.spec.unwrap().node_name.is_none(), "{name}");
    }
}

#[tokio::test]
async fn a_pod_waits_for_the_binding_conditions_of_its_device() {
    let cluster = Cluster::start().await;
    let conditions = |name: &str| json!({"name": name, "bindingConditions": ["example.com/ready"], "bindingFailureConditions": ["example.com/failed"]});
    cluster.slice("fabric", 1, &json!([conditions("one"), conditions("two")])).await;
    cluster.claim("shared").await;
    cluster.pod("train", &json!([{"name": "my-gpu", "resourceClaimName": "shared"}])).await;
    cluster.claim_when("shared", "has a device", |claim| devices(claim) == ["one"]).await;
    assert!(cluster.pods().get("train").await.unwrap().spec.unwrap().node_name.is_none());
    let report = async |device: &str, condition: &str| {
        let condition = json!({
            "type": condition, "status": "True", "reason": "Done", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let entry = json!({"driver": DRIVER, "pool": "fabric", "device": device, "conditions": [condition]});
        let patch = kube::api::Patch::Merge(json!({"status": {"devices": [entry]}}));
        cluster.claims().patch_status("shared", &kube::api::PatchParams::default(), &patch).await.unwrap();
    };
    // A device with a failure condition is released, and the claim is allocated again.
    report("one", "example.com/failed").await;
    let again = |claim: &super::ResourceClaim| {
        devices(claim) == ["one"] && claim.status.as_ref().is_some_and(|status| status.devices.is_none())
    };
    cluster.claim_when("shared", "is allocated again", again).await;
    report("one", "example.com/ready").await;
    cluster.bound("train").await;
}

#[tokio::test]
async fn a_pod_takes_no_more_requests_than_necessary() {
    let cluster = Cluster::start().await;
    cluster.gpus(1).await;
    cluster.template("gpu", &json!({"deviceClassName": "gpu"})).await;
    cluster.templated("train").await;
    cluster.bound("train").await;
    cluster.delete_pod("train").await;
    cluster.no_claims().await;
    let requests = cluster
        .server
        .requests()
        .into_iter()
        .filter(|line| line.user == Identity::Scheduler.user_name() && !matches!(line.verb, "list" | "watch"));
    let short = |path: &str| {
        let path = path.split_once("/namespaces/default/").unwrap().1;
        let parts: Vec<_> = path.split('/').collect();
        [parts.first(), parts.get(2)].into_iter().flatten().copied().collect::<Vec<_>>().join("/")
    };
    let requests: Vec<_> =
        requests.map(|line| format!("{} {} {}", line.verb, short(&line.path), line.status)).collect();
    let expected = [
        "create resourceclaims 201",
        "patch pods/status 200",
        "patch resourceclaims 200",
        "patch resourceclaims/status 200",
        "create pods/binding 201",
        "get pods 404",
        "patch resourceclaims/status 200",
        "patch resourceclaims 200",
        "delete resourceclaims 200",
    ];
    assert_eq!(requests, expected);
}
