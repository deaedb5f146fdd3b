//! Publishing a host, with the kernel's events and a configuration file that changes.

use std::sync::Arc;
use std::time::Duration;

use drakkar_driver_kit::config::watch::ConfigFile;
use drakkar_net::attributes::Attributes;
use drakkar_net::{Events, Following, HeldInterface, Holding, LookupError, survey, table};
use drakkar_netlink::{LinkChange, Namespace};

use crate::support::{Cluster, PATIENCE, TestHost, config, until};

const ALL: &str = "- {name: all, match: {names: ['*']}, allow: [way-out]}";

#[test]
fn what_comes_and_goes_is_published_and_unpublished() {
    let Some(mut host) = TestHost::new() else { return };
    let cluster = Cluster::default();
    let interfaces = cluster.interfaces(&host, config(ALL));
    assert_eq!(cluster.devices(), Vec::<String>::new());
    let left = host.veth("left", "right");
    until(&mut host, &interfaces, "both are published", || cluster.devices() == ["if-left", "if-right"]);
    host.connection.delete_link(&left).unwrap();
    until(&mut host, &interfaces, "both are unpublished", || cluster.devices().is_empty());
}

#[test]
fn the_cables_of_pods_publish_nothing() {
    let Some(mut host) = TestHost::new() else { return };
    let pod = Namespace::unshared().unwrap();
    host.veth("left", "right");
    let cluster = Cluster::default();
    let interfaces = cluster.interfaces(&host, config("- match: {names: [left]}"));
    host.veth("veth0", "eth0");
    let inside = host.link("eth0");
    host.move_to(&inside, &pod);
    let changes = interfaces.changes();
    until(&mut host, &interfaces, "the cable is seen", || {
        let decisions = interfaces.decisions();
        let is_there = |name: &str| table::render(&decisions, None, true).contains(&format!("\n{name} "));
        is_there("veth0") && !is_there("eth0")
    });
    assert!(changes.has_changed().unwrap());
    assert_eq!(cluster.publications(), 1, "nothing was published but the first state");
}

#[test]
fn an_interface_that_the_host_begins_to_need_is_refused_at_once() {
    let Some(mut host) = TestHost::new() else { return };
    let left = host.veth("left", "right");
    let way_out = host.veth("way-out", "gateway");
    let cluster = Cluster::default();
    let interfaces = cluster.interfaces(&host, config(ALL));
    assert_eq!(interfaces.require("if-left").unwrap().rule.as_deref(), Some("all"));
    let route = host.route("0.0.0.0/0", &left, 254);
    host.connection.add_route(&route).unwrap();
    // No event was taken in: the kernel is asked.
    let error = interfaces.require("if-left").unwrap_err();
    assert!(matches!(&error, LookupError::Refused { refusal, .. } if refusal.reason() == "default_route"), "{error}");
    assert_eq!(cluster.devices(), ["if-gateway", "if-right", "if-way-out"]);
    let error = interfaces.require("if-left").unwrap_err().to_string();
    assert!(error.contains("if-left"), "{error}");
    host.connection.delete_route(&route).unwrap();
    let allowed = host.route("0.0.0.0/0", &way_out, 254);
    host.connection.add_route(&allowed).unwrap();
    until(&mut host, &interfaces, "left is published again", || interfaces.lookup("if-left").is_some());
    assert!(interfaces.require("if-way-out").is_ok(), "it is allowed by name");
}

#[test]
fn the_node_s_address_protects_its_interface() {
    let Some(mut host) = TestHost::new() else { return };
    let left = host.veth("left", "right");
    let cluster = Cluster::default();
    let interfaces = cluster.interfaces(&host, config(ALL));
    assert_eq!(cluster.devices(), ["if-left", "if-right"]);
    host.add_address(&left, "192.0.2.5/24");
    until(&mut host, &interfaces, "left is refused", || cluster.devices() == ["if-right"]);
}

