//! VEP 10's example with two GPUs on a real node: drakkar-pci as a `DaemonSet`, and a pod that stands in for KubeVirt's launcher.
//!
//! The driver is deployed by `deploy/manifests/pci.yaml`. Its host is simulated, because this one has no device to pass through; kubelet,
//! containerd, scheduler and API server are real.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};

use crate::support::TestEnv;

const MANIFEST: &str = include_str!("../../../deploy/manifests/pci.yaml");
const CONFIG: &str = include_str!("../../../examples/kubevirt-multi-gpu/config.yaml");
const HOST: &str = include_str!("../../../examples/kubevirt-multi-gpu/host.yaml");
const CLASSES: &str = include_str!("../../../examples/kubevirt-multi-gpu/classes.yaml");
const CLAIMS: &str = include_str!("../../../examples/kubevirt-multi-gpu/claims.yaml");
const LAUNCHER: &str = include_str!("../../../examples/kubevirt-multi-gpu/launcher.yaml");
const VMI: &str = include_str!("../../../examples/kubevirt-multi-gpu/vmi.yaml");

/// The images that `cargo xtask e2e test` builds.
const DRIVER_IMAGE: &str = "localhost/drakkar-pci:e2e";
const COMMAND_IMAGE: &str = "localhost/drakkar:e2e";

const DRIVER: &str = "pci.drakkar.dev";

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn a_launcher_makes_host_devices_of_a_gpu_and_a_mediated_device() {
    let env = TestEnv::new("kubevirt").await;
    env.kubectl(&["apply", "-f", "-"], &with_simulated_host(MANIFEST)).unwrap();
    env.kubectl(&["apply", "-f", "-"], CLASSES).unwrap();
    env.eventually("the driver publishes its devices", async || {
        let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{DRIVER}");
        let slices = env.list(&path).await;
        slices.iter().any(|slice| slice["spec"]["devices"].as_array().is_some_and(|all| !all.is_empty())).then_some(())
    })
    .await;
    let simulated = |path: &str| -> PathBuf {
        env.cluster.host_path(format!("/var/lib/kubelet/plugins/{DRIVER}/simulation/sys/bus/pci/devices/{path}"))
    };
    let driver_of = |address: &str| std::fs::read_link(simulated(&format!("{address}/driver"))).unwrap();
    assert!(driver_of("0000:65:00.0").ends_with("nvidia"));

    env.kubectl(&["apply", "-f", "-"], CLAIMS).unwrap();
    let launcher = LAUNCHER
        .replace("registry.example.com/virt-launcher:1", COMMAND_IMAGE)
        .replace("command: [sleep, infinity]", "command: [/bin/sleep, \"1000000\"]\n      imagePullPolicy: Never");
    env.kubectl(&["apply", "-f", "-"], &launcher).unwrap();
    let pod = "/api/v1/namespaces/lab/pods/launcher";
    env.eventually("the launcher runs", async || {
        let pod = env.get(pod).await?;
        (pod["status"]["containerStatuses"][0]["ready"] == true).then_some(())
    })
    .await;

    let exec = |command: &[&str], input: &str| {
        let exec = ["exec", "-i", "-n", "lab", "launcher", "-c", "compute", "--"];
        env.kubectl(&[&exec, command].concat(), input).unwrap()
    };
    let xml = exec(&["/drakkar", "kubevirt", "domain-xml", "-"], VMI);
    let uuid = mediated_device(&env).await;
    assert_eq!(
        xml,
        format!(
            "\
<hostdev mode='subsystem' type='pci' managed='no'>
  <source>
    <address domain='0x0000' bus='0x65' slot='0x00' function='0x0'/>
  </source>
  <alias name='ua-dra-gpu-first'/>
</hostdev>
<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci' display='on' ramfb='on'>
  <source>
    <address uuid='{uuid}'/>
  </source>
  <alias name='ua-dra-gpu-second'/>
</hostdev>
"
        )
    );
    let strict = exec(&["/drakkar", "kubevirt", "domain-xml", "--strict-kubevirt", "-"], VMI);
    assert!(
        strict.contains(r#"<alias name="ua-dra-gpu-first"></alias>"#),
        "released KubeVirt can use it too: {strict}"
    );
    let checked = exec(&["/drakkar", "kubevirt", "check"], "");
    assert_eq!(checked.matches(": ok (").count(), 2, "{checked}");
    // The GPU's group node and VFIO's own, by CDI.
    let nodes = exec(&["ls", "/dev/vfio"], "");
    assert!(nodes.lines().any(|node| node == "65") && nodes.lines().any(|node| node == "vfio"), "{nodes}");
    assert!(driver_of("0000:65:00.0").ends_with("vfio-pci"));
    assert!(driver_of("0000:65:00.1").ends_with("vfio-pci"), "the audio function is in the same group");

    env.delete(pod).await;
    env.eventually("the former driver is back", async || {
        std::fs::read_link(simulated("0000:65:00.0/driver")).is_ok_and(|link| link.ends_with("nvidia")).then_some(())
    })
    .await;
    let mdev =
        env.cluster.host_path(format!("/var/lib/kubelet/plugins/{DRIVER}/simulation/sys/bus/mdev/devices/{uuid}"));
    env.eventually("the mediated device is removed", async || mdev.symlink_metadata().is_err().then_some(())).await;
    clean_up(&env).await;
    env.clean_up().await;
}

/// Returns the UUID that the driver reports in the claim's status.
async fn mediated_device(env: &TestEnv) -> String {
    let claim = "/apis/resource.k8s.io/v1/namespaces/lab/resourceclaims/shared-gpu";
    env.eventually("the status has the mediated device", async || {
        let claim = env.get(claim).await?;
        let device = claim["status"]["devices"].get(0)?;
        device["data"]["mdevUUID"].as_str().map(str::to_owned)
    })
    .await
}

/// Returns the driver's manifest with the images of this run, the example's configuration and its simulated host.
fn with_simulated_host(manifest: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "drakkar-pci", "namespace": "drakkar-pci"},
        "data": {"config.yaml": CONFIG, "host.yaml": HOST},
    });
    let documents = manifest
        .split("\n---\n")
        .map(|document| if document.contains("kind: ConfigMap") { config.to_string() } else { document.to_owned() });
    let manifest = documents.collect::<Vec<_>>().join("\n---\n");
    let manifest = manifest
        .replace("registry.example/drakkar-pci:0.1.0", DRIVER_IMAGE)
        .replace("--sysfs-root=/host/sys", "--simulate=/config/host.yaml")
        .replace("            - \"--dev-root=/host/dev\"\n", "")
        .replace("            - \"--proc-root=/host/proc\"\n", "");
    assert!(manifest.contains("--simulate"), "the manifest has the expected arguments");
    manifest
}

