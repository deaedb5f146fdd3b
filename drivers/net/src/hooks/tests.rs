mod crowd;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use drakkar_nri::api::{LinuxNamespace, LinuxPodSandbox, Mount};
use drakkar_plugin::{ClaimRef, ConditionStatus, Device, DeviceStatus};

use super::*;
use crate::DRIVER_NAME;
use crate::claims::tests::node::{Node, claim, phases, pods, wanted};
use crate::published::Found;
use crate::reports::Report;

/// What containers and the API server see.
#[derive(Debug, Default)]
struct Seen {
    /// The metadata files whose gate is open, by claim and request.
    files: Mutex<BTreeMap<(String, String), Vec<Device>>>,
    /// The last report of each device.
    conditions: Mutex<BTreeMap<String, (ConditionStatus, String, String)>>,
    /// Whether metadata cannot be written.
    is_full: AtomicBool,
}

impl Reports for Seen {
    fn publish<'a>(&'a self, claim: &'a ClaimRef, request: &'a str, devices: Vec<Device>, pod: &'a str) -> Report<'a> {
        Box::pin(async move {
            if self.is_full.load(Ordering::SeqCst) {
                return Err("no space left on device".into());
            }
            for device in &devices {
                let ready = (ConditionStatus::True, "Attached".to_owned(), pod.to_owned());
                self.conditions.lock().unwrap().insert(device.device_name.clone(), ready);
            }
            self.files.lock().unwrap().insert((claim.name.to_string(), request.to_owned()), devices);
            Ok(())
        })
    }

    fn withdraw<'a>(&'a self, claim: &'a ClaimRef, request: &'a str) -> Report<'a> {
        Box::pin(async move {
            self.files.lock().unwrap().remove(&(claim.name.to_string(), request.to_owned()));
            Ok(())
        })
    }

    fn report(&self, _claim: &ClaimRef, statuses: Vec<DeviceStatus>) {
        for status in statuses {
            let condition = &status.conditions[0];
            let entry = (condition.status, condition.reason.clone(), condition.message.clone());
            self.conditions.lock().unwrap().insert(status.device_name, entry);
        }
    }
}

#[derive(Debug)]
struct NothingPublished;

impl Published for NothingPublished {
    fn require(&self, _device: &str) -> Result<Found, BoxError> {
        Err("not published".into())
    }

    fn claims_changed(&self, _devices: Vec<String>) {}
}

/// A node with a driver.
struct Fixture {
    node: Node,
    claims: Arc<Claims>,
    seen: Arc<Seen>,
    hooks: Hooks,
}

impl Fixture {
    fn new() -> Self {
        Self::on(Node::new(), Arc::default())
    }

    /// A driver that has started on a node.
    fn on(node: Node, seen: Arc<Seen>) -> Self {
        let claims = Arc::new(node.start());
        let hooks =
            Hooks::new(claims.clone(), node.attacher(), Arc::new(NothingPublished), seen.clone(), Metrics::default());
        Self { node, claims, seen, hooks }
    }

    fn restart(self) -> Self {
        Self::on(self.node, self.seen)
    }

    fn prepare(&self, name: &str, pod: &str, index: u32, config: &str) {
        self.claims.prepare(&claim(name), &pods(&[pod]), &[wanted(index, config)]).unwrap();
    }

    async fn run(&self, pod: &PodSandbox) -> Result<(), String> {
        self.hooks.run(pod, Caller::nobody()).await.map_err(|error| error.to_string())
    }

    fn is_open(&self, name: &str, index: u32) -> bool {
        self.seen.files.lock().unwrap().contains_key(&(name.to_owned(), format!("request-{index}")))
    }

    fn condition(&self, device: &str) -> (ConditionStatus, String, String) {
        self.seen.conditions.lock().unwrap()[device].clone()
    }

    fn is_attached(&self, name: &str) -> bool {
        self.claims
            .find(&claim(name).uid)
            .is_some_and(|record| phases(&record).iter().all(|phase| *phase == "attached"))
    }

    /// Ends what runs in the background.
    async fn settle(&self) {
        self.hooks.finish().await;
    }
}

