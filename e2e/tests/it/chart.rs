//! The Helm chart on a real cluster, with the real helm: installed, upgraded with pods running, rolled back and uninstalled.
//!
//! All kinds of drivers that it can deploy: drakkar-net with an interface of the node, drakkar-pci with a simulated host, and a driver of
//! one's own with two instances at a time while it is updated.

use std::collections::BTreeSet;
use std::path::PathBuf;

use drakkar_e2e::run;
use drakkar_node::{ClaimSpec, resource_slice};
use http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{NAMESPACE, Release, TestEnv, run_id};

const HOST: &str = include_str!("../../../examples/kubevirt-multi-gpu/host.yaml");
const CONFIG: &str = include_str!("../../../examples/kubevirt-multi-gpu/config.yaml");
const INSTALL: &str = include_str!("../../../docs/install.md");

/// The interfaces that drakkar-net publishes, and their other ends.
const INTERFACES: [(&str, &str); 2] = [("e2echart0", "e2echartp0"), ("e2echart1", "e2echartp1")];

/// A driver of the release, and what its claims ask for.
struct Deployed {
    id: &'static str,
    driver: String,
    expression: &'static str,
    parameters: Value,
}

impl Deployed {
    fn all() -> [Self; 3] {
        [
            Self {
                id: "net",
                driver: "net.drakkar.dev".to_owned(),
                expression: "device.attributes['net.drakkar.dev'].rule == 'data'",
                parameters: json!({"apiVersion": "net.drakkar.dev/v1alpha1", "kind": "ClaimConfig", "interfaceName": "data0"}),
            },
            Self {
                id: "pci",
                driver: "pci.drakkar.dev".to_owned(),
                expression: "device.attributes['pci.drakkar.dev'].kind == 'mdev'",
                parameters: Value::Null,
            },
            Self {
                id: "own",
                driver: format!("chart-{}.example.com", run_id()),
                expression: "true",
                parameters: Value::Null,
            },
        ]
    }

    /// Starts a pod with a claim of its own and checks that it sees its file; returns the pod's name.
    async fn start(&self, env: &TestEnv, when: &str) -> String {
        let name = format!("{}-{when}", self.id);
        let mut claim = ClaimSpec::default().request_with("device", &self.driver, 1, self.expression);
        if self.parameters != Value::Null {
            claim = claim.parameters(&["device"], &self.driver, &self.parameters);
        }
        env.claim(&name, claim).await;
        env.run(env.sleeper(&name, &name)).await;
        self.check(env, &name).await;
        name
    }

    /// Checks that a pod's file has the device that its claim got.
    async fn check(&self, env: &TestEnv, pod: &str) {
        let root = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims";
        let file = env.read(pod, "main", &format!("{root}/{pod}/device/{}-metadata.json", self.driver));
        let claim = env.get(&env.claims(&format!("/{pod}"))).await.unwrap();
        let device = &file["requests"][0]["devices"][0];
        assert_eq!(device["name"], claim["status"]["allocation"]["devices"]["results"][0]["device"], "{file}");
        if self.id == "net" {
            assert_eq!(device["networkData"]["interfaceName"], "data0", "{file}");
        }
    }

    fn plugin_directory(&self, env: &TestEnv) -> PathBuf {
        env.cluster.host_path(format!("/var/lib/kubelet/plugins/{}", self.driver))
    }

    /// The files of a directory of the node that are named after the driver: sockets and CDI specs.
    fn files_of(&self, env: &TestEnv, directory: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(env.cluster.host_path(directory)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&self.driver)).collect()
    }

    async fn slices(&self, env: &TestEnv) -> Vec<Value> {
        env.list(&format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{}", self.driver)).await
    }
}

