//! Many claims at once, on the kernel of this machine.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use drakkar_netlink::{LinkKind, NewLink, NewLinkKind};
use tokio::task::JoinSet;

use super::*;
use crate::attach::tests::machine::{Machine, PATIENCE, Place, talk};
use crate::claims::Wanted;
use crate::claims::tests::real::{attached, claim, driver, wanted};

const PODS: usize = 200;
/// Every so many pods one gets a whole interface; the others get one on top of a shared one.
const MOVED: usize = 5;
/// The range of all addresses.
const RANGE: &str = "10.9.0.0/20";

fn is_moved(number: usize) -> bool {
    number.is_multiple_of(MOVED)
}

/// A pod with an interface whose other end is outside, and so goes when the pod's namespace ends.
fn new_pod(machine: &Machine, number: usize) -> Place {
    let pod = Place::new().unwrap();
    let peer = format!("of-pod{number}");
    let kind = NewLinkKind::Veth { peer: &peer, peer_namespace: Some(&machine.switch.namespace) };
    pod.connection().create_link(&NewLink::new("eth0", kind)).unwrap();
    pod
}

fn sandbox_of(pod: &Place, number: usize) -> PodSandbox {
    let namespace = LinuxNamespace { r#type: "network".to_owned(), path: pod.path().display().to_string() };
    PodSandbox {
        id: format!("sandbox-{number}"),
        name: format!("pod-{number}"),
        uid: format!("uid-of-pod-{number}"),
        namespace: "default".to_owned(),
        linux: Some(LinuxPodSandbox { namespaces: vec![namespace], ..LinuxPodSandbox::default() }),
        ..PodSandbox::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_claims_at_once_get_interfaces_with_addresses_of_their_own_and_all_come_back() {
    let Some(machine) = Machine::new() else { return };
    for number in (0..PODS).filter(|number| is_moved(*number)) {
        let peer = format!("end{number}");
        let kind = NewLinkKind::Veth { peer: &peer, peer_namespace: Some(&machine.switch.namespace) };
        machine.host.connection().create_link(&NewLink::new(&format!("cable{number}"), kind)).unwrap();
    }
    let pods: Vec<Place> = (0..PODS).map(|number| new_pod(&machine, number)).collect();
    let before = machine.host.state();
    let journal = tempfile::tempdir().unwrap();
    let claims = Arc::new(driver(&machine, &journal));
    let seen = Arc::new(Seen::default());
    let attacher = Arc::new(machine.kernel());
    let hooks = Hooks::new(claims.clone(), attacher, Arc::new(NothingPublished), seen.clone(), Metrics::default());

    // The kubelet and the runtime ask for all of them at once.
    let mut runs = JoinSet::new();
    for (number, pod) in pods.iter().enumerate() {
        let range = format!(r#""interfaceName": "net1", "addressRanges": [{{"subnet": "{RANGE}"}}]"#);
        let wanted = if is_moved(number) {
            wanted(&machine, &format!("cable{number}"), &format!("{{{range}}}"))
        } else {
            let wanted = wanted(&machine, "fast0", &format!(r#"{{"macvlan": {{}}, {range}}}"#));
            Wanted { share_id: Some(format!("share-{number}")), ..wanted }
        };
        let (claims, hooks, sandbox) = (claims.clone(), hooks.clone(), sandbox_of(pod, number));
        runs.spawn(async move {
            let prepare = move || {
                let pod = [format!("uid-of-pod-{number}")];
                claims.prepare(&claim(&format!("c{number}")), &pod, &[wanted]).map(drop)
            };
            tokio::task::spawn_blocking(prepare).await.unwrap().unwrap();
            hooks.run(&sandbox, Caller::nobody()).await.unwrap();
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }

    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    for (number, pod) in pods.iter().enumerate() {
        let [interface] = attached(&claims.of_pod(&format!("uid-of-pod-{number}"))).try_into().unwrap();
        let link = pod.link("net1");
        assert_eq!(link.address.map(|address| address.to_string()), interface.hardware_address);
        assert_eq!(matches!(link.kind, LinkKind::Macvlan { .. }), !is_moved(number));
        let in_kernel: Vec<_> = pod.connection().addresses_of(link.index).unwrap();
        let [address] = interface.addresses.as_slice() else { panic!("{interface:?}") };
        assert!(in_kernel.iter().any(|found| found.address == *address), "{in_kernel:?}");
        assert!(addresses.insert(address.addr()), "{address} was given twice");
        let file = seen.files.lock().unwrap()[&(format!("c{number}"), "net".to_owned())].clone();
        let data = file[0].metadata.clone().unwrap().network_data.unwrap();
        assert_eq!(data.ips, [address.to_string()]);
    }
    let address =
        |number: usize| attached(&claims.of_pod(&format!("uid-of-pod-{number}")))[0].addresses[0].addr().to_string();
    talk(&pods[1], &address(1), &pods[PODS - 1], &address(PODS - 1));

    // Half of the sandboxes are stopped, the others never: unprepare brings those back.
    let mut runs = JoinSet::new();
    for (number, pod) in pods.iter().enumerate() {
        let (claims, hooks, sandbox) = (claims.clone(), hooks.clone(), sandbox_of(pod, number));
        runs.spawn(async move {
            if number % 2 == 0 {
                hooks.end(Hook::Stop, &sandbox).await;
            }
            let unprepare = move || claims.unprepare(&claim(&format!("c{number}")).uid);
            tokio::task::spawn_blocking(unprepare).await.unwrap().unwrap();
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
    hooks.finish().await;
    assert_eq!(machine.host.state(), before);
    assert!(pods.iter().all(|pod| pod.names() == ["lo", "eth0"]));
    assert_eq!(std::fs::read_dir(journal.path()).unwrap().count(), 0);
    assert_eq!(claims.count().devices, 0);

    // Nothing keeps the namespaces of the pods alive, though the driver still runs.
    drop(pods);
    let start = Instant::now();
    let is_left = || machine.switch.names().iter().any(|name| name.starts_with("of-pod"));
    while is_left() {
        assert!(start.elapsed() < 4 * PATIENCE, "the driver keeps network namespaces open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