/// A pod whose sandbox has a network namespace.
fn pod(node: &Node, uid: &str, id: &str) -> PodSandbox {
    let path = node.sandbox(uid, id).namespace.display().to_string();
    let namespace = LinuxNamespace { r#type: "network".to_owned(), path };
    let linux = LinuxPodSandbox { namespaces: vec![namespace], ..LinuxPodSandbox::default() };
    PodSandbox {
        id: id.to_owned(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        linux: Some(linux),
        ..PodSandbox::default()
    }
}

fn container(sandbox: &str) -> Container {
    Container { pod_sandbox_id: sandbox.to_owned(), ..Container::default() }
}

#[tokio::test]
async fn the_network_data_is_there_when_the_hook_returns() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, r#"{"interfaceName": "data0", "addresses": ["192.0.2.7/24"], "mtu": 9000}"#);
    assert!(!fixture.is_open("a", 1));
    let sandbox = pod(&fixture.node, "pod", "s1");
    fixture.run(&sandbox).await.unwrap();
    let file = fixture.seen.files.lock().unwrap()[&("a".to_owned(), "request-1".to_owned())].clone();
    let metadata = file[0].metadata.clone().unwrap();
    let data = metadata.network_data.unwrap();
    assert_eq!((data.interface_name.as_str(), data.ips.as_slice()), ("data0", &["192.0.2.7/24".to_owned()][..]));
    assert_eq!((&metadata.attributes["mtu"], &metadata.attributes["type"]), (&9000.into(), &"physical".into()));
    assert_eq!(fixture.condition("eth1"), (ConditionStatus::True, "Attached".into(), "default/pod".into()));
    fixture.hooks.end(Hook::Stop, &sandbox).await;
    assert!(fixture.node.is_as_it_was());
    assert!(!fixture.is_open("a", 1), "the next container needs new metadata");
    let (status, reason, _) = fixture.condition("eth1");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "Detached"));
    fixture.settle().await;
}

#[tokio::test]
async fn a_failure_takes_everything_back_and_is_reported() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    fixture.prepare("b", "pod", 2, r#"{"interfaceName": "bad"}"#);
    fixture.node.kernel.lock().unwrap().refused.insert("bad".to_owned());
    let error = fixture.run(&pod(&fixture.node, "pod", "s1")).await.unwrap_err();
    assert!(
        error.contains("device eth2: not attached to pod default/pod: the pod already has an interface bad"),
        "{error}"
    );
    assert!(fixture.node.is_as_it_was() && !fixture.is_open("a", 1) && !fixture.is_open("b", 2));
    for device in ["eth1", "eth2"] {
        let (status, reason, message) = fixture.condition(device);
        assert_eq!((status, reason.as_str(), message), (ConditionStatus::False, "InterfaceNameInUse", error.clone()));
    }
    fixture.node.kernel.lock().unwrap().refused.clear();
    fixture.run(&pod(&fixture.node, "pod", "s2")).await.unwrap();
    assert_eq!(fixture.condition("eth2").0, ConditionStatus::True);
}

#[tokio::test]
async fn a_pod_does_not_start_when_its_metadata_cannot_be_written() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    fixture.seen.is_full.store(true, Ordering::SeqCst);
    let error = fixture.run(&pod(&fixture.node, "pod", "s1")).await.unwrap_err();
    assert_eq!(error, "no space left on device");
    assert!(fixture.node.is_as_it_was());
    assert_eq!(fixture.condition("eth1").1, "MetadataNotWritten");
}

#[tokio::test]
async fn a_pod_in_the_hosts_network_is_refused_if_it_has_interfaces() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let in_host_network = PodSandbox { linux: None, ..pod(&fixture.node, "pod", "s1") };
    let error = fixture.run(&in_host_network).await.unwrap_err();
    assert!(error.contains("uses the host's network"), "{error}");
    assert_eq!(fixture.condition("eth1").1, "HostNetwork");
    fixture.run(&PodSandbox { uid: "other".to_owned(), ..in_host_network }).await.unwrap();
}

#[tokio::test]
async fn an_attach_that_the_runtime_gave_up_is_taken_back_and_one_that_lost_its_connection_is_kept() {
    for (abandoned, is_kept) in [(Abandoned::Deadline, false), (Abandoned::Disconnected, true)] {
        let fixture = Fixture::new();
        fixture.prepare("a", "pod", 1, "{}");
        let caller = Caller { deadline: None, abandonment: Arc::new(move || Some(abandoned)) };
        let outcome = fixture.hooks.run(&pod(&fixture.node, "pod", "s1"), caller).await;
        assert_eq!((outcome.is_ok(), fixture.is_attached("a")), (is_kept, is_kept));
        assert_eq!(fixture.node.is_as_it_was(), !is_kept);
        assert!(!fixture.is_open("a", 1), "the runtime may have discarded the sandbox");
    }
}

