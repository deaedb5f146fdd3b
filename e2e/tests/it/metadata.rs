//! KEP-5304 on a real node: its list of e2e tests, and what it does not list.

use std::os::unix::fs::MetadataExt;

use drakkar_node::{ClaimSpec, Container, Pod};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Driver, Lab, attribute, both_paths, devices, index_of, kep_path, kubernetes_path, template_path};

const SLEEP: [&str; 2] = ["sleep", "1000000"];

fn one(driver: &Driver) -> ClaimSpec {
    ClaimSpec::default().request("gpu", &driver.name, 1)
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_file_is_at_both_paths_is_right_and_read_only() {
    let lab = Lab::new("paths").await;
    let driver = Driver::new("paths").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;

    let mut paths = both_paths("train", "gpu", &driver);
    paths.sort();
    assert_eq!(lab.seen(&pod, "main"), paths, "these and no others");
    let [device] = &lab.allocated("train", &driver).await[..] else { panic!("one device") };
    let claim = lab.get(&lab.claims("/train")).await.unwrap();
    for path in &paths {
        let file = lab.read(&pod, "main", path);
        assert_eq!(file["apiVersion"], "metadata.resource.k8s.io/v1alpha1");
        assert_eq!(file["kind"], "DeviceMetadata");
        for field in ["name", "namespace", "uid"] {
            assert_eq!(file["metadata"][field], claim["metadata"][field], "{field}");
        }
        assert_eq!(file["metadata"]["generation"], 1);
        assert_eq!(file["requests"][0]["name"], "gpu");
        let told = &file["requests"][0]["devices"][0];
        assert_eq!((&told["driver"], &told["name"]), (&json!(driver.name), &json!(device)));
        assert_eq!(attribute(&file, "index"), index_of(device));
        assert_eq!(attribute(&file, "driverVersion"), json!({"version": "1.0.0"}));
        let refused = lab.exec(&pod, "main", &["sh", "-c", &format!("echo x > {path}")]).unwrap_err();
        assert!(refused.contains("Read-only file system"), "{refused}");
    }

    lab.delete_pod(&pod).await;
    lab.nothing_left(&driver).await;
    lab.delete_claim("train").await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_claim_of_a_template_is_found_by_the_name_that_the_pod_has_for_it() {
    let lab = Lab::new("template").await;
    let driver = Driver::new("template").deploy(&lab).await;
    lab.template("one-gpu", one(&driver)).await;
    let main = Container::new("main", SLEEP).claim("devices");
    let pod = lab.run(Pod::new("pod").template("devices", "one-gpu").container(main)).await;

    let file = lab.read(&pod, "main", &template_path("devices", "gpu", &driver));
    assert_eq!(file["podClaimName"], "devices");
    let claim = file["metadata"]["name"].as_str().unwrap();
    assert_eq!(lab.read(&pod, "main", &kep_path(claim, "gpu", &driver)), file);
    assert_eq!(devices(&file), lab.allocated(claim, &driver).await);

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_container_sees_the_requests_that_it_references_and_no_others() {
    let lab = Lab::new("isolation").await;
    let driver = Driver::new("isolation").deploy(&lab).await;
    let spec = ClaimSpec::default().request("a", &driver.name, 1).request("b", &driver.name, 3);
    lab.claim("both", spec).await;
    let pod = Pod::new("pod")
        .claim("devices", "both")
        .container(Container::new("a", SLEEP).request("devices", "a"))
        .container(Container::new("b", SLEEP).request("devices", "b"))
        .container(Container::new("all", SLEEP).claim("devices"))
        .container(Container::new("none", SLEEP));
    let pod = lab.run(pod).await;

    let paths = |requests: &[&str]| {
        let mut paths: Vec<_> = requests.iter().flat_map(|request| both_paths("both", request, &driver)).collect();
        paths.sort();
        paths
    };
    assert_eq!(lab.seen(&pod, "a"), paths(&["a"]));
    assert_eq!(lab.seen(&pod, "b"), paths(&["b"]));
    assert_eq!(lab.seen(&pod, "all"), paths(&["a", "b"]));
    assert_eq!(lab.seen(&pod, "none"), [""; 0]);
    // Several devices of one request are in one file, each of the claim's devices in exactly one.
    let first = devices(&lab.read(&pod, "a", &kep_path("both", "a", &driver)));
    let rest = devices(&lab.read(&pod, "b", &kubernetes_path("both", "b", &driver)));
    assert_eq!((first.len(), rest.len()), (1, 3));
    let mut told = [first, rest].concat();
    told.sort();
    let mut allocated = lab.allocated("both", &driver).await;
    allocated.sort();
    assert_eq!(told, allocated);

    lab.delete_pod(&pod).await;
    lab.delete_claim("both").await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn two_drivers_on_one_request_have_a_file_each() {
    let lab = Lab::new("two").await;
    let first = Driver::new("two-a").devices(1).deploy(&lab).await;
    let second = Driver::new("two-b").devices(1).deploy(&lab).await;
    let class_name = format!("class-of-{}", first.name);
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": class_name},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver in [{:?}, {:?}]", first.name, second.name)}}]},
    });
    lab.call(http::Method::POST, "/apis/resource.k8s.io/v1/deviceclasses", Some(&class)).await.unwrap();
    lab.claim("pair", ClaimSpec::default().request("gpu", &class_name, 2)).await;
    let pod = lab.run(lab.sleeper("pod", "pair")).await;

    for driver in [&first, &second] {
        for path in both_paths("pair", "gpu", driver) {
            let file = lab.read(&pod, "main", &path);
            assert_eq!(devices(&file), ["dev-0"]);
            assert_eq!(file["requests"][0]["devices"][0]["driver"], driver.name.as_str());
        }
    }
    assert_eq!(lab.seen(&pod, "main").len(), 4);

    lab.delete_pod(&pod).await;
    lab.delete(&format!("/apis/resource.k8s.io/v1/deviceclasses/{class_name}")).await;
    first.end(&lab).await;
    second.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn deferred_metadata_comes_to_a_container_that_runs() {
    let lab = Lab::new("deferred").await;
    let driver =
        Driver::new("deferred").argument("--metadata=deferred").argument("--deliver-on-request").deploy(&lab).await;
    lab.claim("net", one(&driver)).await;
    let path = kep_path("net", "gpu", &driver);
    let script = format!(
        "[ -e {path} ] && [ ! -s {path} ] && echo empty; until [ -s {path} ]; do sleep 0.1; done; cat {path}; sleep 1000000"
    );
    let main = Container::new("main", ["sh", "-c", &script]).claim("devices");
    let pod = lab.run(Pod::new("pod").claim("devices", "net").container(main)).await;
    lab.eventually("the container has an empty file", async || (lab.log(&pod, "main") == "empty\n").then_some(()))
        .await;
    driver.tell(&lab, "deliver", "now");

    let log = lab
        .eventually("the container has its metadata", async || {
            let log = lab.log(&pod, "main");
            log.contains("DeviceMetadata").then_some(log)
        })
        .await;
    let (before, file) = log.split_once('\n').unwrap();
    assert_eq!(before, "empty", "the file was there before its content");
    let file: Value = serde_json::from_str(file).unwrap();
    assert_eq!(file["metadata"]["generation"], 1);
    assert!(file["requests"][0]["devices"][0]["networkData"]["ips"][0].as_str().unwrap().starts_with("10.9."));

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn no_container_starts_before_gated_metadata_is_there() {
    let lab = Lab::new("gated").await;
    let driver = Driver::new("gated").argument("--metadata=gated").argument("--deliver-on-request").deploy(&lab).await;
    lab.claim("net", one(&driver)).await;
    let path = kubernetes_path("net", "gpu", &driver);
    let main = Container::new("main", ["sh", "-c", &format!("cat {path}; sleep 1000000")]).claim("devices");
    let pod = lab.create_pod(Pod::new("pod").claim("devices", "net").container(main)).await;
    // Until the update comes the runtime does not know the CDI device, and the kubelet says so and tries again.
    lab.eventually("the runtime refuses the container", async || {
        let pod = lab.pod(&pod).await?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"].as_str().filter(|reason| reason.starts_with("CreateContainer")).map(drop)
    })
    .await;
    driver.tell(&lab, "deliver", "now");
    lab.running(&pod).await;
    let file: Value = serde_json::from_str(&lab.log(&pod, "main")).expect("what it saw first");
    assert_eq!(file["metadata"]["generation"], 1);
    assert_eq!(devices(&file), lab.allocated("net", &driver).await);

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn published_attributes_are_what_a_silent_driver_tells() {
    let lab = Lab::new("published").await;
    let driver = Driver::new("published").argument("--metadata=published").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;
    let file = lab.read(&pod, "main", &kep_path("train", "gpu", &driver));
    let [device] = &lab.allocated("train", &driver).await[..] else { panic!("one device") };
    let attributes =
        json!({"index": index_of(device), "model": {"string": "e2e"}, "driverVersion": {"version": "1.0.0"}});
    assert_eq!(file["requests"][0]["devices"][0]["attributes"], attributes);
    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_alternative_that_was_available_is_in_the_file_of_its_request() {
    let lab = Lab::new("first").await;
    let driver = Driver::new("first").devices(2).deploy(&lab).await;
    let alternative = |name: &str, count: u32| json!({"name": name, "deviceClassName": driver.name, "count": count});
    let spec = json!({"devices": {"requests": [
        {"name": "gpu", "firstAvailable": [alternative("many", 16), alternative("two", 2)]},
    ]}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "some"}, "spec": spec});
    lab.call(http::Method::POST, &lab.claims(""), Some(&claim)).await.unwrap();
    let main = Container::new("main", SLEEP).request("devices", "gpu");
    let pod = lab.run(Pod::new("pod").claim("devices", "some").container(main)).await;

    let file = lab.read(&pod, "main", &kubernetes_path("some", "gpu", &driver));
    assert_eq!(file["requests"][0]["name"], "gpu/two");
    assert_eq!(devices(&file).len(), 2);

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn init_containers_and_sidecars_see_it_too() {
    let lab = Lab::new("init").await;
    let driver = Driver::new("init").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let path = kep_path("train", "gpu", &driver);
    let cat = ["cat", path.as_str()];
    let cat_and_stay = format!("cat {path}; sleep 1000000");
    let pod = Pod::new("pod")
        .claim("devices", "train")
        .init_container(Container::new("init", cat).claim("devices"))
        .init_container(
            Container::new("sidecar", ["sh", "-c", &cat_and_stay]).claim("devices").restart_policy("Always"),
        )
        .container(Container::new("main", ["sh", "-c", &cat_and_stay]).claim("devices"));
    let pod = lab.run(pod).await;
    let [init, sidecar, main] = ["init", "sidecar", "main"].map(|container| lab.log(&pod, container));
    let file: Value = serde_json::from_str(&init).unwrap();
    assert_eq!(devices(&file), lab.allocated("train", &driver).await);
    assert_eq!((&sidecar, &main), (&init, &init));
    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_running_container_sees_an_update() {
    let lab = Lab::new("update").await;
    let driver = Driver::new("update").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;
    let [kep, kubernetes] = both_paths("train", "gpu", &driver);
    assert_eq!(attribute(&lab.read(&pod, "main", &kep), "revision"), json!({"int": 0}));

    for revision in [7, 8] {
        driver.tell(&lab, "revision", &revision.to_string());
        for path in [&kep, &kubernetes] {
            lab.eventually("the container sees the update", async || {
                let file = lab.read(&pod, "main", path);
                (attribute(&file, "revision") == json!({"int": revision})).then_some(())
            })
            .await;
        }
    }
    assert_eq!(lab.read(&pod, "main", &kep)["metadata"]["generation"], 3);

    lab.delete_pod(&pod).await;
    driver.end(&lab).await;
    lab.end().await;
}

/// The flag is switched while pods run: they keep what they have, and it is removed with them.
#[rstest]
#[case::off("off", true)]
#[case::on("on", false)]
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn metadata_is_switched_with_pods_running(#[case] name: &str, #[case] at_first: bool) {
    let lab = Lab::new(&format!("switch-{name}")).await;
    let driver = Driver::new(&format!("switch-{name}")).metadata(at_first).deploy(&lab).await;
    lab.claim("before", one(&driver)).await;
    let before = lab.run(lab.sleeper("before", "before")).await;
    let expected = |driver: &Driver, claim: &str, is_on: bool| {
        let mut paths = if is_on { both_paths(claim, "gpu", driver).to_vec() } else { Vec::new() };
        paths.sort();
        paths
    };
    assert_eq!(lab.seen(&before, "main"), expected(&driver, "before", at_first));

    let driver = driver.metadata(!at_first);
    driver.apply(&lab).await;
    assert_eq!(lab.seen(&before, "main"), expected(&driver, "before", at_first), "what runs keeps what it has");
    lab.claim("after", one(&driver)).await;
    let after = lab.run(lab.sleeper("after", "after")).await;
    assert_eq!(lab.seen(&after, "main"), expected(&driver, "after", !at_first));
    let file = match at_first {
        true => lab.read(&before, "main", &kep_path("before", "gpu", &driver)),
        false => lab.read(&after, "main", &kep_path("after", "gpu", &driver)),
    };
    assert_eq!(devices(&file).len(), 1);

    lab.delete_pod(&before).await;
    lab.delete_pod(&after).await;
    driver.end(&lab).await;
    lab.end().await;
}

/// What is on the host is the driver's alone to write.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_file_on_the_host_is_where_the_kep_has_it() {
    let lab = Lab::new("host").await;
    let driver = Driver::new("host").deploy(&lab).await;
    lab.claim("train", one(&driver)).await;
    let pod = lab.run(lab.sleeper("pod", "train")).await;
    let directory = lab.plugin_directory(&driver).join("dra-device-metadata");
    let file = directory.join(format!("{}_train", lab.namespace)).join("gpu").join("metadata.json");
    let metadata = std::fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o022), (0, 0));
    let host: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(lab.read(&pod, "main", &kep_path("train", "gpu", &driver)), host);
    lab.delete_pod(&pod).await;
    lab.nothing_left(&driver).await;
    assert!(!file.exists());
    driver.end(&lab).await;
    lab.end().await;
}
