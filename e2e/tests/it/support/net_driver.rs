//! The network driver as a test deploys it, and interfaces of the node for it.

use std::collections::BTreeMap;

use drakkar_e2e::{Cluster, run};
use http::Method;
use serde_json::{Value, json};

use super::TestEnv;

const MANIFEST: &str = include_str!("../../../../deploy/manifests/net.yaml");

/// The image that `cargo xtask e2e test` builds.
const IMAGE: &str = "localhost/drakkar-net:e2e";

/// The name of the driver.
pub(crate) const NET_DRIVER: &str = "net.drakkar.dev";
/// The namespace of its pods, and the name of its objects.
const NAMESPACE: &str = "drakkar-net";

/// The interface that claims share.
pub(crate) const SHARED: &str = "e2eshare";

/// Moves `e2edata*`, and shares [`SHARED`]. Everything else on the node is left alone.
const CONFIG: &str = "
apiVersion: net.drakkar.dev/v1alpha1
kind: DriverConfig
devices:
- name: data
  match: {names: ['e2edata*']}
- name: shared
  match: {names: [e2eshare]}
  share: {kind: macvlan, max: 8}
";

/// The deployed driver. There is one on the node, so the tests that use it run one after the other.
pub(crate) struct NetDriver {
    /// The moved interfaces as they were before any claim had one.
    before: BTreeMap<String, Value>,
}

impl NetDriver {
    /// Makes interfaces on the node, deploys the driver by `deploy/manifests/net.yaml`, and waits until they are published.
    pub(crate) async fn deploy(env: &TestEnv, interfaces: usize) -> Self {
        remove_interfaces(&env.cluster);
        let mut script = "set -e\nip link add e2ebridge type bridge\nip link set e2ebridge up\n".to_owned();
        for number in 0..interfaces {
            script += &format!(
                "ip link add e2edata{number} mtu 1450 type veth peer name e2epeer{number}\n\
                 ip link set e2edata{number} alias port-{number}\n\
                 ip address add 192.0.2.{}/24 dev e2edata{number}\n\
                 ip link set e2epeer{number} master e2ebridge up\n",
                number + 1
            );
        }
        script += &format!("ip link add {SHARED} type veth peer name e2esharepeer\nip link set {SHARED} up\n");
        script += "ip link set e2esharepeer up\n";
        run(env.cluster.command("sh").args(["-c", &script])).unwrap();
        let driver = Self { before: moved_interfaces(&env.cluster) };
        assert_eq!(driver.before.len(), interfaces);
        driver.apply(env, "1").await;
        env.eventually("all interfaces are published", async || {
            (published(env).await.len() == interfaces + 1).then_some(())
        })
        .await;
        driver
    }