#[tokio::test]
async fn the_gate_of_a_sandbox_is_closed_while_the_runtime_is_gone_unless_it_is_known_to_have_it() {
    let fixture = Fixture::new();
    let mut listed = Vec::new();
    for (number, name) in (1..).zip(["listed", "discarded", "with-container"]) {
        fixture.prepare(name, name, number, "{}");
        let sandbox = pod(&fixture.node, name, &format!("s{number}"));
        fixture.run(&sandbox).await.unwrap();
        assert!(fixture.is_open(name, number));
        listed.push(sandbox);
    }
    fixture.hooks.confirm("s3");
    fixture.hooks.disconnected();
    fixture.settle().await;
    let open = |fixture: &Fixture| {
        [fixture.is_open("listed", 1), fixture.is_open("discarded", 2), fixture.is_open("with-container", 3)]
    };
    assert_eq!(open(&fixture), [false, false, true]);
    assert!(fixture.is_attached("listed") && fixture.is_attached("discarded"), "interfaces stay");

    listed.remove(1);
    fixture.hooks.begin_repair(&listed, &[container("s3")]);
    fixture.settle().await;
    assert_eq!(open(&fixture), [true, false, true]);
    fixture.hooks.disconnected();
    fixture.settle().await;
    assert_eq!(open(&fixture), [true, false, true], "the runtime had them when it was there last");

    listed.push(pod(&fixture.node, "discarded", "s4"));
    fixture.hooks.begin_repair(&listed, &[]);
    fixture.settle().await;
    assert_eq!(open(&fixture), [true, true, true]);
    assert_eq!(fixture.node.place(2).namespace, Some(PathBuf::from("/var/run/netns/s4")));
}

#[tokio::test]
async fn the_gate_of_a_sandbox_that_the_runtime_does_not_list_is_closed_although_nobody_has_noticed_the_loss() {
    let fixture = Fixture::new();
    let mut sandboxes = Vec::new();
    for (number, name) in (1..).zip(["listed", "discarded"]) {
        fixture.prepare(name, name, number, "{}");
        let sandbox = pod(&fixture.node, name, &format!("s{number}"));
        fixture.run(&sandbox).await.unwrap();
        sandboxes.push(sandbox);
    }
    // The connection is back at once, so nobody has seen it missing.
    fixture.hooks.begin_repair(&sandboxes[..1], &[]);
    fixture.settle().await;
    assert_eq!([fixture.is_open("listed", 1), fixture.is_open("discarded", 2)], [true, false]);
    assert!(fixture.is_attached("discarded"), "its interface stays");
    fixture.hooks.begin_repair(&sandboxes, &[]);
    fixture.settle().await;
    assert!(fixture.is_open("discarded", 2), "the runtime has it");
}

#[tokio::test]
async fn a_gate_that_is_closed_while_the_runtime_lists_its_sandbox_is_opened_again() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let sandbox = pod(&fixture.node, "pod", "s1");
    fixture.run(&sandbox).await.unwrap();
    // The list comes while the gate is being closed: the slot of the claim is what that waits for.
    let slot = fixture.hooks.slot(&claim("a").uid).lock().await;
    let place = super::sandbox(&sandbox, "pod").unwrap();
    let mut closing = Box::pin(fixture.hooks.hold_back(&place));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(closing.as_mut().poll(&mut context).is_pending());
    fixture.hooks.confirm_listed(std::slice::from_ref(&sandbox));
    drop(slot);
    closing.await;
    assert!(fixture.is_open("a", 1) && fixture.hooks.repairs().is_empty());
    fixture.hooks.hold_back(&place).await;
    assert!(fixture.is_open("a", 1), "the runtime has it");
}

#[tokio::test]
async fn two_repairs_at_once_leave_a_sandbox_its_interfaces() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let sandbox = pod(&fixture.node, "pod", "s1");
    // One that the runtime's list has begun, and that of the clock.
    fixture.hooks.begin_repair(std::slice::from_ref(&sandbox), &[]);
    tokio::join!(fixture.hooks.repair(), fixture.hooks.repair());
    fixture.settle().await;
    assert!(fixture.is_attached("a") && fixture.is_open("a", 1));
    assert_eq!(fixture.node.place(1).namespace, Some(PathBuf::from("/var/run/netns/s1")));
}