#[test]
fn an_interface_stays_published_while_a_pod_has_it() {
    let Some(mut host) = TestHost::new() else { return };
    let pod = Namespace::unshared().unwrap();
    let left = host.veth("left", "right");
    let cluster = Cluster::default();
    let interfaces = cluster.interfaces(&host, config("- {name: cables, match: {names: [left]}}"));
    let claimed = interfaces.require("if-left").unwrap();
    assert_eq!((claimed.identity.index, claimed.identity.name.as_str()), (left.index, "left"));
    let held = HeldInterface {
        device: claimed.device.clone(),
        identity: claimed.identity.clone(),
        holding: Holding::Moved,
        facts: Some(Attributes::clone(&claimed.facts)),
        is_gone: false,
    };
    cluster.held.lock().unwrap().push(held);
    interfaces.claims_changed([claimed.device.clone()]).unwrap();
    host.connection
        .change_link(
            &left,
            &LinkChange { namespace: Some(&pod), name: Some("data0"), mtu: Some(1400), ..LinkChange::default() },
        )
        .unwrap();
    until(&mut host, &interfaces, "it is not on the host", || {
        interfaces.lookup("if-left").is_some_and(|interface| !interface.is_on_host)
    });
    assert_eq!(cluster.devices(), ["if-left"]);
    let inside = interfaces.lookup("if-left").unwrap();
    assert_eq!((&inside.attributes, &inside.rule), (&claimed.attributes, &claimed.rule));
    assert_eq!(cluster.publications(), 1, "nothing has changed for the cluster");

    cluster.held.lock().unwrap().clear();
    interfaces.claims_changed([claimed.device]).unwrap();
    assert_eq!(cluster.devices(), Vec::<String>::new(), "the claim has ended, and the interface did not come back");
}

#[test]
fn a_survey_shows_what_becomes_of_each_interface() {
    let Some(mut host) = TestHost::new() else { return };
    let left = host.veth("left", "right");
    let route = host.route("::/0", &left, 254);
    host.connection.add_route(&route).unwrap();
    let config = Arc::new(config("- {name: cables, match: {types: [veth]}}"));
    let rows = survey(&host.namespace, host.sysfs(), config.clone(), Vec::new()).unwrap();
    let table = table::render(&rows, Some(&config), false);
    assert!(table.contains("published as if-right (rule cables)"), "{table}");
    assert!(table.contains("refused: the host's default route (::/0 in table 254)"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_configuration_are_followed_without_polling() {
    let Some(mut host) = TestHost::new() else { return };
    let cluster = Cluster::default();
    let events = Events::open(&host.namespace).unwrap().into_stream().unwrap();
    let path = host.directory.path().join("config.yaml");
    let write = |rules: &str| {
        let yaml = format!("apiVersion: net.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{rules}\n");
        std::fs::write(&path, yaml).unwrap();
    };
    write("- match: {names: [left]}");
    let (file, _) = ConfigFile::open(&path).unwrap();
    let interfaces = Arc::new(cluster.interfaces(&host, config("- match: {names: [left]}")));
    let mut changes = interfaces.changes();
    let following = Following { interfaces, events, file };
    let task = tokio::spawn(following.run(|_| ()));
    let mut wait = async |what: &str, expected: &[&str]| {
        tokio::time::timeout(PATIENCE, async {
            while cluster.devices() != expected {
                changes.changed().await.unwrap();
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{what}: {:?}", cluster.devices()));
    };
    host.veth("left", "right");
    wait("an interface that comes", &["if-left"]).await;
    write("- match: {names: [right]}");
    wait("another configuration", &["if-right"]).await;
    write("- match: {}");
    let right = host.link("right");
    host.connection.change_link(&right, &LinkChange { mtu: Some(1300), ..LinkChange::default() }).unwrap();
    write("- match: {names: ['*']}");
    wait("a valid configuration after an invalid one", &["if-left", "if-right"]).await;
    host.connection.delete_link(&right).unwrap();
    wait("interfaces that go", &[]).await;
    task.abort();
    assert!(tokio::time::timeout(Duration::from_secs(60), task).await.is_ok());
}