    /// Applies the manifest, and waits until the `DaemonSet` is rolled out. Another revision stands for a new version of the
    /// driver.
    pub(crate) async fn apply(&self, env: &TestEnv, revision: &str) {
        env.kubectl(&["apply", "-f", "-"], &manifest(revision)).unwrap();
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAMESPACE}");
        env.eventually("the network driver is rolled out", async || {
            let set = env.get(&path).await?;
            let status = &set["status"];
            let is_new = status["observedGeneration"] == set["metadata"]["generation"];
            let all = status["desiredNumberScheduled"] == 1 && status["updatedNumberScheduled"] == 1;
            let alone = self.pods(env).await.len() == 1;
            (is_new && all && status["numberReady"] == 1 && alone).then_some(())
        })
        .await;
    }

    /// Lists the driver's pods.
    pub(crate) async fn pods(&self, env: &TestEnv) -> Vec<Value> {
        env.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await
    }

    /// How often the kubelet has started the driver again; `None` while it is not ready.
    pub(crate) async fn restarts(&self, env: &TestEnv) -> Option<u64> {
        let pods = self.pods(env).await;
        let status = &pods.first()?["status"]["containerStatuses"][0];
        (status["ready"] == true).then(|| status["restartCount"].as_u64())?
    }

    /// Waits until that many of the moved interfaces are on the node, as they were; the others are in pods.
    pub(crate) async fn on_node(&self, env: &TestEnv, count: usize) {
        env.eventually_with(&format!("{count} interfaces are on the node"), async |reason| {
            let now = moved_interfaces(&env.cluster);
            let as_before = now.iter().filter(|(name, now)| self.before.get(*name) == Some(*now)).count();
            *reason = format!("{now:?}");
            (as_before == count).then_some(())
        })
        .await;
    }

    /// Waits until all moved interfaces are on the node again, as they were, and nothing is left of any claim.
    pub(crate) async fn all_back(&self, env: &TestEnv) {
        let directory = env.cluster.host_path(format!("/var/lib/kubelet/plugins/{NET_DRIVER}"));
        env.eventually_with("all interfaces are back and nothing is left", async |reason| {
            let now = moved_interfaces(&env.cluster);
            let differs = |(name, before): &(&String, &Value)| now.get(*name) != Some(before);
            let lost: Vec<_> = self.before.iter().filter(differs).map(|(name, _)| (name, now.get(name))).collect();
            let journal = super::entries(&directory.join("state/claims"));
            let files = super::entries(&directory.join("dra-device-metadata"));
            let files: Vec<_> = files.into_iter().filter(|path| path.is_dir()).collect();
            let children = children(&env.cluster);
            *reason =
                format!("not as before: {lost:?}, journal: {journal:?}, files: {files:?}, children: {children:?}");
            (lost.is_empty() && journal.is_empty() && files.is_empty() && children.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until everything is back, and deletes the driver, its objects and the interfaces.
    pub(crate) async fn clean_up(self, env: &TestEnv) {
        self.all_back(env).await;
        for path in [
            format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAMESPACE}"),
            format!("/api/v1/namespaces/{NAMESPACE}"),
            format!("/apis/resource.k8s.io/v1/deviceclasses/{NET_DRIVER}"),
        ] {
            env.delete(&path).await;
        }
        env.no_pods(NAMESPACE).await;
        // The next test makes it again.
        let namespace = format!("/api/v1/namespaces/{NAMESPACE}");
        env.eventually("its namespace is gone", async || env.get(&namespace).await.is_none().then_some(())).await;
        let slices = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{NET_DRIVER}");
        let _: Value = env.call(Method::DELETE, &slices, None).await.unwrap();
        for kind in [
            "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            "rbac.authorization.k8s.io/v1/clusterrolebindings",
            "rbac.authorization.k8s.io/v1/clusterroles",
        ] {
            env.delete(&format!("/apis/{kind}/{NAMESPACE}")).await;
        }
        remove_interfaces(&env.cluster);
    }
}

/// The manifest with the image and the configuration of this test.
fn manifest(revision: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAMESPACE, "namespace": NAMESPACE},
        "data": {"config.yaml": CONFIG},
    });
    let documents = MANIFEST
        .split("\n---\n")
        .map(|document| if document.contains("kind: ConfigMap") { config.to_string() } else { document.to_owned() });
    let manifest = documents.collect::<Vec<_>>().join("\n---\n");
    let changed = manifest.replace("registry.example/drakkar-net:0.1.0", IMAGE);
    assert_ne!(changed, manifest, "the manifest has the expected image");
    changed.replace(
        "          env:\n",
        &format!("          env:\n            - {{name: REVISION, value: \"{revision}\"}}\n"),
    )
}

/// The published devices.
pub(crate) async fn published(env: &TestEnv) -> Vec<Value> {
    let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{NET_DRIVER}");
    let slices = env.list(&path).await;
    slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default()).collect()
}

/// What `ip -j addr` prints in the node.
fn addresses(cluster: &Cluster) -> Vec<Value> {
    let printed = run(cluster.command("ip").args(["-json", "-details", "address"])).unwrap();
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// The interfaces that are moved into pods, by name, with what has to be restored.
fn moved_interfaces(cluster: &Cluster) -> BTreeMap<String, Value> {
    let moved = addresses(cluster).into_iter().filter_map(|link| {
        let name = link["ifname"].as_str().filter(|name| name.starts_with("e2edata"))?.to_owned();
        let is_ours = |address: &&Value| address["family"] == "inet";
        let addresses = link["addr_info"].as_array().into_iter().flatten().filter(is_ours);
        let addresses: Vec<_> = addresses.map(|address| json!([address["local"], address["prefixlen"]])).collect();
        let is_up = link["flags"].as_array().is_some_and(|flags| flags.contains(&json!("UP")));
        let facts = json!({
            "mac": link["address"], "mtu": link["mtu"], "alias": link["ifalias"], "up": is_up, "addresses": addresses,
        });
        Some((name, facts))
    });
    moved.collect()
}

/// Interfaces on top of the shared one that are in the node itself.
fn children(cluster: &Cluster) -> Vec<String> {
    let of_shared = |link: &Value| link["link"] == SHARED && link["linkinfo"]["info_kind"] == "macvlan";
    let names = addresses(cluster).into_iter().filter(of_shared);
    names.map(|link| link["ifname"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Removes the interfaces of this and of an aborted run.
fn remove_interfaces(cluster: &Cluster) {
    let names = addresses(cluster).into_iter().filter_map(|link| Some(link["ifname"].as_str()?.to_owned()));
    for name in
        names.filter(|name| ["e2edata", "e2epeer", "e2eshare", "e2ebridge"].iter().any(|ours| name.starts_with(ours)))
    {
        // The other end of a pair is gone already.
        let _ = run(cluster.command("ip").args(["link", "delete", &name]));
    }
}