#[tokio::test]
async fn a_stop_never_fails_and_what_could_not_be_brought_back_is_tried_again() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let sandbox = pod(&fixture.node, "pod", "s1");
    fixture.run(&sandbox).await.unwrap();
    fixture.node.kernel.lock().unwrap().is_stuck = true;
    fixture.hooks.end(Hook::Stop, &sandbox).await;
    assert!(!fixture.is_open("a", 1), "the gate is closed nevertheless");
    fixture.hooks.retry().await;
    assert!(!fixture.node.is_as_it_was());
    fixture.node.kernel.lock().unwrap().is_stuck = false;
    fixture.hooks.retry().await;
    assert!(fixture.node.is_as_it_was());
    fixture.hooks.end(Hook::Remove, &sandbox).await;
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_does_not_keep_the_gate_of_a_stopped_sandbox_open() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let sandbox = pod(&fixture.node, "pod", "s1");
    fixture.run(&sandbox).await.unwrap();
    let aside = fixture.node.journal().with_extension("aside");
    std::fs::rename(fixture.node.journal(), &aside).unwrap();
    fixture.hooks.end(Hook::Stop, &sandbox).await;
    assert!(fixture.node.is_as_it_was());
    assert!(!fixture.is_open("a", 1), "the interface has left the pod");
    assert_eq!(fixture.condition("eth1").0, ConditionStatus::False);
    std::fs::rename(&aside, fixture.node.journal()).unwrap();
    fixture.hooks.retry().await;
    assert_eq!(phases(&fixture.claims.find(&claim("a").uid).unwrap()), ["prepared"]);
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_does_not_keep_the_gate_open_when_the_connection_is_lost() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let sandbox = pod(&fixture.node, "pod", "s1");
    fixture.run(&sandbox).await.unwrap();
    let aside = fixture.node.journal().with_extension("aside");
    std::fs::rename(fixture.node.journal(), &aside).unwrap();
    fixture.hooks.disconnected();
    fixture.settle().await;
    assert!(!fixture.is_open("a", 1) && fixture.is_attached("a"));
    std::fs::rename(&aside, fixture.node.journal()).unwrap();
    fixture.hooks.retry().await;
    // The next process opens the gate only if the journal says that it is closed.
    let fixture = fixture.restart();
    fixture.hooks.begin_repair(&[sandbox], &[]);
    fixture.settle().await;
    assert!(fixture.is_open("a", 1));
}

#[tokio::test]
async fn a_late_stop_leaves_the_next_sandbox_alone() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let first = pod(&fixture.node, "pod", "s1");
    fixture.run(&first).await.unwrap();
    fixture.run(&pod(&fixture.node, "pod", "s2")).await.unwrap();
    fixture.hooks.end(Hook::Stop, &first).await;
    fixture.hooks.end(Hook::Remove, &first).await;
    assert!(fixture.is_attached("a") && fixture.is_open("a", 1));
    assert_eq!(fixture.node.place(1).namespace, Some(PathBuf::from("/var/run/netns/s2")));
}

#[tokio::test]
async fn a_pod_that_started_without_the_driver_gets_its_interfaces_when_the_runtime_is_back() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    fixture.prepare("b", "not-there-yet", 2, "{}");
    let fixture = fixture.restart();
    let old = pod(&fixture.node, "pod", "s0");
    let running = pod(&fixture.node, "pod", "s1");
    let stale = pod(&fixture.node, "pod", "s2");
    fixture.node.kernel.lock().unwrap().namespaces.remove(&PathBuf::from("/var/run/netns/s0"));
    fixture.hooks.begin_repair(&[old, running, stale], &[container("s1")]);
    fixture.settle().await;
    assert!(fixture.is_attached("a") && fixture.is_open("a", 1));
    assert_eq!(fixture.node.place(1).namespace, Some(PathBuf::from("/var/run/netns/s1")), "the one with containers");
    assert!(fixture.claims.find(&claim("b").uid).is_some(), "a pod that is not there yet loses nothing");
}

#[tokio::test]
async fn a_repair_brings_back_what_is_in_a_namespace_that_is_gone() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, r#"{"interfaceName": "data0"}"#);
    fixture.run(&pod(&fixture.node, "pod", "s1")).await.unwrap();
    fixture.node.kernel.lock().unwrap().end_namespace(&PathBuf::from("/var/run/netns/s1"));
    let next = pod(&fixture.node, "pod", "s2");
    fixture.hooks.begin_repair(&[next], &[]);
    fixture.settle().await;
    assert_eq!(fixture.node.place(1).namespace, Some(PathBuf::from("/var/run/netns/s2")));
    assert!(fixture.is_open("a", 1));
}

