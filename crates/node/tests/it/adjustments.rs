//! Adjustments of containers.

use drakkar_node::nri::api::v1alpha1::{
    CdiDevice, ContainerAdjustment, CreateContainerResponse, KeyValue, LinuxContainerAdjustment, LinuxDevice, Mount,
    OptionalInt, PosixRlimit, ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse,
};
use drakkar_node::{Container, Isolation, Node, Pod, assert_eventually, nri};
use prost::Message as _;
use rstest::rstest;

use crate::support::plugin::{Connected, Plugin, Reply};
use crate::support::{node, node_in, script, sleeper};

/// Connects a plugin that makes these adjustments.
async fn adjusts(node: &Node, index: &'static str, name: &'static str, adjust: ContainerAdjustment) -> Connected {
    let nri = node.nri().unwrap();
    let plugin = Plugin::new(index, name).answers(move |call| match call.method.as_str() {
        "CreateContainer" => {
            let adjust = Some(adjust.clone());
            Reply::message(&CreateContainerResponse { adjust, ..CreateContainerResponse::default() })
        }
        _ => Reply::empty(),
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin(&format!("{index}-{name}")).await.unwrap();
    plugin
}

fn env(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_owned() }
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn a_container_has_what_plugins_gave_it_and_lacks_what_they_removed(#[case] isolation: Isolation) {
    let Some(node) = node_in(isolation, nri::Config::default()).await else { return };
    node.add_cdi_device("example.com/nic=0").unwrap();
    let file = node.directory().join("mounted");
    std::fs::write(&file, "content\n").unwrap();
    let null =
        LinuxDevice { path: "/dev/null".into(), r#type: "c".into(), major: 1, minor: 3, ..LinuxDevice::default() };
    let adjust = ContainerAdjustment {
        annotations: [("from".to_owned(), "plugin".to_owned())].into(),
        env: vec![env("ADDED", "1"), env("CHANGED", "new"), env("-REMOVED", "")],
        mounts: vec![Mount {
            destination: "/opt/nri/file".into(),
            r#type: "bind".into(),
            source: file.to_str().unwrap().into(),
            options: vec!["bind".into(), "ro".into()],
        }],
        linux: Some(LinuxContainerAdjustment {
            devices: vec![null],
            oom_score_adj: Some(OptionalInt { value: 500 }),
            ..LinuxContainerAdjustment::default()
        }),
        rlimits: vec![PosixRlimit { r#type: "RLIMIT_NOFILE".into(), hard: 99, soft: 77 }],
        cdi_devices: vec![CdiDevice { name: "example.com/nic=0".into() }],
        args: vec![
            "sh".into(),
            "-c".into(),
            "echo $ADDED $CHANGED ${REMOVED-none} $CDI_DEVICE; cat /opt/nri/file /proc/self/oom_score_adj; ulimit -Sn; \
             ulimit -Hn; echo x > /dev/null && echo device"
                .into(),
        ],
        ..ContainerAdjustment::default()
    };
    let plugin = adjusts(&node, "10", "adjusts", adjust).await;
    let main = Container::new("main", ["false"]).env("CHANGED", "old").env("REMOVED", "here");
    let pod = node.create_pod(Pod::new("web").container(main)).await.unwrap();
    assert_eq!(pod.finished().await.unwrap(), "Succeeded", "{:?} {:?}", pod.logs("main"), pod.events().await);
    let expected = "1 new none example.com/nic=0\ncontent\n500\n77\n99\ndevice\n";
    assert_eq!(pod.logs("main").unwrap(), expected);
    let original = plugin.of("CreateContainer")[0].container();
    assert!(original.env.contains(&"REMOVED=here".to_owned()), "{original:?}");
    let adjusted = plugin.of("StartContainer")[0].container();
    assert_eq!(adjusted.annotations["from"], "plugin");
    assert!(!adjusted.env.iter().any(|variable| variable.starts_with("REMOVED")), "{adjusted:?}");
}

#[tokio::test]
async fn a_plugin_sees_the_adjustments_of_the_plugins_before_it_and_a_conflict_fails_the_container() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let with = |key: &str| ContainerAdjustment { env: vec![env(key, "1")], ..ContainerAdjustment::default() };
    let _first = adjusts(&node, "10", "first", with("SAME")).await;
    let second = adjusts(&node, "20", "second", with("SAME")).await;
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    assert_eventually!(!pod.events().await.unwrap().is_empty());
    let events = pod.events().await.unwrap();
    let conflict = "Failed: Error: NRI CreateContainer failed: plugin 20-second: environment variable \"SAME\" was set by plugin \
                    10-first, too";
    assert_eq!(events, [conflict]);
    assert!(second.of("CreateContainer")[0].container().env.contains(&"SAME=1".to_owned()));
    assert_eventually!(!second.of("RemoveContainer").is_empty(), "the creation is undone: {:?}", second.methods());
    drop(second);
    pod.running().await.unwrap();
}

#[tokio::test]
async fn what_the_node_cannot_apply_fails_the_container_and_names_it() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let linux = LinuxContainerAdjustment {
        sysctl: [("net.core.somaxconn".to_owned(), "1".to_owned())].into(),
        ..LinuxContainerAdjustment::default()
    };
    let plugin =
        adjusts(&node, "10", "sysctl", ContainerAdjustment { linux: Some(linux), ..ContainerAdjustment::default() })
            .await;
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    assert_eventually!(plugin.of("RemoveContainer").len() >= 2, "it is tried again");
    let events = pod.events().await.unwrap();
    let refused =
        "Failed: Error: NRI CreateContainer failed: plugin 10-sysctl: this node cannot apply the adjustment of sysctl";
    assert_eq!(events, [refused]);
    let methods = plugin.methods();
    assert_eq!(methods[2..6], ["RunPodSandbox", "CreateContainer", "StopContainer", "RemoveContainer"], "{methods:?}");
}

#[tokio::test]
async fn an_unresolvable_cdi_device_of_a_plugin_undoes_the_container() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let missing = CdiDevice { name: "example.com/none=0".into() };
    let adjust = ContainerAdjustment { cdi_devices: vec![missing], ..ContainerAdjustment::default() };
    let plugin = adjusts(&node, "10", "cdi", adjust).await;
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    assert_eventually!(plugin.of("RemoveContainer").len() >= 2);
    let events = pod.events().await.unwrap();
    assert!(events[0].contains("unresolvable CDI devices example.com/none=0"), "{events:?}");
    assert!(plugin.of("PostCreateContainer").is_empty());
}

#[tokio::test]
async fn an_error_of_start_container_is_final_for_a_pod_that_never_restarts() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let plugin = Plugin::new("10", "start").answers(|call| match call.method.as_str() {
        "StartContainer" => Reply::Error(2, "not today"),
        _ => Reply::empty(),
    });
    let plugin = plugin.connect(nri.socket()).await;
    nri.wait_plugin("10-start").await.unwrap();
    let pod = node.create_pod(script("web", "echo started")).await.unwrap();
    assert_eq!(pod.finished().await.unwrap(), "Failed");
    assert_eq!(pod.logs("main").unwrap(), "");
    let after: Vec<String> = plugin.methods().into_iter().skip_while(|method| method != "StartContainer").collect();
    assert_eq!(after, ["StartContainer", "StopContainer", "StopPodSandbox"]);
}

#[tokio::test]
async fn a_validator_sees_all_adjustments_and_can_reject_them() {
    let Some(node) = node(nri::Config::default()).await else { return };
    let nri = node.nri().unwrap();
    let adjust = ContainerAdjustment { env: vec![env("A", "1")], ..ContainerAdjustment::default() };
    let _first = adjusts(&node, "10", "first", adjust).await;
    let validator = Plugin::new("00", "validator").events(1 << 13).answers(|call| match call.method.as_str() {
        "ValidateContainerAdjustment" => {
            let reason = "not allowed".to_owned();
            Reply::message(&ValidateContainerAdjustmentResponse { reject: true, reason })
        }
        _ => Reply::empty(),
    });
    let validator = validator.connect(nri.socket()).await;
    nri.wait_plugin("00-validator").await.unwrap();
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    assert_eventually!(!pod.events().await.unwrap().is_empty());
    let asked = &validator.of("ValidateContainerAdjustment")[0];
    let asked = ValidateContainerAdjustmentRequest::decode(&asked.payload[..]).unwrap();
    assert_eq!(asked.adjust.unwrap().env, [env("A", "1")]);
    assert_eq!((asked.plugins[0].index.as_str(), asked.plugins[0].name.as_str()), ("10", "first"));
    assert!(pod.events().await.unwrap()[0].ends_with("the adjustments are rejected: not allowed"));
}
