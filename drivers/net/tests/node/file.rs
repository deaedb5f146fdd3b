//! The metadata file in docs/network-driver.md is the one that a container sees.

use drakkar_net::DRIVER_NAME;
use serde_json::{Value, json};

use crate::support::Bench;

/// The file in the guide: the only block of JSON.
fn documented() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/network-driver.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let mut blocks = guide.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.next().unwrap();
    assert_eq!(blocks.next(), None, "more than one block");
    serde_json::from_str(block).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_shows_the_file_that_a_container_sees() {
    let Some(bench) = Bench::start().await else { return };
    let parameters = json!({
        "interfaceName": "data0", "mtu": 1400, "macAddress": "02:00:5e:10:00:01",
        "addresses": ["192.0.2.10/24", "2001:db8::10/64"],
    });
    let pod = bench.pod("fast", "fast1", parameters).await;
    pod.running().await.unwrap();
    let path =
        format!("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/fast/net/{DRIVER_NAME}-metadata.json");
    let output = pod.exec("main", ["cat", &path]).await.unwrap();
    let mut file: Value = serde_json::from_slice(&output.stdout).unwrap();
    // What differs from run to run: the UID of the claim, and the hardware address that the kernel has chosen.
    let mask = |value: &mut Value| {
        assert!(value.as_str().is_some_and(|text| !text.is_empty()), "{value}");
        *value = "…".into();
    };
    mask(&mut file["metadata"]["uid"]);
    mask(&mut file["requests"][0]["devices"][0]["attributes"]["mac"]["string"]);
    assert_eq!(file, documented(), "{file:#}");
    pod.delete().await.unwrap();
}