#[tokio::test]
async fn a_repair_that_fails_is_tried_again_until_the_sandbox_stops() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, r#"{"interfaceName": "bad"}"#);
    let sandbox = pod(&fixture.node, "pod", "s1");
    fixture.node.kernel.lock().unwrap().refused.insert("bad".to_owned());
    fixture.hooks.begin_repair(std::slice::from_ref(&sandbox), &[]);
    fixture.settle().await;
    assert_eq!(fixture.condition("eth1").0, ConditionStatus::False);
    fixture.node.kernel.lock().unwrap().refused.clear();
    fixture.hooks.repair().await;
    assert!(fixture.is_attached("a") && fixture.hooks.repairs().is_empty());
    fixture.hooks.end(Hook::Stop, &sandbox).await;
    fixture.hooks.begin_repair(std::slice::from_ref(&sandbox), &[]);
    fixture.hooks.end(Hook::Stop, &sandbox).await;
    assert!(fixture.hooks.repairs().is_empty());
}

#[tokio::test]
async fn what_a_crash_left_unpublished_is_published_by_the_next_process() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let sandbox = pod(&fixture.node, "pod", "s1");
    let patience = Patience { deadline: None, is_over: &|| false };
    let place = super::sandbox(&sandbox, "pod").unwrap();
    fixture.claims.attach(&place, &patience).unwrap();
    let fixture = fixture.restart();
    assert!(fixture.is_attached("a") && !fixture.is_open("a", 1), "it died before the metadata was written");
    fixture.hooks.begin_repair(&[sandbox], &[]);
    fixture.settle().await;
    assert!(fixture.is_open("a", 1));
    assert!(fixture.hooks.repairs().is_empty());
}

#[tokio::test]
async fn a_container_with_the_metadata_of_another_pods_interface_is_refused() {
    let fixture = Fixture::new();
    fixture.prepare("a", "pod", 1, "{}");
    let first = pod(&fixture.node, "pod", "s1");
    let second = pod(&fixture.node, "other", "s2");
    let with = |destination: &str| {
        let mount = Mount { destination: destination.to_owned(), ..Mount::default() };
        Container { name: "main".to_owned(), mounts: vec![mount], ..Container::default() }
    };
    let of = |claim: &str, driver: &str| {
        with(&format!("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim}/net/{driver}-metadata.json"))
    };
    let refusal =
        |pod: &PodSandbox, container: &Container| fixture.hooks.check_container(pod, container).unwrap_err().message;
    let ours = of("a", DRIVER_NAME);
    assert!(refusal(&first, &ours).contains("claim a has interfaces that are not in the sandbox yet"));
    fixture.run(&first).await.unwrap();
    fixture.hooks.check_container(&first, &ours).unwrap();
    let message = refusal(&second, &ours);
    assert!(message.contains("pod default/other: container main: claim a has interfaces in another pod"), "{message}");
    assert!(refusal(&first, &of("b", DRIVER_NAME)).contains("claim b is not prepared"));
    let from_template = |driver: &str| {
        with(&format!(
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/net/net/{driver}-metadata.json"
        ))
    };
    fixture.hooks.check_container(&first, &from_template(DRIVER_NAME)).unwrap();
    let next = pod(&fixture.node, "pod", "s3");
    let message = refusal(&next, &from_template(DRIVER_NAME));
    assert!(message.contains("claim net of the pod has interfaces that are not in the sandbox yet"), "{message}");
    fixture.hooks.check_container(&next, &from_template("gpu.example.com")).unwrap();
    for other in [of("a", "gpu.example.com"), with("/data"), Container::default()] {
        fixture.hooks.check_container(&second, &other).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_pods_at_once_get_their_interfaces_and_give_them_back() {
    let fixture = Arc::new(Fixture::new());
    for number in 0..200 {
        fixture.prepare(&format!("c{number}"), &format!("p{number}"), 1, r#"{"macvlan": {}}"#);
    }
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..200 {
        let fixture = fixture.clone();
        runs.spawn(async move {
            let pod = pod(&fixture.node, &format!("p{number}"), &format!("s{number}"));
            fixture.run(&pod).await.unwrap();
            assert!(fixture.is_open(&format!("c{number}"), 1));
            fixture.hooks.end(Hook::Stop, &pod).await;
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
    assert!(fixture.node.is_as_it_was() && fixture.seen.files.lock().unwrap().is_empty());
}