async fn clean_up(env: &TestEnv) {
    env.delete("/apis/resource.k8s.io/v1/namespaces/lab/resourceclaims/shared-gpu").await;
    env.eventually("no files of claims are left", async || {
        let left = |directory: PathBuf| std::fs::read_dir(directory).map_or(0, Iterator::count);
        let specs = env.cluster.host_path("/var/run/cdi");
        let specs = std::fs::read_dir(specs).map_or(0, |entries| {
            let of_driver = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(DRIVER);
            entries.filter_map(Result::ok).filter(of_driver).count()
        });
        let plugin = env.cluster.host_path(format!("/var/lib/kubelet/plugins/{DRIVER}/dra-device-metadata"));
        (left(plugin) == 0 && specs == 0).then_some(())
    })
    .await;
    for path in [
        "/apis/apps/v1/namespaces/drakkar-pci/daemonsets/drakkar-pci",
        "/api/v1/namespaces/lab",
        "/api/v1/namespaces/drakkar-pci",
    ] {
        env.delete(path).await;
    }
    for namespace in ["lab", "drakkar-pci"] {
        env.no_pods(namespace).await;
    }
    let slices = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{DRIVER}");
    let _: Value = env.call(Method::DELETE, &slices, None).await.unwrap();
    for path in [
        "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/drakkar-pci",
        "admissionregistration.k8s.io/v1/validatingadmissionpolicies/drakkar-pci",
        "rbac.authorization.k8s.io/v1/clusterrolebindings/drakkar-pci",
        "rbac.authorization.k8s.io/v1/clusterroles/drakkar-pci",
        "resource.k8s.io/v1/deviceclasses/pci.drakkar.dev",
        "resource.k8s.io/v1/deviceclasses/pgpu.example.com",
        "resource.k8s.io/v1/deviceclasses/vgpu.example.com",
    ] {
        env.delete(&format!("/apis/{path}")).await;
    }
}