fn values(own: &str) -> Value {
    let image = |name: &str| json!({"repository": format!("localhost/{name}"), "tag": "e2e", "pullPolicy": "Never"});
    let yaml = |text: &str| -> Value { serde_saphyr::from_str(text).unwrap() };
    json!({
        "net": {
            "enabled": true,
            "image": image("drakkar-net"),
            "config": {"devices": [{"name": "data", "match": {"names": ["e2echart?"]}}]},
        },
        "pci": {
            "enabled": true,
            "image": image("drakkar-pci"),
            "config": yaml(CONFIG),
            "simulatedHost": yaml(HOST),
        },
        "extraDrivers": {"own": {
            "driverName": own,
            "image": image("e2e-driver"),
            "args": [format!("--driver-name={own}"), "--devices=4"],
        }},
    })
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_chart_is_installed_upgraded_rolled_back_and_uninstalled() {
    let env = TestEnv::new("chart").await;
    make_interfaces(&env);
    let drivers = Deployed::all();
    let [net, pci, own] = &drivers;
    let release = Release::new(&["net", "pci", "own"], &values(&own.driver));
    let notes = release.install(&env).await;
    for driver in &drivers {
        assert!(notes.contains(&format!("spec.driver={}", driver.driver)), "{notes}");
    }
    let objects = objects(&env).await;
    assert!(objects.len() >= 3 * 6, "{objects:?}");
    for driver in &drivers {
        env.eventually(&format!("{} publishes", driver.driver), async || {
            (!driver.slices(&env).await.is_empty()).then_some(())
        })
        .await;
        the_policy_holds(&env, &release, driver).await;
    }
    let mut survivors = Vec::new();
    for driver in &drivers {
        survivors.push((driver, Survivor::new(&env, &driver.start(&env, "before").await).await));
    }

    // The verbosity stands for any change of the pod's template. Meanwhile a driver of which there can be two serves new pods.
    let old = release.pod(&env, "own").await["metadata"]["name"].clone();
    let changes = ["net.log.verbosity=1", "pci.log.verbosity=1", "extraDrivers.own.log.verbosity=1"];
    let (during, ()) = tokio::join!(own.start(&env, "during"), release.upgrade(&env, &changes));
    assert_ne!(release.pod(&env, "own").await["metadata"]["name"], old);
    for id in &release.drivers {
        assert!(arguments(&release.pod(&env, id).await).contains(&"-v".to_owned()), "{id}");
    }
    for (driver, survivor) in &survivors {
        survivor.check(&env, driver).await;
    }
    let mut pods = vec![during, net.start(&env, "after").await, pci.start(&env, "after").await];

    release.roll_back(&env, "1").await;
    for id in &release.drivers {
        assert!(!arguments(&release.pod(&env, id).await).contains(&"-v".to_owned()), "{id}");
    }
    for (driver, survivor) in &survivors {
        survivor.check(&env, driver).await;
    }

    pods.extend(survivors.into_iter().map(|(_, survivor)| survivor.pod));
    for pod in &pods {
        env.delete_pod(pod).await;
        env.delete_claim(pod).await;
    }
    // The kubelet unprepares claims after it has stopped the containers of pods that are deleted without a grace period.
    for driver in &drivers {
        env.eventually(&format!("all claims of {} are unprepared", driver.driver), async || {
            driver.files_of(&env, "/var/run/cdi").is_empty().then_some(())
        })
        .await;
    }
    release.uninstall(&env).await;
    nothing_is_left(&env, &drivers).await;
    env.delete(&format!("/api/v1/namespaces/{NAMESPACE}")).await;
    remove_interfaces(&env);
    for driver in &drivers {
        std::fs::remove_dir_all(driver.plugin_directory(&env)).unwrap();
    }
    env.clean_up().await;
}

/// A pod from before an update, which has to be the same after it.
struct Survivor {
    pod: String,
    container: Value,
}

impl Survivor {
    async fn new(env: &TestEnv, pod: &str) -> Self {
        let object = env.running(pod).await;
        Self { pod: pod.to_owned(), container: object["status"]["containerStatuses"][0]["containerID"].clone() }
    }

    async fn check(&self, env: &TestEnv, driver: &Deployed) {
        let object = env.running(&self.pod).await;
        assert_eq!(
            object["status"]["containerStatuses"][0]["containerID"], self.container,
            "{} was restarted",
            self.pod
        );
        driver.check(env, &self.pod).await;
    }
}

fn arguments(pod: &Value) -> Vec<String> {
    let arguments = pod["spec"]["containers"][0]["args"].as_array().unwrap().iter();
    arguments.map(|argument| argument.as_str().unwrap().to_owned()).collect()
}

/// Tries the admission policy with the account of a driver: with the token of its pod, and with one of no pod.
async fn the_policy_holds(env: &TestEnv, release: &Release, driver: &Deployed) {
    let pod = release.pod(env, driver.id).await;
    let token = async |bound: Value| {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                             "spec": {"audiences": [], "expirationSeconds": 600, "boundObjectRef": bound}});
        let account = Release::name(driver.id);
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token");
        let token = env.call(Method::POST, &path, Some(&request)).await.unwrap();
        env.client_with_token(token["status"]["token"].as_str().unwrap()).await
    };
    let create = async |client: &kube::Client, of_driver: &str, node: &str| {
        let mut slice = resource_slice(of_driver, node, &["foreign-0"]);
        slice["metadata"] = json!({"name": "policy"});
        slice["spec"]["pool"]["name"] = "policy".into();
        let request = Request::post("/apis/resource.k8s.io/v1/resourceslices?dryRun=All");
        let request = request.header("content-type", "application/json").body(slice.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await.map_err(|error| error.to_string())
    };
    let of_pod = token(
        json!({"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}),
    )
    .await;
    let of_nobody = token(Value::Null).await;
    let own = env.cluster.node();
    create(&of_pod, &driver.driver, own).await.expect("a slice of its own node");
    for (client, of_driver, node, expected) in [
        (&of_pod, driver.driver.as_str(), "elsewhere", "may write the slices of that node only"),
        (&of_pod, "other.example.com", own, "may write its own slices only"),
        (&of_nobody, driver.driver.as_str(), own, "is used outside of a pod on a node"),
    ] {
        let refused = create(client, of_driver, node).await.expect_err(expected);
        assert!(refused.contains(expected), "{refused}");
    }
}

/// The objects of the release, cluster-scoped ones too. Pods and their controllers' revisions follow the `DaemonSet`.
async fn objects(env: &TestEnv) -> BTreeSet<String> {
    let namespaced = ["api/v1", "apis/apps/v1"].map(|group| (group, format!("namespaces/{NAMESPACE}/")));
    let kinds = [
        (&namespaced[0], "serviceaccounts"),
        (&namespaced[0], "configmaps"),
        (&namespaced[0], "pods"),
        (&namespaced[1], "daemonsets"),
        (&("apis/rbac.authorization.k8s.io/v1", String::new()), "clusterroles"),
        (&("apis/rbac.authorization.k8s.io/v1", String::new()), "clusterrolebindings"),
        (&("apis/admissionregistration.k8s.io/v1", String::new()), "validatingadmissionpolicies"),
        (&("apis/admissionregistration.k8s.io/v1", String::new()), "validatingadmissionpolicybindings"),
        (&("apis/resource.k8s.io/v1", String::new()), "deviceclasses"),
    ];
    let mut found = BTreeSet::new();
    for ((group, scope), kind) in kinds {
        let path = format!("/{group}/{scope}{kind}?labelSelector=app.kubernetes.io%2Finstance%3Ddrakkar");
        let names =
            env.list(&path).await.into_iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
        found.extend(names.map(|name| format!("{kind}/{name}")));
    }
    found
}

/// Waits until nothing of the release is left in the cluster, and on the node what docs/install.md says.
async fn nothing_is_left(env: &TestEnv, drivers: &[Deployed]) {
    env.eventually_with("no object of the release is left", async |reason| {
        let left = objects(env).await;
        *reason = format!("{left:?}");
        left.is_empty().then_some(())
    })
    .await;
    let secrets = env.list(&format!("/api/v1/namespaces/{NAMESPACE}/secrets")).await;
    assert!(secrets.is_empty(), "helm's own records: {secrets:?}");
    for driver in drivers {
        // The kubelet deletes the slices of a driver that does not come back within half a minute.
        env.eventually(&format!("no slice of {} is left", driver.driver), async || {
            driver.slices(env).await.is_empty().then_some(())
        })
        .await;
        assert_eq!(
            driver.files_of(env, "/var/lib/kubelet/plugins_registry"),
            Vec::<PathBuf>::new(),
            "registration sockets"
        );
        assert_eq!(driver.files_of(env, "/var/run/cdi"), Vec::<PathBuf>::new(), "CDI specs");
        let left = files_below(&driver.plugin_directory(env));
        // Those of a simulated host are of the try.
        let left: BTreeSet<_> = left.into_iter().filter(|file| !file.starts_with("simulation/")).collect();
        for file in &left {
            assert!(
                INSTALL.contains(&format!("`{file}`")),
                "docs/install.md does not say that {file} is left: {left:?}"
            );
        }
    }
}

/// The files below a directory, relative to it.
fn files_below(directory: &PathBuf) -> BTreeSet<String> {
    let printed =
        run(std::process::Command::new("find").arg(directory).args(["!", "-type", "d", "-printf", "%P\n"])).unwrap();
    printed.lines().map(str::to_owned).collect()
}

fn make_interfaces(env: &TestEnv) {
    remove_interfaces(env);
    for (name, peer) in INTERFACES {
        run(env.cluster.command("ip").args(["link", "add", name, "type", "veth", "peer", "name", peer])).unwrap();
    }
}

/// Removes the interfaces of this and of an aborted run.
fn remove_interfaces(env: &TestEnv) {
    for (name, _) in INTERFACES {
        let exists = run(env.cluster.command("ip").args(["link", "show", "dev", name])).is_ok();
        if exists {
            run(env.cluster.command("ip").args(["link", "delete", name])).unwrap();
        }
    }
}
