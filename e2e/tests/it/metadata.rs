//! Device metadata (KEP-5304) on a real node: the KEP's list of e2e tests, and more.

use std::os::unix::fs::MetadataExt;

use drakkar_node::{ClaimSpec, Container, Pod};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{
    Driver, TestEnv, attribute, both_paths, devices, index_of, kep_path, kubernetes_path, template_path,
};

const SLEEP: [&str; 2] = ["sleep", "1000000"];

fn one(driver: &Driver) -> ClaimSpec {
    ClaimSpec::default().request("gpu", &driver.name, 1)
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_file_is_at_both_paths_correct_and_read_only() {
    let env = TestEnv::new("paths").await;
    let driver = Driver::new("paths").deploy(&env).await;
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;

    let mut paths = both_paths("train", "gpu", &driver);
    paths.sort();
    assert_eq!(env.metadata_files(&pod, "main"), paths, "exactly these files");
    let [device] = &env.allocated("train", &driver).await[..] else { panic!("one device") };
    let claim = env.get(&env.claims("/train")).await.unwrap();
    for path in &paths {
        let file = env.read(&pod, "main", path);
        assert_eq!(file["apiVersion"], "metadata.resource.k8s.io/v1alpha1");
        assert_eq!(file["kind"], "DeviceMetadata");
        for field in ["name", "namespace", "uid"] {
            assert_eq!(file["metadata"][field], claim["metadata"][field], "{field}");
        }
        assert_eq!(file["metadata"]["generation"], 1);
        assert_eq!(file["requests"][0]["name"], "gpu");
        let reported = &file["requests"][0]["devices"][0];
        assert_eq!((&reported["driver"], &reported["name"]), (&json!(driver.name), &json!(device)));
        assert_eq!(attribute(&file, "index"), index_of(device));
        assert_eq!(attribute(&file, "driverVersion"), json!({"version": "1.0.0"}));
        let refused = env.exec(&pod, "main", &["sh", "-c", &format!("echo x > {path}")]).unwrap_err();
        assert!(refused.contains("Read-only file system"), "{refused}");
    }

    env.delete_pod(&pod).await;
    env.no_leftovers(&driver).await;
    env.delete_claim("train").await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_claim_from_a_template_is_found_by_the_pods_name_for_it() {
    let env = TestEnv::new("template").await;
    let driver = Driver::new("template").deploy(&env).await;
    env.template("one-gpu", one(&driver)).await;
    let main = Container::new("main", SLEEP).claim("devices");
    let pod = env.run(Pod::new("pod").template("devices", "one-gpu").container(main)).await;

    let file = env.read(&pod, "main", &template_path("devices", "gpu", &driver));
    assert_eq!(file["podClaimName"], "devices");
    let claim = file["metadata"]["name"].as_str().unwrap();
    assert_eq!(env.read(&pod, "main", &kep_path(claim, "gpu", &driver)), file);
    assert_eq!(devices(&file), env.allocated(claim, &driver).await);

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_container_sees_the_requests_that_it_references_and_no_others() {
    let env = TestEnv::new("isolation").await;
    let driver = Driver::new("isolation").deploy(&env).await;
    let spec = ClaimSpec::default().request("a", &driver.name, 1).request("b", &driver.name, 3);
    env.claim("both", spec).await;
    let pod = Pod::new("pod")
        .claim("devices", "both")
        .container(Container::new("a", SLEEP).request("devices", "a"))
        .container(Container::new("b", SLEEP).request("devices", "b"))
        .container(Container::new("all", SLEEP).claim("devices"))
        .container(Container::new("none", SLEEP));
    let pod = env.run(pod).await;

    let paths = |requests: &[&str]| {
        let mut paths: Vec<_> = requests.iter().flat_map(|request| both_paths("both", request, &driver)).collect();
        paths.sort();
        paths
    };
    assert_eq!(env.metadata_files(&pod, "a"), paths(&["a"]));
    assert_eq!(env.metadata_files(&pod, "b"), paths(&["b"]));
    assert_eq!(env.metadata_files(&pod, "all"), paths(&["a", "b"]));
    assert_eq!(env.metadata_files(&pod, "none"), [""; 0]);
    // All devices of a request are in one file, and each of the claim's devices is in exactly one file.
    let first = devices(&env.read(&pod, "a", &kep_path("both", "a", &driver)));
    let rest = devices(&env.read(&pod, "b", &kubernetes_path("both", "b", &driver)));
    assert_eq!((first.len(), rest.len()), (1, 3));
    let mut reported = [first, rest].concat();
    reported.sort();
    let mut allocated = env.allocated("both", &driver).await;
    allocated.sort();
    assert_eq!(reported, allocated);

    env.delete_pod(&pod).await;
    env.delete_claim("both").await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn two_drivers_on_one_request_have_a_file_each() {
    let env = TestEnv::new("two").await;
    let first = Driver::new("two-a").devices(1).deploy(&env).await;
    let second = Driver::new("two-b").devices(1).deploy(&env).await;
    let class_name = format!("class-of-{}", first.name);
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": class_name},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver in [{:?}, {:?}]", first.name, second.name)}}]},
    });
    env.call(http::Method::POST, "/apis/resource.k8s.io/v1/deviceclasses", Some(&class)).await.unwrap();
    env.claim("pair", ClaimSpec::default().request("gpu", &class_name, 2)).await;
    let pod = env.run(env.sleeper("pod", "pair")).await;

    for driver in [&first, &second] {
        for path in both_paths("pair", "gpu", driver) {
            let file = env.read(&pod, "main", &path);
            assert_eq!(devices(&file), ["dev-0"]);
            assert_eq!(file["requests"][0]["devices"][0]["driver"], driver.name.as_str());
        }
    }
    assert_eq!(env.metadata_files(&pod, "main").len(), 4);

    env.delete_pod(&pod).await;
    env.delete(&format!("/apis/resource.k8s.io/v1/deviceclasses/{class_name}")).await;
    first.clean_up(&env).await;
    second.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn deferred_metadata_reaches_a_running_container() {
    let env = TestEnv::new("deferred").await;
    let driver =
        Driver::new("deferred").argument("--metadata=deferred").argument("--deliver-on-request").deploy(&env).await;
    env.claim("net", one(&driver)).await;
    let path = kep_path("net", "gpu", &driver);
    let script = format!(
        "[ -e {path} ] && [ ! -s {path} ] && echo empty; until [ -s {path} ]; do sleep 0.1; done; cat {path}; sleep 1000000"
    );
    let main = Container::new("main", ["sh", "-c", &script]).claim("devices");
    let pod = env.run(Pod::new("pod").claim("devices", "net").container(main)).await;
    env.eventually("the container has an empty file", async || (env.log(&pod, "main") == "empty\n").then_some(()))
        .await;
    driver.write_control_file(&env, "deliver", "now");

    let log = env
        .eventually("the container has its metadata", async || {
            let log = env.log(&pod, "main");
            log.contains("DeviceMetadata").then_some(log)
        })
        .await;
    let (before, file) = log.split_once('\n').unwrap();
    assert_eq!(before, "empty", "the file exists before its content");
    let file: Value = serde_json::from_str(file).unwrap();
    assert_eq!(file["metadata"]["generation"], 1);
    assert!(file["requests"][0]["devices"][0]["networkData"]["ips"][0].as_str().unwrap().starts_with("10.9."));

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn no_container_starts_before_gated_metadata_is_written() {
    let env = TestEnv::new("gated").await;
    let driver = Driver::new("gated").argument("--metadata=gated").argument("--deliver-on-request").deploy(&env).await;
    env.claim("net", one(&driver)).await;
    let path = kubernetes_path("net", "gpu", &driver);
    let main = Container::new("main", ["sh", "-c", &format!("cat {path}; sleep 1000000")]).claim("devices");
    let pod = env.create_pod(Pod::new("pod").claim("devices", "net").container(main)).await;
    // Until the update the runtime does not know the CDI device; the kubelet reports that and retries.
    env.eventually("the runtime rejects the container", async || {
        let pod = env.pod(&pod).await?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"].as_str().filter(|reason| reason.starts_with("CreateContainer")).map(drop)
    })
    .await;
    driver.write_control_file(&env, "deliver", "now");
    env.running(&pod).await;
    let file: Value = serde_json::from_str(&env.log(&pod, "main")).expect("the file as first read");
    assert_eq!(file["metadata"]["generation"], 1);
    assert_eq!(devices(&file), env.allocated("net", &driver).await);

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_driver_without_metadata_exposes_the_published_attributes() {
    let env = TestEnv::new("published").await;
    let driver = Driver::new("published").argument("--metadata=published").deploy(&env).await;
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;
    let file = env.read(&pod, "main", &kep_path("train", "gpu", &driver));
    let [device] = &env.allocated("train", &driver).await[..] else { panic!("one device") };
    let attributes =
        json!({"index": index_of(device), "model": {"string": "e2e"}, "driverVersion": {"version": "1.0.0"}});
    assert_eq!(file["requests"][0]["devices"][0]["attributes"], attributes);
    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_file_names_the_allocated_alternative() {
    let env = TestEnv::new("first").await;
    let driver = Driver::new("first").devices(2).deploy(&env).await;
    let alternative = |name: &str, count: u32| json!({"name": name, "deviceClassName": driver.name, "count": count});
    let spec = json!({"devices": {"requests": [
        {"name": "gpu", "firstAvailable": [alternative("many", 16), alternative("two", 2)]},
    ]}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "some"}, "spec": spec});
    env.call(http::Method::POST, &env.claims(""), Some(&claim)).await.unwrap();
    let main = Container::new("main", SLEEP).request("devices", "gpu");
    let pod = env.run(Pod::new("pod").claim("devices", "some").container(main)).await;

    let file = env.read(&pod, "main", &kubernetes_path("some", "gpu", &driver));
    assert_eq!(file["requests"][0]["name"], "gpu/two");
    assert_eq!(devices(&file).len(), 2);

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn init_containers_and_sidecars_see_the_file() {
    let env = TestEnv::new("init").await;
    let driver = Driver::new("init").deploy(&env).await;
    env.claim("train", one(&driver)).await;
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
    let pod = env.run(pod).await;
    let [init, sidecar, main] = ["init", "sidecar", "main"].map(|container| env.log(&pod, container));
    let file: Value = serde_json::from_str(&init).unwrap();
    assert_eq!(devices(&file), env.allocated("train", &driver).await);
    assert_eq!((&sidecar, &main), (&init, &init));
    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_running_container_sees_an_update() {
    let env = TestEnv::new("update").await;
    let driver = Driver::new("update").deploy(&env).await;
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;
    let [kep, kubernetes] = both_paths("train", "gpu", &driver);
    assert_eq!(attribute(&env.read(&pod, "main", &kep), "revision"), json!({"int": 0}));

    for revision in [7, 8] {
        driver.write_control_file(&env, "revision", &revision.to_string());
        for path in [&kep, &kubernetes] {
            env.eventually("the container sees the update", async || {
                let file = env.read(&pod, "main", path);
                (attribute(&file, "revision") == json!({"int": revision})).then_some(())
            })
            .await;
        }
    }
    assert_eq!(env.read(&pod, "main", &kep)["metadata"]["generation"], 3);

    env.delete_pod(&pod).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

/// The flag changes while pods run: they keep their files, which are removed with them.
#[rstest]
#[case::off("off", true)]
#[case::on("on", false)]
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn metadata_is_switched_with_pods_running(#[case] name: &str, #[case] at_first: bool) {
    let env = TestEnv::new(&format!("switch-{name}")).await;
    let driver = Driver::new(&format!("switch-{name}")).metadata(at_first).deploy(&env).await;
    env.claim("before", one(&driver)).await;
    let before = env.run(env.sleeper("before", "before")).await;
    let expected = |driver: &Driver, claim: &str, is_on: bool| {
        let mut paths = if is_on { both_paths(claim, "gpu", driver).to_vec() } else { Vec::new() };
        paths.sort();
        paths
    };
    assert_eq!(env.metadata_files(&before, "main"), expected(&driver, "before", at_first));

    let driver = driver.metadata(!at_first);
    driver.apply(&env).await;
    assert_eq!(
        env.metadata_files(&before, "main"),
        expected(&driver, "before", at_first),
        "a running pod keeps its files"
    );
    env.claim("after", one(&driver)).await;
    let after = env.run(env.sleeper("after", "after")).await;
    assert_eq!(env.metadata_files(&after, "main"), expected(&driver, "after", !at_first));
    let file = if at_first {
        env.read(&before, "main", &kep_path("before", "gpu", &driver))
    } else {
        env.read(&after, "main", &kep_path("after", "gpu", &driver))
    };
    assert_eq!(devices(&file).len(), 1);

    env.delete_pod(&before).await;
    env.delete_pod(&after).await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}

/// Only the driver can write the file on the host.
#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_host_file_is_at_the_path_of_the_kep() {
    let env = TestEnv::new("host").await;
    let driver = Driver::new("host").deploy(&env).await;
    env.claim("train", one(&driver)).await;
    let pod = env.run(env.sleeper("pod", "train")).await;
    let directory = env.plugin_directory(&driver).join("dra-device-metadata");
    let file = directory.join(format!("{}_train", env.namespace)).join("gpu").join("metadata.json");
    let metadata = std::fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o022), (0, 0));
    let host: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(env.read(&pod, "main", &kep_path("train", "gpu", &driver)), host);
    env.delete_pod(&pod).await;
    env.no_leftovers(&driver).await;
    assert!(!file.exists());
    driver.clean_up(&env).await;
    env.clean_up().await;
}
